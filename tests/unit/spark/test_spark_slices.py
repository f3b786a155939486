"""Ranges are split so that all cores read, in an order that tasks' numbers keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.placement import plan_slices

ranges = st.lists(
    st.tuples(st.integers(0, 10_000_000), st.integers(0, 5_000_000)).map(lambda t: (t[0], t[0] + t[1])),
    max_size=12,
).map(lambda bounds: [OffsetRange("t", p, a, b) for p, (a, b) in enumerate(bounds)])


@given(ranges, st.integers(1, 64))
def test_slices_tile_the_ranges_exactly_and_in_order(wanted, slots):
    """Every offset is in one slice; neighbours touch; partitions keep their order."""
    slices = plan_slices(wanted, slots)
    joined = []
    for s in slices:
        assert s.span > 0
        if joined and joined[-1].partition == s.partition:
            assert joined[-1].end == s.start
            joined[-1] = OffsetRange("t", s.partition, joined[-1].start, s.end)
        else:
            joined.append(s)
    assert joined == [r for r in wanted if r.span]


def test_one_large_partition_is_read_by_all_cores():
    """Eight cores, one partition: eight slices."""
    slices = plan_slices([OffsetRange("t", 0, 0, 8_000_000)], 8)
    assert [s.span for s in slices] == [1_000_000] * 8


def test_partitions_enough_for_all_cores_are_not_split():
    """Four equal partitions on two cores stay four tasks."""
    wanted = [OffsetRange("t", p, 0, 500_000) for p in range(4)]
    assert plan_slices(wanted, 2) == wanted


def test_a_skewed_partition_is_split_and_small_ones_are_not():
    """Slices follow the offsets, not the number of partitions."""
    wanted = [OffsetRange("t", 0, 0, 900_000), OffsetRange("t", 1, 0, 100_000)]
    assert [s.partition for s in plan_slices(wanted, 4)] == [0, 0, 0, 0, 1]


def test_small_ranges_are_not_worth_several_tasks():
    """A thousand records are one task on any cluster."""
    assert len(plan_slices([OffsetRange("t", 0, 0, 1000)], 100)) == 1


def test_empty_ranges_need_no_task():
    """Nothing to read, nothing planned."""
    assert plan_slices([OffsetRange("t", 0, 7, 7)], 4) == []
