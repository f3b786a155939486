#!/usr/bin/env python3
"""Write docs/llms.txt, the pages for language models, from docs/index.md: ``python tools/llms_txt.py``.

The format is that of llmstxt.org: a title, a summary, sections with links to Markdown. A test compares it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX, PAGE = ROOT / "docs" / "index.md", ROOT / "docs" / "llms.txt"
FILES = "https://raw.githubusercontent.com/airflow-eos/airflow-eos/main/"
_LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
_LEFT_OUT = ("Example Dags", "Words")


def render(index: str) -> str:
    """Return the page for an index page."""
    title, summary, *rest = index.split("\n\n")
    sections = ["", *re.split(r"^(?=## )", "\n\n".join(rest), flags=re.MULTILINE)]
    kept = [text.strip() for text in sections if text.strip() and not text.startswith(_headings())]
    linked = _LINK.sub(lambda match: f"]({_address(match[1])})", "\n\n".join(kept))
    return f"{title}\n\n> {summary}\n\n{linked}\n"


def _headings() -> tuple[str, ...]:
    return tuple(f"## {name}" for name in _LEFT_OUT)


def _address(link: str) -> str:
    return FILES + str((INDEX.parent / link).resolve().relative_to(ROOT))


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(INDEX.read_text()))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
