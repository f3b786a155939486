"""Ranges are split so that all cores read, in the order of the task numbers."""

from __future__ import annotations

from contextlib import closing, nullcontext, suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_eos.exceptions import ProtocolViolation
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark import source
from airflow_eos.spark.placement import PACKED_WEIGHT, SLICE_COST, pack_slices, plan_slices
from airflow_eos.wire.client_config import ClientConfig

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
    """There is nothing to read, and nothing is planned."""
    assert plan_slices([OffsetRange("t", 0, 7, 7)], 4) == []


many = st.lists(st.integers(0, 60_000), max_size=300).map(
    lambda spans: [OffsetRange(f"t{p % 2}", p // 2, 7 * p, 7 * p + span) for p, span in enumerate(spans)]
)


@given(st.one_of(ranges, many), st.integers(1, 16))
def test_packed_slices_tile_the_ranges_exactly_and_in_order(wanted, slots):
    """Whatever the plan: every offset is in one slice, in order; a task has a partition at most once."""
    tasks = pack_slices(plan_slices(wanted, slots), slots)
    joined = []
    for together in tasks:
        assert together
        places = [piece.topic_partition for piece in together]
        assert len(set(places)) == len(places)
        for piece in together:
            assert piece.span > 0
            last = joined[-1] if joined else None
            if last is not None and last.topic_partition == piece.topic_partition:
                assert last.end == piece.start
                joined[-1] = OffsetRange(piece.topic, piece.partition, last.start, piece.end)
            else:
                joined.append(piece)
    assert joined == [r for r in wanted if r.span]


@given(many, st.integers(1, 16))
@example([OffsetRange("t", p, 0, 21_023 if p == 8 else 1) for p in range(9)], 4)
def test_packed_tasks_are_about_even_and_enough(wanted, slots):
    """No task has twice its share, and no slot is idle while another could give it work."""
    slices = plan_slices(wanted, slots)
    tasks = pack_slices(slices, slots)
    assert min(len(slices), slots) <= len(tasks) <= len(slices)
    weights = [sum(piece.span + SLICE_COST for piece in together) for together in tasks]
    heaviest = max((piece.span + SLICE_COST for piece in slices), default=0)
    share = min(PACKED_WEIGHT, sum(weights) / (2 * slots))
    assert all(weight <= share + 2 * heaviest for weight in weights)


def test_two_thousand_small_partitions_are_a_handful_of_tasks():
    """Ten records each, on two cores; earlier, each had its own Spark task."""
    slices = plan_slices([OffsetRange("t", p, 0, 10) for p in range(2000)], 2)
    tasks = pack_slices(slices, 2)
    assert len(slices) == 2000
    assert [len(together) for together in tasks] == pytest.approx([182] * 11, abs=1)


def test_large_partitions_keep_a_task_each():
    """Half a million offsets are worth a task, however many there are."""
    slices = [OffsetRange("t", p, 0, 500_000) for p in range(40)]
    assert pack_slices(slices, 2) == tuple((piece,) for piece in slices)


def test_few_small_partitions_keep_a_task_each():
    """A process that is slow for each record uses all cores, as before."""
    slices = [OffsetRange("t", p, 0, 10) for p in range(4)]
    assert pack_slices(slices, 2) == tuple((piece,) for piece in slices)


def _fails(records):
    with suppress(OSError):
        list(records)


def _leaves(records):
    next(records)


def _closes(records):
    with closing(records):
        next(records)


@pytest.mark.parametrize("read", [_fails, _leaves, _closes, id])
def test_a_slice_that_is_not_read_to_its_end_is_refused(read, monkeypatch):
    """Also after an error of the read that the function caught, or if it closed the records."""

    def records(*_):
        yield 1
        if read is _fails:
            raise OSError("disk")
        yield 2

    monkeypatch.setattr(source, "BrokerConnections", nullcontext)
    monkeypatch.setattr(source, "first_answers", lambda _, slices: ((n, None) for n in range(len(slices))))
    monkeypatch.setattr(source, "arrow_batches", records)
    slices = [OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 0, 5)]
    config = ClientConfig.of({"bootstrap.servers": "a:1"})

    def reading(use):
        return [use(part) for _, part in source.read_slices(config, slices)]

    with pytest.raises(ProtocolViolation, match=r"partition=0.* was not read to its end"):
        reading(read)
    if read is not _fails:
        assert reading(list) == [[1, 2]] * 2
