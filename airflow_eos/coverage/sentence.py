"""The sentence that says whether a pipeline's coverage is complete, or what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.coverage.lanes import WRONG, Kind, Lane, Segment
from airflow_eos.wording import counted

_PLACES_SHOWN = 3  # in the sentence


def sentence(
    lanes: Sequence[Lane], runs: int, problems: Sequence[tuple[Lane, Segment]], reprocessings: int
) -> str:
    """Return how many runs cover which offsets, or the first problems."""
    if not runs:
        return "No run is committed"
    read = [
        (lane, parts)
        for lane in lanes
        if (parts := [part for part in lane.segments if part.kind not in (Kind.UNREAD, Kind.BEFORE)])
    ]
    if not read:
        return f"{counted(runs, 'run')} had nothing to read"
    if problems:
        return f"{_counts(problems)} in what {counted(runs, 'run')} read: {_places(problems)}"
    seen = [part for _, parts in read for part in parts]
    repeating_runs = {run for lane, _ in read for part in lane.again for run in part.runs}
    only_repeating = repeating_runs - {run for part in seen for run in part.runs}
    tiling = runs - len(only_repeating) - reprocessings
    repeating = len(repeating_runs) + reprocessings
    left_out = sum(part.kind is Kind.LEFT_OUT for part in seen)
    notes = [
        *([f"{counted(repeating, 'run')} read some of it again, on purpose"] if repeating else []),
        *([f"{counted(left_out, 'range')} left out on purpose"] if left_out else []),
    ]
    verb = "tiles" if tiling == 1 else "tile"
    whole = f"{counted(tiling, 'run')} {verb} {_tiled(read)} without gap or overlap"
    return "; ".join((whole, *notes))


def _tiled(read: Sequence[tuple[Lane, Sequence[Segment]]]) -> str:
    """Return the offsets that were read, by partition if there are few partitions."""
    ranges = [(lane.topic_partition, parts[0].start, parts[-1].end) for lane, parts in read]
    if len(ranges) > _PLACES_SHOWN:
        total = sum(end - start for _, start, end in ranges)
        return f"{counted(total, 'offset')} of {counted(len(ranges), 'partition')}"
    texts = [f"{range_text(start, end)} of {place}" for place, start, end in ranges]
    return f"offsets {' and '.join(filter(None, (', '.join(texts[:-1]), texts[-1])))}"


def range_text(start: int, end: int) -> str:
    """Return an offset range as text, with an exclusive end: ``[1,438, 2,162)``."""
    return f"[{start:,}, {end:,})"


_NAMES = {
    Kind.GAP: ("gap", "gaps"),
    Kind.OVERLAP: ("overlap", "overlaps"),
    Kind.BEYOND: ("range behind the end of its log", "ranges behind the end of their log"),
}


def _counts(problems: Sequence[tuple[Lane, Segment]]) -> str:
    numbers = {kind: sum(part.kind is kind for _, part in problems) for kind in WRONG}
    return " and ".join(
        f"{number:,} {_NAMES[kind][number != 1]}" for kind, number in numbers.items() if number
    )


def _places(problems: Sequence[tuple[Lane, Segment]]) -> str:
    shown = [place(*problem) for problem in problems[:_PLACES_SHOWN]]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more:,} more" if more else "")


def place(lane: Lane, part: Segment) -> str:
    """Return what is wrong with a segment, and where."""
    span, was, is_now = f"offsets {range_text(part.start, part.end)}", "were", "are"
    if part.end - part.start == 1:
        span, was, is_now = f"offset {part.start:,}", "was", "is"
    span = f"{span} of {lane.topic_partition} {was} read"
    if part.kind is Kind.GAP:
        return f"{span} by no run" + (f", and {is_now} deleted" if part.deleted else "")
    if part.kind is Kind.OVERLAP:
        readers = f"{len(part.runs)} runs" if len(part.runs) > 1 else "several runs"
        return f"{span} by {readers}"
    assert lane.bounds is not None
    return f"{span}, and the log ends at {lane.bounds.stable:,} now"
