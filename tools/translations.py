#!/usr/bin/env python3
"""Keep translated pages beside the English ones: ``python tools/translations.py``.

Under each heading of a translated page is a comment with the heading of the English section and a digest of
its text. A section whose English text has changed since is marked as out of date and gets the current code
blocks; a new one is inserted in English; a removed one is deleted. After translating, declare the sections
done::

    python tools/translations.py --translated README.ko.md Install

Without headings, all sections of the page are. A test fails if the tool would change a page.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.ko.md": "README.md",
    "docs/ko/getting-started.md": "docs/getting-started.md",
    "docs/ko/errors.md": "docs/errors.md",
}
"""Translated page -> English page."""
MARK = "> **번역보다 새로운 영어 원문이 있습니다.** 이 절의 코드는 최신이고, 글은 예전 원문의 번역입니다.\n\n"
_COMMENT = re.compile(r"<!-- en: (.+) ([0-9a-f]{12}) -->\n\n?")
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
_CODE = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text up to the next one.

    :param heading: the heading line, with its ``#``.
    :param text: the text below it, without the comment and the mark.
    :param source: the English heading, without ``#``; an English section's own.
    :param digest: digest of the English section that was translated; an English section's own.
    :param marked: whether it is marked as out of date.
    """

    heading: str
    text: str
    source: str
    digest: str
    marked: bool = False

    @property
    def code(self) -> list[str]:
        """The fenced code blocks."""
        return _CODE.findall(self.text)


def parts(page: str) -> list[tuple[str, str]]:
    """Return heading line and text of each section; headings inside code blocks do not count."""
    sections: list[tuple[str, list[str]]] = []
    fenced = False
    for line in page.splitlines(keepends=True):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and _HEADING.match(line):
            sections.append((line.rstrip("\n"), []))
        elif sections:
            sections[-1][1].append(line)
    return [(heading, "".join(lines)) for heading, lines in sections]


def english(page: str) -> list[Section]:
    """Return the sections of an English page."""
    return [
        Section(heading, text, heading.lstrip("# "), hashlib.sha256(text.strip().encode()).hexdigest()[:12])
        for heading, text in parts(page)
    ]


def translated(page: str) -> list[Section]:
    """Return the sections of a translated page.

    :raises SystemExit: a section has no comment that names its English section.
    """
    sections = []
    for heading, text in parts(page):
        comment = _COMMENT.match(text)
        if comment is None:
            raise SystemExit(
                f"section {heading!r} has no comment <!-- en: HEADING DIGEST --> below its heading"
            )
        body = text[comment.end() :]
        marked = body.startswith(MARK)
        sections.append(Section(heading, body.removeprefix(MARK), comment[1], comment[2], marked))
    return sections


def render(sections: list[Section]) -> str:
    """Return a translated page."""
    return "".join(
        f"{section.heading}\n<!-- en: {section.source} {section.digest} -->\n\n"
        f"{MARK if section.marked else ''}{section.text}"
        for section in sections
    )


def updated(source: str, page: str, done: Collection[str] | None = ()) -> str:
    """Return a translated page with the section order and code blocks of its English page.

    :param done: English headings of sections whose translation is now current; None: all of them.
    """
    translations = {section.source: section for section in translated(page)}
    sections = []
    for own in english(source):
        section = translations.get(own.source, replace(own, digest="0" * 12))
        if done is None or own.source in done:
            section = replace(section, digest=own.digest)
        sections.append(replace(_with_code(section, own.code), marked=section.digest != own.digest))
    return render(sections)


def _with_code(section: Section, blocks: list[str]) -> Section:
    """Return a section with other code blocks; unchanged if their number differs."""
    if len(section.code) != len(blocks):
        return section
    following = iter(blocks)
    return replace(section, text=_CODE.sub(lambda _: next(following), section.text))


def main() -> None:
    """Update the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--translated", nargs="+", metavar=("PAGE", "HEADING"), default=[])
    options = parser.parse_args()
    finished, *headings = options.translated or [None]
    for name, source in PAGES.items():
        path = ROOT / name
        done = (headings or None) if name == finished else ()
        text = updated((ROOT / source).read_text(), path.read_text(), done)
        stale = sum(section.marked for section in translated(text))
        path.write_text(text)
        print(f"{name}: {stale} sections are older than their English text")


if __name__ == "__main__":
    main()
