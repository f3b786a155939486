"""Arrow processes on a real broker: the contract and the guarantees of DataFrame processes.

Runs on a classic session here; :mod:`test_spark_connect` runs the same tests on Spark Connect.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_eos import arrow_process
from airflow_eos.exceptions import OffsetsOutOfRange, ProcessFailed, UnknownTopic
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Interval, OffsetRange, TopicPartition
from airflow_eos.spark import SparkDataPlane, data_plane
from airflow_eos.spark.preflight import check_environment
from airflow_eos.spark.session import is_connect
from airflow_eos_testing import read_topic
from tests.support.missing_topics import missing_at_once
from tests.support.source_order import out_of_order, seal_in_tasks
from tests.support.spark_sessions import run

START = int(time.time() * 1000) - 3_600_000  # topic retention would delete older records


@arrow_process
def identity(batch):
    return batch


def committed(broker, topic):
    return read_topic(broker.bootstrap, topic)


def content(records):
    return Counter((r.partition, r.key, r.value, r.headers, r.timestamp) for r in records)


def test_an_identity_run_copies_records_exactly(broker, spark):
    """Keys, values, tombstones, empty values, null keys, headers and timestamps, each once."""
    source, sink = broker.topic("src", 3), broker.topic("out", 3)
    headers = [("h", b"x"), ("h", b"y"), ("null", None)]
    given = [
        {"key": b"a", "value": b"1", "timestamp": START, "headers": headers},
        {"key": b"a", "value": None, "timestamp": START + 1},
        {"key": None, "value": b"", "timestamp": START + 2, "partition": 1},
        {"key": b"", "value": b"\x00\xff", "timestamp": START + 3, "partition": 2},
        *({"key": b"k%d" % i, "value": b"v%d" % i, "timestamp": START + i} for i in range(500)),
    ]
    broker.produce(source, given)
    manifest, receipts = run(broker, spark, broker.spec(source, sink), identity)
    assert content(committed(broker, sink)) == content(committed(broker, source))
    assert manifest.records == sum(r.records for r in receipts) == len(given)


def test_rows_choose_topic_and_partition(broker, spark):
    """A source topic, or none, means the sink; a partition column wins, null leaves it to the key."""
    source = broker.numbered("src", 2, 300)
    sink, dead = broker.topic("out", 3), broker.topic("dead", 2)

    @arrow_process
    def process(batch):
        third = pa.array([offset % 3 for offset in batch["offset"].to_pylist()])
        topic = pc.if_else(pc.equal(third, 0), dead, pc.if_else(pc.equal(third, 1), batch["topic"], None))
        partition = pc.if_else(pc.equal(third, 0), pa.scalar(1), pa.scalar(None, pa.int64()))
        return pa.table(
            {"key": batch["key"], "value": batch["value"], "topic": topic, "partition": partition}
        )

    run(broker, spark, broker.spec(source, sink), process)
    assert {r.partition for r in committed(broker, dead)} == {1}
    everything = Counter(r.value for r in committed(broker, source))
    assert Counter(r.value for t in (sink, dead) for r in committed(broker, t)) == everything
    assert len(committed(broker, dead)) == 200


def test_the_order_of_each_source_partition_is_kept(broker, spark, monkeypatch):
    """Ten source partitions, each read by four tasks, on two cores; one row in three is dropped."""
    source, sink = broker.numbered("src", 10, 1000), broker.topic("out", 3)
    seal_in_tasks(monkeypatch, 40)

    @arrow_process
    def process(batch):
        kept = [i for i, offset in enumerate(batch["offset"].to_pylist()) if offset % 3]
        return batch.select(["key", "value"]).take(kept)

    run(broker, spark, broker.spec(source, sink), process)
    assert out_of_order(broker, source, sink) == []
    assert len(committed(broker, sink)) == 10 * 666


def test_a_range_is_read_exactly(broker, spark):
    """[start, end) in the middle of batches, beside an empty range."""
    source, sink = broker.numbered("src", 2, 1000), broker.topic("out", 1)
    ranges = (OffsetRange(source, 0, 123, 877), OffsetRange(source, 1, 5, 5))
    plan = RunPlan("explicit", ranges, {}, "g", advances=False)
    values = arrow_process(lambda batch: batch.select(["value"]))
    manifest, _ = run(broker, spark, broker.spec(source, sink), values, plan)
    assert [r.value for r in committed(broker, sink)] == [b"0:%d" % i for i in range(123, 877)]
    assert manifest.records_read == {TopicPartition(source, 0): 754, TopicPartition(source, 1): 0}


def test_records_read_and_late_records_are_counted(broker, spark):
    """Per source partition, although the process drops all rows: a run without output."""
    source, sink = broker.topic("src", 3), broker.topic("out", 1)
    broker.produce(
        source,
        (
            {"value": b"x", "partition": p, "timestamp": START + (-1 if i < p else i)}
            for p in range(3)
            for i in range(100 * (p + 1))
        ),
    )
    start = dt.datetime.fromtimestamp(START / 1000, dt.timezone.utc)
    spec = broker.spec(source, sink, ranges=Interval(start, start + dt.timedelta(hours=1)))
    nothing = arrow_process(lambda batch: None)
    manifest, receipts = run(broker, spark, spec, nothing, broker.plan(source, mode="interval"))
    assert manifest.records_read == {TopicPartition(source, p): 100 * (p + 1) for p in range(3)}
    assert manifest.records_late == 0 + 1 + 2
    assert (manifest.targets, list(receipts)) == ((), [])


def test_pandas_works_inside(broker, spark):
    """A pandas frame is a result like any other; timestamps keep their instant."""
    source, sink = broker.topic("src", 1), broker.topic("out", 1)
    broker.produce(source, [{"key": b"k", "value": b"%d" % i, "timestamp": START + i} for i in range(100)])

    @arrow_process
    def process(batch):
        frame = batch.to_pandas()
        frame["value"] = frame["value"].map(lambda v: str(int(v) * 2))
        return frame[["key", "value", "timestamp"]]

    run(broker, spark, broker.spec(source, sink), process)
    rows = [(r.value, r.timestamp) for r in committed(broker, sink)]
    assert rows == [(b"%d" % (2 * i), START + i) for i in range(100)]
    assert pd.__version__


def test_the_run_is_told_to_functions_that_ask(broker, spark):
    """process(batch, run), with arguments bound by a partial."""
    source, sink = broker.numbered("src", 1, 10), broker.topic("out", 1)

    @arrow_process
    def process(batch, run, suffix):
        text = f"{run.pipeline}/{run.run_id}{suffix}"
        return pa.table({"value": [text] * batch.num_rows})

    run(broker, spark, broker.spec(source, sink), functools.partial(process, suffix="!"))
    assert {r.value for r in committed(broker, sink)} == {b"tests/1!"}


def test_a_large_function_is_in_no_file_with_the_credentials(broker, spark):
    """PySpark writes broadcast data to files: on a cluster, on driver and executors."""
    source, sink = broker.numbered("src", 1, 10), broker.topic("out", 1)
    model = os.urandom(2 << 20)

    @arrow_process
    def process(batch):
        return pa.table({"value": [str(len(model))] * len(batch)})

    secret = f"SECRET-{sink}"
    config = {**broker.config, "sasl.username": "me", "sasl.password": secret}
    run(broker, spark, broker.spec(source, sink, kafka=config), process)
    assert {r.value for r in committed(broker, sink)} == {b"%d" % len(model)}
    if not is_connect(spark):
        written = [path.read_bytes() for path in Path(spark.sparkContext._temp_dir).iterdir()]
        assert any(model in content for content in written)
        assert not any(secret.encode() in content for content in written)


def test_sealed_batches_can_be_sent_again_under_a_new_identity(broker, spark):
    """After an abort nothing is recomputed, and nothing of the first send is visible."""
    source, sink = broker.numbered("src", 2, 500), broker.topic("out", 2)
    plane = SparkDataPlane(spark, broker.spec(source, sink), identity)
    sealed = plane.seal(broker.plan(source))
    with broker.transaction(sealed.manifest.partitions, commit=False) as first:
        plane.send(sealed, first, 60)
    assert committed(broker, sink) == []
    with broker.transaction(sealed.manifest.partitions) as second:
        plane.send(sealed, second, 60)
    plane.release(sealed)
    assert len(committed(broker, sink)) == 1000


@pytest.fixture(scope="module")
def topics(broker):
    return broker.numbered("src", 2, 200), broker.topic("out", 2)


def seal(broker, spark, topics, function, sink="sink"):
    source, out = topics
    spec = broker.spec(source, out if sink == "sink" else sink)
    return SparkDataPlane(spark, spec, arrow_process(function)).seal(broker.plan(source))


def test_a_small_run_on_many_cores_has_few_owners(broker, spark, topics, monkeypatch):
    """Rows of an Arrow process may name any topic, but two tasks do not seal rows for 400."""

    def on_many_cores(*arguments):
        return replace(check_environment(*arguments), slots=400)

    monkeypatch.setattr(data_plane, "check_environment", on_many_cores)
    sealed = seal(broker, spark, topics, lambda batch: batch)
    assert sealed.manifest.records == 400
    assert sealed.blocks.layout.tasks == 2


def test_what_the_sink_cannot_write_is_refused(broker, spark, topics):
    """The task's own error reaches the driver; every case has a unit test."""
    with pytest.raises(ProcessFailed, match="no column 'value'"):
        seal(broker, spark, topics, lambda batch: batch.select(["key"]))


