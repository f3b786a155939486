"""Finds the records on which a DataFrame process raises, after it has raised.

Spark names the task that failed, not what it read: behind a shuffle, or a Python function in a worker of its
own, nobody knows. So the function is tried again on parts of the ranges, halved each time, until one record
is left, or time is over. Nothing is written: the result goes to Spark's ``noop`` sink. What is named was seen
to raise by itself; a function that raises without any record, or on no part alone, has none named.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_eos.recordbatch.decode import way_on

if TYPE_CHECKING:
    from airflow_eos.model.ranges import OffsetRange

log = logging.getLogger(__name__)

SEARCH_SECONDS = 60.0
"""As long as the search may go on; a try that has begun is cancelled then."""

Raises = Callable[[Sequence["OffsetRange"]], bool]
"""Tells whether the process raises on the records of these ranges, and of no others."""


def failing_part(
    ranges: Sequence[OffsetRange], raises: Raises, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Sequence[OffsetRange]:
    """Return the smallest ranges that were seen to raise; empty: none were.

    :param ranges: what was read when it raised.
    :param seconds: no try begins after them.
    """
    deadline = clock() + seconds
    part: Sequence[OffsetRange] = [one for one in ranges if one.span]
    if not part or raises([]):
        return []
    seen: Sequence[OffsetRange] = []
    while sum(one.span for one in part) > 1:
        found: Sequence[OffsetRange] | None = None
        for half in halves(part):
            if clock() >= deadline:
                return seen
            if raises(half):
                found = half
                break
        if found is None:
            return seen
        seen = part = found
    return seen or part


def halves(ranges: Sequence[OffsetRange]) -> tuple[Sequence[OffsetRange], Sequence[OffsetRange]]:
    """Return two parts with about as many offsets each, in the order of the ranges."""
    left = sum(one.span for one in ranges) // 2
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for one in ranges:
        middle = min(one.end, one.start + left)
        left -= middle - one.start
        first += [replace(one, end=middle)] * (middle > one.start)
        second += [replace(one, start=middle)] * (one.end > middle)
    return first, second


def named(part: Sequence[OffsetRange]) -> tuple[str, str]:
    """Return where a process raises and, of one record, how to go on behind it; for messages."""
    if not part:
        return "", ""
    places = [
        f"{one.topic_partition}, "
        + (f"offset {one.start}" if one.span == 1 else f"offsets {one.start} to {one.end - 1}")
        for one in part[:3]
    ]
    if len(part) > len(places):
        places.append(f"{len(part) - len(places)} more ranges")
    way = ""
    if len(part) == 1 and part[0].span == 1:
        only = part[0]
        way = f" ({way_on(only.topic, only.partition, [(only.start, only.end)])})"
    return f" at {'; '.join(places)}", way
