"""The charts of reports, as SVG: bars of contenders, the parts of one task, and curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEFT, _WIDTH, _BAR, _GAP = 250, 420, 14, 12
_WALL, _CPU, _TEXT = "#1f6f8b", "#b7c9d3", "#333"

_FONT = f'font-family="sans-serif" font-size="12" fill="{_TEXT}"'


def bar_chart(title: str, rows: Mapping[str, tuple[float, float]]) -> str:
    """Return an SVG document.

    :param rows: (seconds, CPU seconds) per contender, drawn in order.
    """
    top = 60
    height = top + len(rows) * (2 * _BAR + _GAP) + 10
    largest = max(max(pair) for pair in rows.values())
    parts: list[str] = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}" {_FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
        _key(_LEFT, _WALL, "seconds"),
        _key(_LEFT + 90, _CPU, "CPU seconds, all processes"),
    ]
    for number, (name, pair) in enumerate(rows.items()):
        y = top + number * (2 * _BAR + _GAP)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + _BAR + 4}" text-anchor="end">{escape(name)}</text>')
        for line, (value, colour) in enumerate(zip(pair, (_WALL, _CPU), strict=True)):
            parts.append(_bar(y + line * _BAR, value, largest, colour))
    return "\n".join([*parts, "</svg>", ""])


def _bar(y: int, value: float, largest: float, colour: str) -> str:
    width = value / largest * _WIDTH
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
        f'<text x="{_LEFT + width + 5:.1f}" y="{y + _BAR - 4}" font-size="11">{value:.2f}</text>'
    )


def _key(x: int, colour: str, text: str) -> str:
    return (
        f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>'
        f'<text x="{x + 14}" y="41" font-size="11">{text}</text>'
    )


def report_chart(report: Mapping[str, Any]) -> str:
    """Return the chart of a report of ``python -m benchmarks``."""
    rows = {
        name: (figures["median_seconds"], figures["median_cpu_seconds"] or 0.0)
        for name, figures in report["contenders"].items()
    }
    size = f"{report['records']:,} records, {report['partitions']} partitions"
    return bar_chart(f"{size}, median of {report['rounds']} rounds", rows)


_PARTS = ("#1f6f8b", "#b7c9d3", "#e0a458", "#7a9e7e", "#c8553d", "#8d6a9f", "#5c6b73")


def timeline_chart(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG document: a bar per row, from its start to its end, in consecutive parts.

    :param rows: seconds of each part, in order; the same parts in every row.
    """
    names = list(next(iter(rows.values())))
    longest = max(sum(parts.values()) for parts in rows.values())
    top, step = 60 + 16 * ((len(names) + 3) // 4), 3 * _BAR
    width, height = _LEFT + _WIDTH + 90, top + len(rows) * step
    drawn: list[str] = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        key = _key(10 + number % 4 * 185, _PARTS[number % 7], escape(name))
        drawn.append(f'<g transform="translate(0 {number // 4 * 16})">{key}</g>')
    for number, (name, parts) in enumerate(rows.items()):
        y, x = top + number * step, float(_LEFT)
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + _BAR + 4}" text-anchor="end">{escape(name)}</text>')
        for part, seconds in parts.items():
            long = seconds / longest * _WIDTH
            colour = _PARTS[names.index(part) % 7]
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{2 * _BAR - 6}" fill="{colour}"/>'
            )
            x += long
        drawn.append(f'<text x="{x + 5:.1f}" y="{y + _BAR + 2}">{sum(parts.values()):.1f} s</text>')
    return "\n".join([*drawn, "</svg>", ""])


def curve_chart(title: str, curves: Mapping[str, Mapping[int, float]]) -> str:
    """Return an SVG document: a line per curve, of seconds by a number on a logarithmic axis.

    :param curves: seconds by number.
    """
    left, top, width, height = 50, 40 + 16 * ((len(curves) + 1) // 2), 640, 260
    largest = max(max(values.values()) for values in curves.values())
    most = max(max(values) for values in curves.values())
    decades = max(math.log10(most), 1.0)
    size = f'width="{left + width + 40}" height="{top + height + 40}"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for part in range(5):
        y, seconds = top + height - part * height / 4, largest * part / 4
        drawn.append(f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#ddd"/>')
        drawn.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{seconds:.1f}</text>')
    for number in sorted({number for values in curves.values() for number in values}):
        x = left + math.log10(number) / decades * width
        drawn.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{number:,}</text>')
    for place, (name, values) in enumerate(curves.items()):
        colour = _PARTS[place % len(_PARTS)]
        x, y = 10 + place % 2 * 330, 16 * (place // 2)
        drawn.append(f'<g transform="translate(0 {y})">{_key(x, colour, escape(name))}</g>')
        path = " ".join(
            f"{left + math.log10(number) / decades * width:.1f},{top + height - value / largest * height:.1f}"
            for number, value in sorted(values.items())
        )
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join([*drawn, "</svg>", ""])
