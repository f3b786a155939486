"""Sphinx: the Markdown pages of this folder as a site. ``make docs`` builds it; nothing is fetched.

Navigation comes from the lists of links in ``index.md`` and the other pages of that name, so that the pages
read alike on a forge. Links that leave this folder lead to the files of the version's tag.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Importing Airflow for the API reference writes a configuration: never into the home folder of who builds.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-eos-docs-")

import airflow_eos

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/airflow-eos/airflow-eos"

project = "airflow-eos"
author = "The airflow-eos developers"
project_copyright = author
version = release = airflow_eos.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
suppress_warnings = ["config.cache"]
exclude_patterns = ["monitoring"]
html_theme = "furo"
html_title = f"airflow-eos {version}"
html_extra_path = ["llms.txt"]
html_show_sphinx = False
# GitHub's anchors, six levels deep.
myst_heading_anchors = 6
python_maximum_signature_line_length = 88
autodoc_typehints = "none"  # signatures have them; parameters are explained in prose
autodoc_member_order = "bysource"

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_PAGE = re.compile(r"\[[^\]]*\]\(((?:\w[\w-]*/)*[\w-]+)\.(?:md|rst)\)")
_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)


def outside_links(text: str, folder: Path) -> str:
    """Return Markdown whose relative links out of the documentation lead to the repository's tag."""

    def lead(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        target = (folder / link).resolve()
        if "://" in link or target.is_relative_to(HERE):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        path = target.relative_to(HERE.parent)
        return f"]({REPOSITORY}/{kind}/v{version}/{path}{anchor})"

    return _LINK.sub(lead, text)


def navigation(text: str) -> str:
    """Return the hidden tables of contents for a page that lists others: one for each section that does."""
    parts = _SECTION.split(text)
    sections = [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    trees = []
    for caption, body in sections:
        pages = list(dict.fromkeys(_PAGE.findall(body)))
        if pages:
            options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
            trees.append(f"```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n")
    return "\n".join(trees)


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Adapt a page as it is read; the file stays as it is."""
    if page.endswith("index"):
        source[0] += "\n" + navigation(source[0])
    source[0] = outside_links(source[0], (Path(app.srcdir) / page).parent)


def constructor(
    _app: Sphinx, kind: str, _name: str, target: Any, _options: Any, signature: str, _returned: Any
) -> tuple[str, None] | None:
    """Return the parameters of a class whose ``__new__`` takes any: those of its ``__init__``."""
    if kind != "class" or "**given" not in (signature or ""):
        return None
    from sphinx.util.inspect import stringify_signature

    whole = inspect.signature(target.__init__)
    own = whole.replace(parameters=list(whole.parameters.values())[1:])
    return stringify_signature(own, show_annotation=False), None


def setup(app: Sphinx) -> None:
    """Connect what adapts the pages."""
    app.connect("source-read", prepare)
    app.connect("autodoc-process-signature", constructor)
