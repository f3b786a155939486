"""Draws what happened: lanes of spans, marks and steps over seconds, and the cells of a log, as SVG.

Every number in a picture comes from a real run; see :mod:`tests.guarantees.pictures`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.guarantees.offset_layout import Cell

WIDTH, LEFT, RIGHT = 960, 190, 20
_LANE, _NOTE, _TOP, _LABEL = 46, 15, 44, 130

STATE_COLOURS = {
    "ASKED": "#cfd8e3",
    "FENCED": "#b4c5da",
    "CHECKED": "#9db4d0",
    "PLANNED": "#86a3c6",
    "SEALED": "#6f92bc",
    "OPEN": "#ffd9a0",
    "WRITTEN": "#ffc266",
    "STAGED": "#ffab2e",
    "PROVEN": "#f59300",
    "COMMITTED": "#3a9d5d",
    "ABORTED": "#c94a4a",
    "UNKNOWN": "#8f6bb3",
}
COLOURS = {
    **STATE_COLOURS,
    "up": "#d7ead9",
    "down": "#c94a4a",
    "stopped": "#e8e8e8",
    "Empty": "#e3e9f0",
    "Ongoing": "#ffc266",
    "PrepareCommit": "#9fd3ae",
    "CompleteCommit": "#3a9d5d",
    "PrepareAbort": "#e0a0a0",
    "CompleteAbort": "#c94a4a",
    "PrepareEpochFence": "#e0a0a0",
}


@dataclass
class Lane:
    """One row: spans ``(from, to, text, colour)``, marks ``(time, text)``, or steps ``(time, value)``."""

    name: str
    spans: list[tuple[float, float, str, str]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of_states(cls, name: str, states: Sequence[tuple[str, float]], end: float) -> Lane:
        """Return a lane of consecutive states; a note lists their times."""
        lane = cls(name)
        for (state, begin), (_, until) in zip(states, [*states[1:], ("", end)], strict=True):
            lane.spans.append((begin, until, state, COLOURS.get(state, "#dddddd")))
        lane.notes = wrapped([f"{state} {begin:.3f}" for state, begin in states])
        return lane

    @property
    def height(self) -> int:
        """Pixels."""
        return _LANE + _NOTE * len(self.notes)


def wrapped(words: Sequence[str], limit: int = 112) -> list[str]:
    """Return lines of at most ``limit`` letters."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > limit:
            lines.append("")
        lines[-1] += (" · " if lines[-1] else "") + word
    return lines


def draw(title: str, lanes: Sequence[Lane], end: float) -> str:
    """Return the SVG of lanes from 0 to ``end`` seconds."""
    height = _TOP + sum(lane.height for lane in lanes) + 30
    out = [_head(height, title)]
    scale = (WIDTH - LEFT - RIGHT) / end
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 600) if end / s <= 12)
    tick = 0.0
    while tick <= end:
        x = LEFT + tick * scale
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 22}"/>')
        out.append(_text(x, height - 8, f"{tick:g} s", "small", "middle"))
        tick = round(tick + step, 6)
    y = _TOP
    for lane in lanes:
        out += _lane(lane, y, scale)
        y += lane.height
    out.append("</svg>\n")
    return "\n".join(out)


def _lane(lane: Lane, y: float, scale: float) -> list[str]:
    out = [_text(LEFT - 10, y + 22, lane.name, "name", "end")]
    for begin, until, text, colour in lane.spans:
        x, width = LEFT + begin * scale, max((until - begin) * scale, 1.5)
        out.append(
            f'<rect x="{x:.1f}" y="{y + 6}" width="{width:.1f}" height="24" fill="{colour}">'
            f"<title>{html.escape(text)} {begin:.3f} s to {until:.3f} s</title></rect>"
        )
        if width > 7 * len(text) + 4:
            out.append(_text(x + 4, y + 22, text, "inside"))
    if lane.steps:
        out += _steps(lane, y, scale)
    labels: list[tuple[float, list[str]]] = []
    for moment, text in sorted(lane.marks):
        x = LEFT + moment * scale
        out.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{y + 34}"/>')
        if labels and x - labels[-1][0] < _LABEL:  # would overlap
            labels[-1][1].append(f"{text} {moment:.3f}")
        else:
            labels.append((x, [f"{text} {moment:.3f}"]))
    for x, texts in labels:
        side = "end" if x > WIDTH - 2 * _LABEL else "start"
        out.append(_text(x + (-4 if side == "end" else 4), y + 42, " · ".join(texts), "event", side))
    for number, note in enumerate(lane.notes):
        out.append(_text(LEFT, y + _LANE + 10 + _NOTE * number, note, "small"))
    return out


def _steps(lane: Lane, y: float, scale: float) -> list[str]:
    top = max(value for _, value in lane.steps) or 1
    points, last = [], 0
    for moment, value in lane.steps:
        x = LEFT + moment * scale
        points += [f"{x:.1f},{y + 32 - 26 * last / top:.1f}", f"{x:.1f},{y + 32 - 26 * value / top:.1f}"]
        last = value
    points.append(f"{WIDTH - RIGHT},{y + 32 - 26 * last / top:.1f}")
    out = [f'<polyline points="{" ".join(points)}"/>']
    shown = 0
    for moment, value in lane.steps:
        if value != shown:
            out.append(_text(LEFT + moment * scale + 3, y + 32 - 26 * value / top + 11, str(value), "small"))
            shown = value
    return out


def draw_log(title: str, rows: Sequence[tuple[str, Sequence[Cell], str]]) -> str:
    """Return the SVG of partitions, a box per offset; each row has a name, its cells and a line below."""
    box, gap = 78, 100
    out = [_head(_TOP + gap * len(rows) + 8, title)]
    fills = {"record": "#86a3c6", "aborted": "#f0d4d4", "commit marker": "#3a9d5d", "abort marker": "#c94a4a"}
    for number, (name, cells, note) in enumerate(rows):
        y = _TOP + gap * number
        out.append(_text(LEFT - 10, y + 30, name, "name", "end"))
        for cell in cells:
            x = LEFT + cell.offset * box
            out.append(f'<rect x="{x}" y="{y + 8}" width="{box - 4}" height="36" fill="{fills[cell.kind]}"/>')
            first, _, second = cell.text.partition(" ")
            out.append(_text(x + box / 2 - 2, y + (24 if second else 30), first, "inside", "middle"))
            if second:
                out.append(_text(x + box / 2 - 2, y + 38, second, "inside", "middle"))
            out.append(_text(x + box / 2 - 2, y + 58, str(cell.offset), "small", "middle"))
        out.append(_text(LEFT, y + 76, note, "small"))
    out.append("</svg>\n")
    return "\n".join(out)


def _head(height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="sans-serif">\n<style>.name{{font-size:13px;font-weight:bold}}'
        ".small{font-size:11px;fill:#555}.inside{font-size:11px}.event{font-size:11px;fill:#a02020}"
        ".grid{stroke:#e6e6e6}.mark{stroke:#a02020;stroke-width:2}"
        "polyline{fill:none;stroke:#2b5c9e;stroke-width:2}.title{font-size:15px;font-weight:bold}</style>\n"
        f'<rect width="100%" height="100%" fill="white"/>\n{_text(12, 24, title, "title")}'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
