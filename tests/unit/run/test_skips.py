"""Skipped offsets are removed from a plan, and nothing else changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.run.skips import without

bounds = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)


def a_plan(*ranges: OffsetRange) -> RunPlan:
    return RunPlan("cursor", ranges, {"t": "id"}, "group", advances=True)


@given(bounds, bounds, st.lists(st.tuples(st.integers(0, 1), bounds), max_size=5))
def test_what_is_left_is_what_was_there_without_what_is_skipped(
    first: list[int], second: list[int], skips: list[tuple[int, list[int]]]
) -> None:
    """Each offset once; starts and ends as before, otherwise the cursor would be lost."""
    plan = a_plan(OffsetRange("t", 0, *first), OffsetRange("t", 1, *second))
    skip = [OffsetRange("t", partition, *bound) for partition, bound in skips]
    rest = without(plan, skip)

    def offsets(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
        return [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]

    skipped = set(offsets(skip))
    assert offsets(list(rest.ranges)) == [pair for pair in offsets(list(plan.ranges)) if pair not in skipped]
    assert (rest.starts, rest.ends) == (plan.starts, plan.ends)
    losses = [OffsetRange(r["topic"], r["partition"], r["start"], r["end"]) for r in rest.accepted_loss]
    assert set(offsets(losses)) == skipped & set(offsets(list(plan.ranges)))
    assert len(rest.notes) == len(losses)


def test_a_plan_that_nothing_is_taken_out_of_is_the_same() -> None:
    """Also if the skipped offsets are in other partitions."""
    plan = a_plan(OffsetRange("t", 0, 5, 9))
    assert without(plan, ()) is plan
    assert without(plan, [OffsetRange("t", 0, 9, 12), OffsetRange("t", 1, 5, 9)]) is plan


def test_the_pieces_are_said() -> None:
    """A hole in the middle, and its entry in the record."""
    rest = without(a_plan(OffsetRange("t", 0, 5, 20)), [OffsetRange("t", 0, 8, 10)])
    assert rest.ranges == (OffsetRange("t", 0, 5, 8), OffsetRange("t", 0, 10, 20))
    assert rest.notes == ("t-0: offsets 8 to 9 are skipped (skip_offsets)",)
    assert rest.accepted_loss == ({"topic": "t", "partition": 0, "start": 8, "end": 10, "skipped": True},)
