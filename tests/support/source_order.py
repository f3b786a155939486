"""Checks that an output keeps the order of its source partitions, in seals that could break it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from airflow_eos.spark.placement import plan_slices
from airflow_eos_testing import read_topic

if TYPE_CHECKING:
    import pytest

    from tests.support.spark_sessions import Broker


def seal_in_tasks(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Read in about ``tasks`` tasks, one slice each, whatever the size of the ranges and the number of cores.

    By default a small range is one slice, and neighbouring slices of a partition are joined again.
    """
    monkeypatch.setattr(
        "airflow_eos.spark.sealing.plan_slices", lambda ranges, _: plan_slices(ranges, tasks, min_span=100)
    )
    monkeypatch.setattr(
        "airflow_eos.spark.sealing.pack_slices", lambda slices, _: tuple((offsets,) for offsets in slices)
    )


def out_of_order(broker: Broker, source: str, sink: str) -> list[str]:
    """Return the records of ``sink`` that follow a later record of the same source partition.

    :param source: topic with distinct values, which ``sink`` must contain.
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