def test_unknown_topics_are_refused(broker, spark, topics):
    """As sink, and in a row."""
    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-topic"):
        seal(broker, spark, topics, lambda batch: batch, sink="no-such-topic")
    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-topic"):
        seal(
            broker,
            spark,
            topics,
            lambda batch: pa.table(
                {"value": batch["value"], "topic": pa.array(["no-such-topic"] * batch.num_rows)}
            ),
        )


def test_a_function_that_fails_on_one_record_says_what_and_where(broker, spark, topics):
    """It names the author's exception and line of code."""

    def parse(batch):
        for value in batch["value"].to_pylist():
            if value == b"1:150":
                raise ValueError(f"cannot parse {value!r}")
        return batch

    with pytest.raises(
        ProcessFailed, match=r"ValueError: cannot parse .*1:150.*test_spark_arrow.py"
    ) as caught:
        seal(broker, spark, topics, parse)
    source = topics[0]
    assert f"process failed at {source}-1, offset 150, nothing was written" in str(caught.value)
    assert f'skip_offsets=[["{source}", 1, 150, 151]]' in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "Py4JJavaError" not in shown
    assert "org.apache.spark" not in shown


def test_a_range_below_the_log_start_is_data_loss(broker, spark):
    """No reset: the task's own error reaches the driver."""
    source, sink = broker.numbered("src", 1, 100), broker.topic("out", 1)
    broker.delete_head(source, 0, 40)
    plan = RunPlan("explicit", (OffsetRange(source, 0, 10, 100),), {}, "g", advances=False)
    with pytest.raises(OffsetsOutOfRange, match="40"):
        SparkDataPlane(spark, broker.spec(source, sink), identity).seal(plan)
