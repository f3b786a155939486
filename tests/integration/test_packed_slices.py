"""Many small source partitions on a real broker: a seal task reads several, each exactly once.

The same for both kinds of process function. Slices that a task loses or reads twice are not written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from unittest import mock

import pytest

from airflow_eos import arrow_process
from airflow_eos.exceptions import OffsetsOutOfRange, ProcessFailed, ProtocolViolation, RunFailed
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.spark import SparkDataPlane
from airflow_eos.spark.placement import pack_slices, plan_slices
from airflow_eos.spark.seal_task import ArrowSealTask
from airflow_eos.spark.source import ReadTask, read_slices
from airflow_eos_testing import read_topic
from tests.support.spark_sessions import run

PARTITIONS, RECORDS = 40, 30

ARROW = arrow_process(lambda batch: batch.select(["key", "value"]))


def frame(df):
    return df.select("key", "value")


@pytest.fixture(scope="module")
def source(broker):
    return broker.numbered("packed", PARTITIONS, RECORDS)


def committed(broker, topic):
    return read_topic(broker.bootstrap, topic)


def numbers(records):
    """Return (source partition, number) of each record, in log order."""
    ordered = sorted(records, key=lambda r: (r.partition, r.offset))
    return [tuple(map(int, record.value.split(b":"))) for record in ordered]


def losing(config, slices):
    """Read all slices of a task except the last."""
    for place, records in read_slices(config, slices):
        if place < len(slices) - 1:
            yield place, records
        else:
            list(records)


def repeating(config, slices):
    """Read the first slice of a task twice."""
    for place, records in read_slices(config, slices):
        if place == 0:
            kept = list(records)
            yield place, iter(kept)
            yield place, iter(kept)
        else:
            yield place, records


@pytest.mark.parametrize("process", [ARROW, frame], ids=["arrow", "frame"])
def test_each_record_is_written_once_and_in_order(broker, spark, source, process):
    """Forty partitions make four tasks; records read are counted per partition."""
    plan = broker.plan(source)
    tasks = pack_slices(plan_slices(plan.ranges, 2), 2)
    assert [len(slices) for slices in tasks] == [10] * 4
    sink = broker.topic("out", 3)
    manifest, _ = run(broker, spark, broker.spec(source, sink), process, plan)
    pairs = numbers(committed(broker, sink))
    assert Counter(pairs) == Counter((p, n) for p in range(PARTITIONS) for n in range(RECORDS))
    last = defaultdict(lambda: -1)
    by_target = sorted(committed(broker, sink), key=lambda r: (r.partition, r.offset))
    for target, (partition, number) in zip((r.partition for r in by_target), pairs, strict=True):
        assert number > last[target, partition]
        last[target, partition] = number
    assert manifest.records_read == {TopicPartition(source, p): RECORDS for p in range(PARTITIONS)}


def test_ranges_of_every_length_are_read_exactly(broker, spark, source):
    """Ranges begin in the middle of batches, and some are empty."""
    ranges = tuple(OffsetRange(source, p, p % 7, p % 7 + p % 23) for p in range(PARTITIONS))
    plan = RunPlan("explicit", ranges, {}, "g", advances=False)
    sink = broker.topic("out", 3)
    manifest, _ = run(broker, spark, broker.spec(source, sink), ARROW, plan)
    wanted = Counter((r.partition, n) for r in ranges for n in range(r.start, r.end))
    assert Counter(numbers(committed(broker, sink))) == wanted
    assert manifest.records_read == {r.topic_partition: r.span for r in ranges}


@pytest.mark.parametrize("reading", [losing, repeating])
def test_a_slice_that_a_task_loses_or_reads_twice_is_never_sent(broker, spark, source, monkeypatch, reading):
    """The driver checks that each slice was read to its end exactly once."""

    class Wrong(ArrowSealTask):  # a local class: it goes to the worker by value
        def __call__(self, batches):
            with mock.patch.dict(ArrowSealTask._transformed.__globals__, {"read_slices": reading}):
                yield from ArrowSealTask.__call__(self, batches)

    monkeypatch.setattr("airflow_eos.spark.sealing.ArrowSealTask", Wrong)
    plane = SparkDataPlane(spark, broker.spec(source, broker.topic("out", 3)), ARROW)
    with pytest.raises(
        RunFailed, match=r"never consistently: (40 slices were to be read, 36 were|slice .* twice)"
    ):
        plane.seal(broker.plan(source))


@pytest.mark.parametrize("reading", [losing, repeating])
def test_a_read_task_gives_up_on_a_slice_it_lost_or_read_twice(broker, spark, source, monkeypatch, reading):
    """A DataFrame is not counted before it is sealed: the task itself looks."""

    class Wrong(ReadTask):
        def __call__(self, batches):
            with mock.patch.dict(ReadTask.__call__.__globals__, {"read_slices": reading}):
                yield from ReadTask.__call__(self, batches)

    monkeypatch.setattr("airflow_eos.spark.source.ReadTask", Wrong)
    plane = SparkDataPlane(spark, broker.spec(source, broker.topic("out", 3)), frame)
    with pytest.raises(
        ProtocolViolation, match=r"10 slices, 9 were read|slice 1 of read task \d came as number 0"
    ):
        plane.seal(broker.plan(source))


def test_an_error_names_the_record_in_its_partition(broker, spark, source):
    """It names the partition of the failing record, not the task's first one."""

    @arrow_process
    def parse(batch):
        if b"27:13" in batch["value"].to_pylist():
            raise ValueError("cannot parse it")
        return batch.select(["key", "value"])

    plane = SparkDataPlane(spark, broker.spec(source, broker.topic("out", 1)), parse)
    with pytest.raises(ProcessFailed, match=f"{source}-27, offset 13, nothing was written") as caught:
        plane.seal(broker.plan(source))
    assert f'skip_offsets=[["{source}", 27, 13, 14]]' in str(caught.value)


def test_dead_letters_of_several_slices_are_kept(broker, spark, source):
    """Each has its partition and offset."""
    dead = broker.topic("dead", 1)

    @arrow_process
    def parse(batch):
        if any(value.endswith(b":5") for value in batch["value"].to_pylist()):
            raise ValueError("five")
        return batch.select(["key", "value"])

    sink = broker.topic("out", 1)
    spec = broker.spec(source, sink, dead_letter_topic=dead)
    manifest, _ = run(broker, spark, spec, parse)
    places = [
        (dict(r.headers)["source.partition"], dict(r.headers)["source.offset"])
        for r in committed(broker, dead)
    ]
    assert sorted(places) == sorted((str(p).encode(), b"5") for p in range(PARTITIONS))
    assert manifest.dead_letters == PARTITIONS
    assert len(committed(broker, sink)) == PARTITIONS * (RECORDS - 1)


@pytest.mark.parametrize("process", [ARROW, frame], ids=["arrow", "frame"])
def test_one_deleted_head_among_many_partitions_is_data_loss(broker, spark, process):
    """It is requested together with others, and the error names it."""
    source = broker.numbered("src", PARTITIONS, 20)
    broker.delete_head(source, 17, 4)
    ranges = tuple(OffsetRange(source, p, 0, 20) for p in range(PARTITIONS))
    plan = RunPlan("explicit", ranges, {}, "g", advances=False)
    with pytest.raises(OffsetsOutOfRange, match=f"{source}-17 begins at offset 4"):
        SparkDataPlane(spark, broker.spec(source, broker.topic("out", 1)), process).seal(plan)
