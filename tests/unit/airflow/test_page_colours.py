"""Every pair of text and background colours on the page is legible, in light and dark mode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import airflow_eos
from airflow_eos.run.states import State

STYLE = (Path(airflow_eos.__file__).parent / "ui" / "static" / "style.css").read_text()
COLOURS = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", STYLE)
DAY = {name: day for name, day, _ in COLOURS}
NIGHT = {name: night for name, _, night in COLOURS}
TEXTS = [
    *((text, back) for text in ("text", "quiet", "link", "good", "bad") for back in ("back", "card")),
    ("warn", "card"),
    *((text, f"{text}-back") for text in ("good", "bad", "warn")),
]


def light(colour: str) -> float:
    """Return the relative luminance of ``#rgb`` or ``#rrggbb``, as defined by WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(channel * 2 for channel in colour[1:])
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = [
        channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4 for channel in parts
    ]
    return sum(share * channel for share, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour: str, other: str) -> float:
    darker, lighter = sorted((light(colour), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [DAY, NIGHT], ids=["day", "night"])
@pytest.mark.parametrize(("text", "back"), TEXTS, ids=lambda name: name)
def test_texts_are_legible(scheme: dict[str, str], text: str, back: str) -> None:
    """A contrast of at least 4.5, for text of any size."""
    assert contrast(scheme[text], scheme[back]) >= 4.5


def test_black_on_white_is_21() -> None:
    """Checks the measure itself."""
    assert contrast("#000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("state", State)
def test_each_state_of_a_run_has_a_colour(state: State) -> None:
    """In the timeline and in its legend, also the states of a run with a table."""
    assert re.search(rf"\.state-{state.value.lower()}\b", STYLE)
