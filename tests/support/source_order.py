"""Whether an output keeps the order of its source's partitions, and seals that have to preserve it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from airflow_eos.spark.placement import plan_slices
from airflow_eos_testing import read_topic

if TYPE_CHECKING:
    import pytest

    from tests.support.spark_sessions import Broker


def seal_in_tasks(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Read in about so many tasks, a slice each, whatever the size of the ranges and the session's cores.

    Otherwise a range this small is one slice, and neighbouring slices of a partition are joined again.
    """
    monkeypatch.setattr(
        "airflow_eos.spark.sealing.plan_slices", lambda ranges, _: plan_slices(ranges, tasks, min_span=100)
    )
    monkeypatch.setattr(
        "airflow_eos.spark.sealing.pack_slices", lambda slices, _: tuple((offsets,) for offsets in slices)
    )


def out_of_order(broker: Broker, source: str, sink: str) -> list[str]:
    """Return the records of ``sink`` that stand behind a later record of the same source partition.

    :param source: topic in which each record has another value, and that ``sink`` has the values of.
    """
    records = read_topic(broker.bootstrap, source)
    places = {record.value: (record.partition, record.offset) for record in records}
    assert len(places) == len(records), "values of the source are not distinct"
    last: defaultdict[tuple[int, int], int] = defaultdict(lambda: -1)
    behind = []
    written = read_topic(broker.bootstrap, sink)
    for record in sorted(written, key=lambda record: (record.partition, record.offset)):
        partition, offset = places[record.value]
        if offset <= last[record.partition, partition]:
            behind.append(f"{partition}@{offset} came after {last[record.partition, partition]}")
        last[record.partition, partition] = offset
    return behind
