"""Drawings of the pages: a metric of the last runs, the time of runs by state, the offsets of a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_eos.coverage.lanes import WRONG, Kind, Lane, Segment
from airflow_eos.coverage.sentence import range_text
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.run.states import HOLDS_OPEN, IN_WORDS, State
from airflow_eos.wording import counted

WIDTH = 1000.0
"""Width of all drawings."""
MEANING: Mapping[str, str] = {state.value: text for state, text in IN_WORDS.items()}
"""The condition that holds when a state is entered; without states of newer versions."""
_HOLDS_OPEN = frozenset(state.value for state in HOLDS_OPEN)
HEIGHT = 100.0
_FILLED = 0.8
"""Width of a bar as a share of its slot."""
_LEAST = 2.0
"""Height of the smallest bar: a value of 0 is drawn, an unknown one is not."""
SEGMENTS_SHOWN = 2_000
"""Maximum number of segments of a lane in JSON."""
_NARROW = 3.0


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


def states_of(record: RunRecord) -> list[dict[str, Any]]:
    """Return each state with the seconds before it, and the position of that time in a drawing.

    ``open`` says whether the transaction was open meanwhile.
    """
    whole = max((seconds for _, seconds in record.trace), default=0.0) or 1.0
    before, visits, last = 0.0, [], ""
    for state, seconds in record.trace:
        visits.append(
            {
                "state": state,
                "meaning": MEANING.get(state, ""),
                "seconds": round(seconds - before, 3),
                "x": round(before / whole * WIDTH, 2),
                "w": round(max(seconds - before, 0) / whole * WIDTH, 2),
                "open": last in _HOLDS_OPEN,
            }
        )
        before, last = seconds, state
    return visits


def shares_of(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return a stacked bar of the times before each state, for each run.

    Repeated visits of a state are merged into one part.
    """
    rows = []
    for record in records:
        seconds: dict[str, float] = {}
        for visit in states_of(record):
            seconds[visit["state"]] = seconds.get(visit["state"], 0.0) + max(visit["seconds"], 0.0)
        rows.append((record, seconds))
    longest = max((sum(seconds.values()) for _, seconds in rows), default=0.0) or 1.0
    order = [state.value for state in State]
    bars = [
        {
            "run_key": record.run_key,
            "run_id": record.run_id,
            "seconds": round(sum(seconds.values()), 3),
            "parts": _parts(seconds, longest, order),
        }
        for record, seconds in rows
    ]
    met = {state for _, seconds in rows for state in seconds}
    return {"runs": bars, "states": [state for state in order if state in met], "meaning": MEANING}


def _parts(seconds: Mapping[str, float], longest: float, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of one bar, without states of newer versions."""
    x, parts = 0.0, []
    for state in order:
        if state in seconds:
            width = seconds[state] / longest * WIDTH
            part = {"state": state, "seconds": round(seconds[state], 3)}
            parts.append({**part, "x": round(x, 2), "w": round(width, 2)})
            x += width
    return parts


def lane_of(lane: Lane, visible: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return a lane, its segments, and the rectangles that draw it; names only visible runs."""
    segments = lane.segments
    begin = segments[0].start if segments else 0
    end = max((segment.end for segment in segments), default=begin)
    return {
        "where": str(lane.topic_partition),
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
    """Return the text alternative of a lane's drawing."""
    parts = Counter(segment.kind.value for segment in (*lane.segments, *lane.again))
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(parts.items()))
    return f"{lane.topic_partition}, offsets {range_text(begin, end)}" + (f": {kinds}" if kinds else "")


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
    """Return rectangles of a drawing of width 1000; joins those that are too narrow to be seen.

    Problems get a visible minimum width.
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
