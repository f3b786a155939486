"""Given ranges against the log: which are refused for good, and which a retry may accept."""

from __future__ import annotations

import pytest

from airflow_eos.exceptions import OffsetsOutOfRange, RangeUndecided
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Explicit, OffsetRange, TopicPartition
from airflow_eos.operators.retriable import is_final
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.scenes import Scene, before, spec

SOURCE = TopicPartition("src", 0)


def test_a_range_that_holds_an_open_transaction_is_worth_another_try() -> None:
    """Another client's transaction is open below the range's end: a retry succeeds once it has ended."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "r0")
    upstream = scene.broker.init_producer("upstream")
    scene.broker.add_partitions(upstream, [SOURCE])
    scene.broker.produce(upstream, SOURCE, 0, "r1")
    given = spec(ranges=Explicit((OffsetRange("src", 0, 0, 2),)))
    with pytest.raises(RangeUndecided, match="ends at 2, the last stable offset is 1") as caught:
        before(scene, given)
    assert not is_final(caught.value)
    scene.broker.end_transaction(upstream, commit=True)
    before(scene, given)
    assert scene._visible("out") == ["r0", "r1"]


def test_a_range_beyond_the_end_of_the_log_is_refused_for_good() -> None:
    """A retry cannot find records that the log never had, or has deleted."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "r0")
    with pytest.raises(OffsetsOutOfRange, match="ends at 2, the log at 1") as caught:
        before(scene, spec(ranges=Explicit((OffsetRange("src", 0, 0, 2),))))
    assert is_final(caught.value)


def test_a_plan_with_several_ranges_of_a_partition_commits_the_highest_end() -> None:
    """Ranges that overlap, because a cursor was moved back between rounds, leave one start and one end."""
    ranges = (OffsetRange("src", 0, 0, 9), OffsetRange("src", 0, 2, 5))
    plan = RunPlan("reprocess", ranges, {}, "group.runs", advances=False)
    assert (plan.starts, plan.ends) == ({SOURCE: 0}, {SOURCE: 9})
