"""Draws the offsets of one partition: read by which run, or unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_eos.coverage.lanes import WRONG, Kind, Lane, Segment
from airflow_eos.coverage.sentence import range_text
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ui.timeline import WIDTH

SEGMENTS_SHOWN = 2_000
"""Of one lane in JSON."""
_NARROW = 3.0


def lane_of(lane: Lane, visible: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return a lane, its segments, and the rectangles that draw it; names only visible runs."""
    segments = lane.segments
    begin = segments[0].start if segments else 0
    end = max((segment.end for segment in segments), default=begin)
    return {
        "where": str(lane.where),
        "topic_id": lane.key.topic_id,
        "gone": lane.bounds is None,
        "label": _label(lane, begin, end),
        "begin": begin,
        "end": end,
        "log_start": lane.bounds.log_start if lane.bounds else None,
        "last_stable_offset": lane.bounds.stable if lane.bounds else None,
        "segments": [_segment(segment, visible) for segment in segments[:SEGMENTS_SHOWN]],
        "segments_left_out": max(0, len(segments) - SEGMENTS_SHOWN),
        "again": [_segment(segment, visible) for segment in lane.again[:SEGMENTS_SHOWN]],
        "shapes": _shapes(segments, begin, end, visible),
        "shapes_again": _shapes(lane.again, begin, end, visible),
    }


def _label(lane: Lane, begin: int, end: int) -> str:
    """Describe the drawing of a lane in words."""
    parts = Counter(segment.kind.value for segment in (*lane.segments, *lane.again))
    counted = ", ".join(f"{number:,} {kind}" for kind, number in sorted(parts.items()))
    return f"{lane.where}, offsets {range_text(begin, end)}" + (f": {counted}" if counted else "")


def _segment(segment: Segment, visible: Mapping[str, RunRecord]) -> dict[str, Any]:
    return {
        "start": segment.start,
        "end": segment.end,
        "kind": segment.kind.value,
        "runs": [run for run in segment.runs if run in visible],
        "deleted": segment.deleted,
    }


def _shapes(
    segments: Sequence[Segment], begin: int, end: int, visible: Mapping[str, RunRecord]
) -> list[dict[str, Any]]:
    """Return rectangles of a drawing that is 1000 wide; joins those that are too narrow to be seen.

    Problems are never too narrow.
    """
    scale = WIDTH / max(end - begin, 1)
    shapes: list[dict[str, Any]] = []
    for segment in segments:
        x, width = (segment.start - begin) * scale, (segment.end - segment.start) * scale
        last = shapes[-1] if shapes else None
        alike = last is not None and (last["kind"], last["deleted"]) == (segment.kind.value, segment.deleted)
        if last is not None and alike and segment.kind is Kind.READ and min(width, last["w"]) < _NARROW:
            last.update(w=x + width - last["x"], end=segment.end, count=last["count"] + 1, run_key=None)
        else:
            if segment.kind in WRONG:
                width = max(width, 2 * _NARROW)
            shape = _segment(segment, visible)
            runs = shape.pop("runs")
            run_key = runs[0] if len(runs) == 1 else None
            shapes.append({**shape, "x": x, "w": width, "count": 1, "run_key": run_key})
    for one_shape in shapes:
        one_shape["title"] = _title(one_shape, visible)
        one_shape["x"], one_shape["w"] = round(one_shape["x"], 2), round(one_shape["w"], 2)
    return shapes


def _title(shape: Mapping[str, Any], visible: Mapping[str, RunRecord]) -> str:
    span = f"offsets {range_text(shape['start'], shape['end'])}"
    text = {
        Kind.READ.value: f"read by {shape['count']:,} runs" if shape["count"] > 1 else "read",
        Kind.AGAIN.value: "read again, on purpose",
        Kind.GAP.value: "read by no run",
        Kind.OVERLAP.value: "read by several runs",
        Kind.LEFT_OUT.value: "left out on purpose",
        Kind.BEFORE.value: "before the first run",
        Kind.UNREAD.value: "not read yet",
        Kind.BEYOND.value: "read, and behind the end of the log now",
    }[shape["kind"]]
    deleted = ", deleted since" if shape["deleted"] else ""
    run = visible.get(shape["run_key"] or "")
    return f"{span}: {text}{deleted}" + (f" ({run.run_id})" if run is not None else "")
