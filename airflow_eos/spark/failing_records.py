"""Finds the records on which a DataFrame process raises: one to name, or all of them.

Spark names the failed task, not its offsets, which are unknown after a shuffle or in a Python function with
its own worker. The function is therefore tried again on halves of the ranges until one record is left, or
the time is up. Nothing is written: the result goes to Spark's ``noop`` sink. Only records that raise on their
own are named.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from airflow_eos.exceptions import EosError
from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.recordbatch.decode import way_on

T = TypeVar("T")
log = logging.getLogger(__name__)

SEARCH_SECONDS = 60.0
"""Time limit of the search; a try that is running then is cancelled."""

Raises = Callable[[Sequence["OffsetRange"]], bool]
"""Returns whether the process raises on the records of these ranges alone."""
Failure = Callable[[Sequence["OffsetRange"]], "str | None"]
"""Returns the error of the process on the records of these ranges alone; None without an error."""


@dataclass(frozen=True, slots=True)
class FailingPart:
    """The result of a search.

    :param ranges: the smallest ranges that raised; empty if none did.
    :param cut_after: seconds after which the search was stopped; None if it completed.
    """

    ranges: Sequence[OffsetRange]
    cut_after: float | None = None


def failing_part(
    ranges: Sequence[OffsetRange], raises: Raises, seconds: float, clock: Callable[[], float] = time.monotonic
) -> FailingPart:
    """Search for the smallest ranges that raise.

    :param seconds: time limit; a try that ends later does not count.
    """
    tries = _Tries(raises, clock() + seconds, clock)
    part: Sequence[OffsetRange] = [offsets for offsets in ranges if offsets.span]
    seen: Sequence[OffsetRange] = []
    try:
        if not part or tries.result([]):
            return FailingPart(seen)
        while sum(offsets.span for offsets in part) > 1:
            half = next((half for half in halves(part) if tries.result(half)), None)
            if half is None:
                return FailingPart(seen)
            seen = part = half
    except TimeoutError:
        return FailingPart(seen, seconds)
    return FailingPart(seen or part)


@dataclass(frozen=True, slots=True)
class FailingRecords:
    """The result of a search for all records.

    :param cut_after: seconds after which the search was stopped; None if it completed.
    :param is_not_one_record: a part raises although neither half does, or it raises without any record.
    """

    records: Sequence[FailingRecord]
    cut_after: float | None = None
    is_not_one_record: bool = False


def failing_records(
    ranges: Sequence[OffsetRange],
    failure: Failure,
    at_most: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> FailingRecords:
    """Search for all records on which a process raises, in ranges on which it has raised.

    If the first half of a part does not raise, the second one must, so its halves are tried at once: finding
    one record among n takes about log2(n) to 2 log2(n) tries, on halves of halves.

    :param at_most: the search ends with one more.
    :param seconds: time limit; a try that ends later does not count.
    """
    tries = _Tries(failure, clock() + seconds, clock)
    records: list[FailingRecord] = []
    raising: list[Sequence[OffsetRange]] = [[offsets for offsets in ranges if offsets.span]]
    try:
        if not raising[0] or tries.result([]) is not None:
            return FailingRecords(records, is_not_one_record=True)
        while raising and len(records) <= at_most:
            part = raising.pop()
            if sum(offsets.span for offsets in part) > 1:
                first, second = halves(part)
                if tries.result(first) is None:
                    raising.append(second)
                else:
                    raising += [first] if tries.result(second) is None else [second, first]
                continue
            cause = tries.result(part)
            if cause is None:
                return FailingRecords(records, is_not_one_record=True)
            records.append(FailingRecord(part[0].topic, part[0].partition, part[0].start, cause))
    except TimeoutError:
        return FailingRecords(records, cut_after=seconds)
    return FailingRecords(records)


@dataclass(frozen=True)
class _Tries(Generic[T]):
    attempt: Callable[[Sequence[OffsetRange]], T]
    deadline: float
    clock: Callable[[], float]

    def result(self, part: Sequence[OffsetRange]) -> T:
        """Return the result of a try that ends in time; raises TimeoutError for others."""
        if self.clock() >= self.deadline:
            raise TimeoutError
        try:
            result = self.attempt(part)
        except EosError:
            if self.clock() < self.deadline:
                raise
            raise TimeoutError from None
        if self.clock() >= self.deadline:
            raise TimeoutError
        return result


def halves(ranges: Sequence[OffsetRange]) -> tuple[Sequence[OffsetRange], Sequence[OffsetRange]]:
    """Return two parts with about the same number of offsets, in the order of the ranges."""
    left = sum(offsets.span for offsets in ranges) // 2
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for offsets in ranges:
        middle = min(offsets.end, offsets.start + left)
        left -= middle - offsets.start
        first += [replace(offsets, end=middle)] * (middle > offsets.start)
        second += [replace(offsets, start=middle)] * (offsets.end > middle)
    return first, second


def named(part: FailingPart) -> tuple[str, str]:
    """Return the place of the failure and, for one record, how to skip it; for messages."""
    cut = (
        ""
        if part.cut_after is None
        else f" (the search for the record was given up after {part.cut_after:.0f} s)"
    )
    if not part.ranges:
        return (f" somewhere in what was read{cut}" if cut else ""), ""
    places = [
        f"{offsets.topic_partition}, "
        + (
            f"offset {offsets.start}"
            if offsets.span == 1
            else f"offsets {offsets.start} to {offsets.end - 1}"
        )
        for offsets in part.ranges[:3]
    ]
    if len(part.ranges) > len(places):
        places.append(f"{len(part.ranges) - len(places)} more ranges")
    if cut:
        return f" somewhere in {'; '.join(places)}{cut}", ""
    way = ""
    first = part.ranges[0]
    if len(part.ranges) == 1 and first.span == 1:
        way = f" ({way_on(first.topic, first.partition, [(first.start, first.end)])})"
    return f" at {'; '.join(places)}", way
