"""Splits pinned ranges into slices, one task each, so that all cores read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_eos.model.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_SPAN = 20_000
"""Offsets below which a slice is not worth a task of its own."""


def plan_slices(ranges: Iterable[OffsetRange], slots: int, min_span: int = MIN_SPAN) -> list[OffsetRange]:
    """Split ranges so that ``slots`` tasks share the offsets evenly; empty ranges disappear.

    Slices are in the order of the ranges, those of one partition in offset order and next to each other: a
    task's number then tells where its records stand.

    :param slots: tasks that can run at once.
    """
    wanted = [r for r in ranges if r.span]
    total = sum(r.span for r in wanted)
    slices: list[OffsetRange] = []
    for r in wanted:
        count = min(-(-slots * r.span // total), max(1, r.span // min_span))
        bounds = [r.start + r.span * i // count for i in range(count + 1)]
        slices += [OffsetRange(r.topic, r.partition, start, end) for start, end in pairwise(bounds)]
    return slices
