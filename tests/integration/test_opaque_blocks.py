"""Arrow processes of a local session run without a DataFrame, only there, and with the same guarantees."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from dataclasses import replace

import pytest

from airflow_eos import arrow_process
from airflow_eos.exceptions import RunFailed, SealedBlockLost, SecondAttempt
from airflow_eos.spark import SparkDataPlane, blocks, send_task
from airflow_eos.spark.blocks import FrameBlocks, OpaqueBlocks
from airflow_eos.spark.preflight import check_environment
from airflow_eos_testing import read_topic
from tests.support.patience import wait_until
from tests.support.spark_sessions import attempt, run


@arrow_process
def identity(batch):
    return batch


@arrow_process
def marked(batch):
    """Return rows that differ in each evaluation."""
    import uuid

    import pyarrow as pa

    return pa.record_batch({"key": batch["key"], "value": pa.array([uuid.uuid4().bytes] * len(batch))})


@pytest.fixture
def topics(broker):
    return broker.numbered("src", 2, 30_000), broker.topic("out", 3)


def jobs_of(spark, call):
    """Return the number of Spark jobs that a call starts."""
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "")
    try:
        call()
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def out_of_order(broker, topic):
    """Return partition, source and key of the records whose numbers do not rise, of 60,000 in a topic."""
    numbers = defaultdict(list)
    for record in read_topic(broker.bootstrap, topic):
        source, number = record.value.split(b":")
        numbers[record.partition, source, record.key].append(int(number))
    assert sum(map(len, numbers.values())) == 60_000
    return [place for place, rising in numbers.items() if rising != sorted(set(rising))]


@pytest.mark.parametrize("streamed_from", [0, 1 << 30])
def test_two_jobs_copy_in_order(broker, spark, topics, monkeypatch, streamed_from):
    """One job seals and counts, one sends; if Spark has to sort, the order is still that of the source."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.STREAMED_FROM", streamed_from)
    plane = SparkDataPlane(spark, broker.spec(*topics), identity)
    check_environment(spark)
    kept = []
    assert jobs_of(spark, lambda: kept.append(plane.seal(broker.plan(topics[0])))) == 1
    (sealed,) = kept
    assert type(sealed.blocks) is OpaqueBlocks
    with broker.transaction(sealed.manifest.partitions) as producer:
        assert jobs_of(spark, lambda: plane.send(sealed, producer, 60)) == 1
    plane.release(sealed)
    assert out_of_order(broker, topics[0]) == []
    assert out_of_order(broker, topics[1]) == []


@pytest.mark.parametrize("streamed_from", [0, 1 << 30])
def test_elements_of_another_seal_are_not_sent(broker, spark, topics, monkeypatch, streamed_from):
    """All counts match, as with another copy of a block: only the attempt numbers differ."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.STREAMED_FROM", streamed_from)
    plane = SparkDataPlane(spark, broker.spec(*topics), marked)
    counted, other = (plane.seal(broker.plan(topics[0])) for _ in range(2))
    assert [t.records for t in counted.manifest.targets] == [t.records for t in other.manifest.targets]
    with broker.transaction(counted.manifest.partitions, commit=False) as producer:
        caught = attempt(plane.send, replace(counted, blocks=other.blocks), producer, 60)
    assert type(caught) is SealedBlockLost
    assert "counted those of attempt" in str(caught)
    assert read_topic(broker.bootstrap, topics[1], isolation="read_uncommitted") == []


def test_lost_elements_are_not_computed_again(broker, spark, topics):
    """Sealed data has no lineage: the run gets an error, and seals again."""
    plane = SparkDataPlane(spark, broker.spec(*topics), marked)
    sealed = plane.seal(broker.plan(topics[0]))
    plane.release(sealed)
    with broker.transaction(sealed.manifest.partitions, commit=False) as producer:
        caught = attempt(plane.send, sealed, producer, 60)
    assert type(caught) is SealedBlockLost
    assert read_topic(broker.bootstrap, topics[1], isolation="read_uncommitted") == []


def test_a_second_attempt_writes_nothing(broker, spark, topics, monkeypatch):
    """Law 1: Spark may start a send task again; it refuses, and the run aborts."""
    from pyspark import TaskContext

    class Second(send_task.SendTask):
        def __call__(self, batches):
            TaskContext.get()._attemptNumber = 1
            return send_task.SendTask.__call__(self, batches)

    monkeypatch.setattr(send_task, "SendTask", Second)
    monkeypatch.setattr(send_task, "SECOND_ATTEMPT_WAIT", 0.0)
    plane = SparkDataPlane(spark, broker.spec(*topics), identity)
    sealed = plane.seal(broker.plan(topics[0]))
    with broker.transaction(sealed.manifest.partitions, commit=False) as producer:
        caught = attempt(plane.send, sealed, producer, 60)
    assert type(caught) is SecondAttempt
    assert read_topic(broker.bootstrap, topics[1], isolation="read_uncommitted") == []


def test_a_cancelled_seal_ends(broker, spark, topics, tmp_path):
    """By its job tag, from another thread; the session continues."""
    marker = str(tmp_path / "begun")

    @arrow_process
    def slow(batch):
        import pathlib
        import time

        pathlib.Path(marker).touch()
        time.sleep(600)
        return batch

    plane = SparkDataPlane(spark, broker.spec(*topics), slow)
    caught = []
    thread = threading.Thread(target=lambda: caught.append(attempt(plane.seal, broker.plan(topics[0]))))
    thread.start()
    wait_until((tmp_path / "begun").exists, 60)
    plane.cancel(5)
    thread.join(60)
    assert [type(error) for error in caught] == [RunFailed]
    assert spark.sparkContext.parallelize(range(10)).count() == 10


def test_python_workers_go_on_to_the_next_run(broker, spark, topics, tmp_path):
    """Spark kills a worker that has not read its input to the end, with all its imports."""
    folder = str(tmp_path)

    @arrow_process
    def named(batch):
        import os
        import pathlib

        pathlib.Path(folder, str(os.getpid())).touch()
        return batch

    for _ in range(3):
        run(broker, spark, broker.spec(*topics), named)
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_switch_asks_for_a_dataframe(broker, spark, topics, monkeypatch):
    """A switch in Spark's configuration: a session of the user's may have it, too."""
    plane = SparkDataPlane(spark, broker.spec(*topics), identity)
    plan = broker.plan(topics[0])
    context = spark.sparkContext
    conf = context.getConf().set(blocks.SWITCH, "false")
    with monkeypatch.context() as switched:
        switched.setattr(type(context), "getConf", lambda _self: conf)
        assert type(plane.seal(plan).blocks) is FrameBlocks
    assert type(plane.seal(plan).blocks) is OpaqueBlocks


def test_a_python_file_that_a_session_was_given_is_found(broker, spark, topics, tmp_path):
    """It was added to a session; tasks without a DataFrame can import it, too."""
    module = tmp_path / "of_the_session.py"
    module.write_text("MARK = b'from a file of the session'\n")
    session = spark.newSession()
    session.addArtifacts(str(module), pyfile=True)

    @arrow_process
    def imports(batch):
        import pyarrow as pa
        from of_the_session import MARK

        return pa.record_batch({"value": pa.array([MARK] * len(batch), pa.binary())})

    sealed = SparkDataPlane(session, broker.spec(*topics), imports).seal(broker.plan(topics[0]))
    assert type(sealed.blocks) is OpaqueBlocks
    run(broker, session, broker.spec(*topics), imports)
    assert {r.value for r in read_topic(broker.bootstrap, topics[1])} == {b"from a file of the session"}
