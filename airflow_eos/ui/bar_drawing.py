"""A bar chart of a figure of the last runs, as one path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_eos.ui.timeline import WIDTH
from airflow_eos.wording import counted

HEIGHT = 100.0
_FILLED = 0.8
"""Share of its place that a bar takes."""
_LEAST = 2.0
"""Height of the smallest bar: a figure of 0 is drawn, an unknown figure is not."""


def bars_of(figures: Sequence[float | None], text: Callable[[float], str]) -> dict[str, Any] | None:
    """Return a drawing, WIDTH x HEIGHT, and its description; None if no figure is known.

    :param figures: of runs, the oldest first; None for unknown.
    :param text: formats one figure with its unit.
    """
    values = [figure for figure in figures if figure is not None]
    if not values:
        return None
    place, highest = WIDTH / len(figures), max(values) or 1.0
    parts = []
    for number, figure in enumerate(figures):
        if figure is not None:
            x, width = round(number * place, 1), round(place * _FILLED, 1)
            height = round(max(_LEAST, figure / highest * HEIGHT), 1)
            parts.append(f"M{x:g} {HEIGHT:g}v{-height:g}h{width:g}v{height:g}z")
    return {
        "path": "".join(parts),
        "highest": text(max(values)),
        "label": f"last {text(values[-1])}, at most {text(max(values))} in {counted(len(values), 'run')}",
    }
