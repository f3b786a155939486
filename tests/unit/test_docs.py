"""What the documents say can be followed: links lead somewhere, quoted code is the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_FROM = re.compile(r"# (\S+\.py)\n")
_TARGET = re.compile(r"\bmake ([a-z]+)\b")


def name_of(page):
    """Return a page's name for test ids."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files(page):
    """A file that moves takes its links along."""
    links = [link.partition("#")[0] for link in _LINK.findall(page.read_text())]
    local = [link for link in links if link and "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_names_its_file_is_an_excerpt_of_it(page):
    """Examples are quoted, never copied: code that a test runs is what the reader sees."""
    stale = []
    for block in _BLOCK.findall(page.read_text()):
        source = _FROM.match(block)
        if source and block[source.end() :] not in (ROOT / source[1]).read_text():
            stale.append(block)
    assert stale == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_other_code_is_valid_python(page):
    """A reader can paste it."""
    for block in _BLOCK.findall(page.read_text()):
        if not _FROM.match(block):
            ast.parse(block)


def test_make_targets_in_the_documents_exist():
    """``make help`` and the documents agree."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in _TARGET.findall("\n".join(code_in(page)))}
    assert named
    assert named - targets == set()


def code_in(page):
    """Return the code of a page: blocks and spans."""
    text = page.read_text()
    return [*re.findall(r"```console\n(.*?)```", text, re.DOTALL), *re.findall(r"`(make [^`]+)`", text)]
