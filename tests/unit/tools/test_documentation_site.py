"""The site: navigation from the pages' own links, every page in it, no warnings."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import airflow_eos
from tools import llms_txt

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@pytest.fixture
def conf():
    """Return Sphinx's configuration."""
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_out_of_the_documentation_lead_to_the_tag(conf):
    """A site has no files of the repository; links inside, anchors and addresses stay."""
    text = "[a](../README.md#install) [b](cli.md#doctor) [c](../dags/) [d](https://example.org) [e](#words)"
    tag = f"v{airflow_eos.__version__}"
    assert conf.outside_links(text, DOCS) == (
        f"[a]({conf.REPOSITORY}/blob/{tag}/README.md#install) [b](cli.md#doctor) "
        f"[c]({conf.REPOSITORY}/tree/{tag}/dags) [d](https://example.org) [e](#words)"
    )


def test_each_section_of_an_index_is_a_part_of_the_navigation(conf):
    """In the order of its links, each page once; a section without pages has no part."""
    text = "# T\n\n## How to\n\n[x](b.md), [y](sub/a.md), [again](b.md)\n\n## Words\n\nnone\n"
    assert conf.navigation(text) == "```{toctree}\n:hidden:\n:caption: How to\n\nb\nsub/a\n```\n"


def test_every_page_is_in_the_navigation_once(conf):
    """Readers cannot find a page that no index links."""
    listed = []
    for index in DOCS.rglob("index.md"):
        pages = re.findall(r"^([\w/-]+)$", conf.navigation(index.read_text()), re.MULTILINE)
        listed += [str((index.parent / page).relative_to(DOCS)) for page in pages]
    pages = [path for path in DOCS.rglob("*") if path.suffix in (".md", ".rst") and path != DOCS / "index.md"]
    assert sorted(listed) == sorted(str(path.relative_to(DOCS).with_suffix("")) for path in pages)


def test_the_reference_has_every_public_name():
    """The names that ``airflow_eos`` exports, and no others."""
    named = re.findall(r"^\.\. auto\w+:: airflow_eos\.(\w+)$", (DOCS / "api.rst").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(name for name in airflow_eos.__all__ if not name.startswith("__"))


def test_the_list_for_language_models_is_that_of_the_index():
    """``python tools/llms_txt.py`` generates it."""
    text = (DOCS / "llms.txt").read_text()
    assert text == llms_txt.render((DOCS / "index.md").read_text())
    assert text.startswith("# airflow-eos\n\n> ")
    links = re.findall(r"\]\((\S+?)\)", text)
    assert all(link.startswith(llms_txt.FILES) for link in links)
    assert [link for link in links if not (ROOT / link.removeprefix(llms_txt.FILES)).exists()] == []
