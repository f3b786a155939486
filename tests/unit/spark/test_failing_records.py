"""The search for the records that make a process raise reports only what was seen to raise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_eos.exceptions import RunFailed
from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.failing_records import (
    FailingPart,
    FailingRecords,
    failing_part,
    failing_records,
    halves,
    named,
)

READ = [OffsetRange("a", 0, 10, 20), OffsetRange("a", 1, 5, 5), OffsetRange("a", 2, 0, 1000)]


def holds(ranges: Sequence[OffsetRange], partition: int, offset: int) -> bool:
    return any(r.partition == partition and r.start <= offset < r.end for r in ranges)


@pytest.mark.parametrize(("partition", "offset"), [(0, 10), (0, 19), (2, 0), (2, 517), (2, 999)])
def test_one_record_is_found_wherever_it_is(partition: int, offset: int) -> None:
    """With about twice as many tries as the number of offsets has binary digits."""
    tries = []

    def raises(ranges: Sequence[OffsetRange]) -> bool:
        tries.append(ranges)
        return holds(ranges, partition, offset)

    assert failing_part(READ, raises, 60) == FailingPart([OffsetRange("a", partition, offset, offset + 1)])
    assert len(tries) <= 2 * 10 + 1


def test_what_raises_together_only_is_not_narrowed_further() -> None:
    """The result is the smallest part that raised, which may have several ranges."""
    failing = failing_part(READ, lambda part: holds(part, 2, 3) and holds(part, 2, 200), 60).ranges
    assert failing
    assert all(holds(failing, 2, offset) for offset in (3, 200))
    assert failing_part(READ, lambda part: holds(part, 0, 10) and holds(part, 2, 999), 60).ranges == []


def test_what_raises_without_a_record_has_none() -> None:
    """Otherwise a wrong column name would be blamed on the first record."""
    assert failing_part(READ, lambda part: True, 60) == FailingPart([])
    assert failing_part([OffsetRange("a", 0, 3, 3)], lambda part: True, 60) == FailingPart([])


def test_only_record_of_all_needs_one_try() -> None:
    """The whole is already known to raise."""
    only = [OffsetRange("a", 0, 7, 8)]
    assert failing_part(only, bool, 60) == FailingPart(only)


def test_search_ends_in_time_with_what_it_has() -> None:
    """A slow try is the last one."""
    seconds = iter(range(0, 1000, 5))
    failing = failing_part(READ, lambda part: holds(part, 2, 517), 45, clock=lambda: next(seconds))
    assert 1 < sum(r.span for r in failing.ranges) < 1010
    assert holds(failing.ranges, 2, 517)
    assert failing.cut_after == 45


@pytest.mark.parametrize("tries", [1, 2, 3, 7])
def test_what_a_cut_search_has_seen_does_not_read_like_a_finding(tries: int) -> None:
    """Also if the try that was interrupted, and proves nothing, was the last half."""
    clock = iter([0, *[1] * (tries if tries > 1 else 0), *[60] * 100])
    done: list[int] = []

    def raises(part: Sequence[OffsetRange]) -> bool:
        done.append(1)
        return len(done) < tries and holds(part, 2, 517)

    part = failing_part(READ, raises, 60, clock=lambda: next(clock))
    place, way = named(part)
    assert part.cut_after == 60
    assert place.startswith(" somewhere in ")
    assert "(the search for the record was given up after 60 s)" in place
    assert way == ""


def test_halves_are_the_whole_in_order() -> None:
    """Each has about as many offsets; none is in both."""
    first, second = halves(READ)
    assert [first, second] == [
        [OffsetRange("a", 0, 10, 20), OffsetRange("a", 2, 0, 495)],
        [OffsetRange("a", 2, 495, 1000)],
    ]


def test_places_are_named_for_people() -> None:
    """One record, with the way to skip it; several, with their ranges; long lists are cut."""
    place, way = named(FailingPart([OffsetRange("a", 0, 7, 8)]))
    assert place == " at a-0, offset 7"
    assert 'skip_offsets=[["a", 0, 7, 8]]' in way
    assert named(FailingPart(READ[:1] * 5)) == (
        " at " + "; ".join(["a-0, offsets 10 to 19"] * 3) + "; 2 more ranges",
        "",
    )
    assert named(FailingPart([])) == ("", "")


BAD = [("a", 0, 10), ("a", 0, 19), ("a", 2, 0), ("a", 2, 516), ("a", 2, 517), ("a", 2, 999)]
RECORDS = [FailingRecord(topic, partition, offset, "why") for topic, partition, offset in BAD]


def why(part: Sequence[OffsetRange]) -> str | None:
    return "why" if any(holds(part, partition, offset) for _, partition, offset in BAD) else None


def test_all_records_are_found_wherever_they_are() -> None:
    """Each with about as many tries as the number of offsets has binary digits, and a few more."""
    tries = []

    def counted(part: Sequence[OffsetRange]) -> str | None:
        tries.append(sum(r.span for r in part))
        return why(part)

    assert failing_records(READ, counted, 6, 60) == FailingRecords(RECORDS)
    assert len(tries) <= 2 * len(BAD) * 10
    assert sum(tries) < 10 * 1010


def test_the_search_ends_with_one_record_more_than_allowed() -> None:
    """The first ones, in the order of the ranges."""
    failing = failing_records(READ, why, 3, 60)
    assert failing.records == RECORDS[:4]
    assert (failing.cut_after, failing.is_not_one_record) == (None, False)


def test_a_record_is_named_only_where_it_raises_alone() -> None:
    """Two records that raise only together are not named, nor is one if a process raises without any."""
    failing = failing_records(
        READ, lambda part: "why" if holds(part, 0, 12) and holds(part, 2, 3) else None, 9, 60
    )
    assert failing == FailingRecords([], is_not_one_record=True)
    assert failing_records(READ, lambda _: "why", 9, 60) == FailingRecords([], is_not_one_record=True)
    assert failing_records(READ, lambda _: None, 9, 60).is_not_one_record
    answers = iter([None, "why"])  # an intermittent failure
    nothing_left = [OffsetRange("a", 0, 10, 10)]
    assert failing_records(nothing_left, lambda _: next(answers), 9, 60).is_not_one_record


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_search_for_all_records_ends_in_time(cancelled: bool) -> None:
    """A try that ends too late, or was cancelled, does not count."""
    seconds = iter(range(0, 1000, 5))

    def slow(part: Sequence[OffsetRange]) -> str | None:
        if cancelled and next(seconds) >= 100:
            raise RunFailed("the job was cancelled")
        return why(part)

    failing = failing_records(READ, slow, 6, 100, clock=lambda: next(seconds))
    assert failing.cut_after == 100
    assert failing.records == RECORDS[: len(failing.records)]
    assert failing != FailingRecords(RECORDS)


def test_another_failure_in_a_try_is_the_runs() -> None:
    """A lost executor proves nothing about a record."""

    def lost(_: Sequence[OffsetRange]) -> str | None:
        raise RunFailed("an executor was lost")

    with pytest.raises(RunFailed, match="executor"):
        failing_records(READ, lost, 6, 60)
