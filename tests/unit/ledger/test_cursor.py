"""The cursor after a run."""

from __future__ import annotations

from airflow_eos.ledger.cursor import advanced
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec

READ, LEFT = TopicPartition("src", 0), TopicPartition("src", 1)


def test_an_epoch_is_kept_with_its_offset():
    """Given ranges move an offset without its epoch: a later leader may have written those records."""
    spec = RunSpec(
        kafka={"bootstrap.servers": "h:1"},
        pipeline="pipe",
        run_id="r1",
        source_topics=("src",),
        sink_topic="out",
        group_id="group",
    )

    def after(before, end, *partitions, **epochs):
        ranges = tuple(OffsetRange("src", partition, 0, end) for partition in partitions)
        plan = RunPlan("cursor", ranges, {"src": "id"}, "group", advances=True, **epochs)
        return advanced(spec, plan, before, {"src": 2}, "key", LedgerId("ledger", 2, "test"))

    first = after(None, 5, 0, 1, epochs={READ: 1, LEFT: 2})
    assert type(first).from_json(first.to_json()).epochs == {READ: 1, LEFT: 2}
    second = after(first, 9, 0)
    assert type(second).from_json(second.to_json()).epochs == {LEFT: 2}
