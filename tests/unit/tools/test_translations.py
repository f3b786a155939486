"""Translated pages have the code of the English ones, and mark outdated sections."""

from __future__ import annotations

import pytest

from tools.translations import MARK, PAGES, ROOT, english, translated, updated

ENGLISH = """# Title

Intro.

## Install

Do this:

```console
# not a heading
pip install x
```

## Use

Now use it.
"""
KOREAN = """# 제목
<!-- en: Title 000000000000 -->

소개.

## 설치
<!-- en: Install 000000000000 -->

이렇게 하세요:

```console
# not a heading
pip install x
```

## 사용
<!-- en: Use 000000000000 -->

이제 사용하세요.
"""
CURRENT = updated(ENGLISH, KOREAN, None)


@pytest.mark.parametrize("page", PAGES)
def test_a_translated_page_says_which_sections_are_older_than_the_english_ones(page):
    """``python tools/translations.py`` marks them; it would change nothing here."""
    source, text = (ROOT / PAGES[page]).read_text(), (ROOT / page).read_text()
    assert text == updated(source, text), f"{PAGES[page]} changed: run python tools/translations.py"


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_of_a_translated_page_are_the_english_ones(page):
    """A reader pastes the same commands, in any language."""
    blocks = [section.code for section in translated((ROOT / page).read_text())]
    assert blocks == [section.code for section in english((ROOT / PAGES[page]).read_text())]


def test_a_current_page_is_left_alone():
    """It has no mark, and its text does not change."""
    assert MARK not in CURRENT
    assert updated(ENGLISH, CURRENT) == CURRENT


def test_a_changed_english_section_marks_its_translation_and_no_other():
    """Until somebody declares it translated again."""
    changed = ENGLISH.replace("Now use it.", "Never use it.")
    marked = updated(changed, CURRENT)
    assert [section.marked for section in translated(marked)] == [False, False, True]
    assert updated(changed, marked) == marked
    assert MARK not in updated(changed, marked, ["Use"])
    assert MARK in updated(changed, marked, ["Install"])


def test_changed_code_is_replaced_and_the_text_around_it_marked():
    """The commands are right even before a translation."""
    changed = ENGLISH.replace("pip install x", "pip install y")
    marked = updated(changed, CURRENT)
    assert "pip install y" in marked
    assert "pip install x" not in marked
    assert [section.marked for section in translated(marked)] == [False, True, False]


def test_a_new_section_is_there_in_english_and_one_that_is_gone_is_not():
    """In the order of the English page."""
    changed = ENGLISH.replace("## Use\n\nNow use it.\n", "## More\n\nRead on.\n")
    sections = translated(updated(changed, CURRENT))
    assert [section.heading for section in sections] == ["# 제목", "## 설치", "## More"]
    assert (sections[-1].marked, "Read on." in sections[-1].text) == (True, True)


def test_a_section_without_its_comment_is_named():
    """Nothing would tell which section it translates."""
    with pytest.raises(SystemExit, match="## 사용"):
        updated(ENGLISH, KOREAN.replace("<!-- en: Use 000000000000 -->\n", ""))


@pytest.mark.parametrize("page", PAGES.values())
def test_headings_of_a_page_that_is_translated_are_different(page):
    """They identify the sections."""
    names = [section.source for section in english((ROOT / page).read_text())]
    assert len(names) == len(set(names))
