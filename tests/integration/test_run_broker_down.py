"""Runs whose broker is down, at the start and in the middle."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time

import pytest

from airflow_eos.broker import shared_connections
from airflow_eos.exceptions import BrokersUnavailable, IntervalUnaccountable, OffsetsOutOfRange
from airflow_eos.model.kafka import OFFSETS_TOPIC
from airflow_eos.model.ranges import Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.run.states import State
from airflow_eos.wire.groups import offsets_partition_of
from airflow_eos_testing import EmbeddedKafka
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Pipeline
from tests.support.wire_requests import QUICK_SESSIONS


@pytest.fixture(scope="module")
def own_kafka():
    """A broker that tests may kill."""
    with EmbeddedKafka(broker_config=QUICK_SESSIONS) as kafka:
        yield kafka


@pytest.fixture
def pipeline(own_kafka):
    filled = Pipeline(own_kafka)
    filled.publish([f"v{i}" for i in range(50)])
    filled.run("warm-up")
    filled.publish([f"w{i}" for i in range(50)])
    return filled


def test_a_broker_that_is_down_at_the_start_is_named(pipeline, unused_port, monkeypatch):
    """Nothing listens at the address: one clear error with it, and Spark is not started."""
    monkeypatch.setattr(shared_connections, "BOOTSTRAP_TIMEOUT", 2.0)
    kafka = {"bootstrap.servers": f"127.0.0.1:{unused_port}"}
    with pytest.raises(BrokersUnavailable, match=str(unused_port)):
        pipeline.run("r1", kafka=kafka)
    assert len(pipeline.output()) == 50
    assert pipeline.run("r1", try_number=2).records_written == 50


@pytest.mark.parametrize(
    "state",
    [
        State.OPEN,
        pytest.param(State.STAGED, marks=pytest.mark.chaos),
        pytest.param(State.PROVEN, marks=pytest.mark.chaos),
    ],
)
def test_a_broker_killed_in_mid_run_and_started_again_loses_nothing(pipeline, own_kafka, state):
    """The only broker is killed at this state: the run waits, retries or resolves; all views agree."""
    broker = own_kafka.brokers[0]
    starters = []

    def kill(entered):
        if entered is state and not starters:
            broker.kill()
            starter = threading.Thread(target=lambda: (time.sleep(1), broker.start()))
            starter.start()
            starters.append(starter)

    try:
        record = pipeline.run("r1", on_state=kill)
    finally:
        for starter in starters:
            starter.join(120)
    assert starters
    assert len(pipeline.output()) == 100
    assert record.records_written == 50
    assert pipeline.run("r2").records_read == 0


@pytest.mark.parametrize("source_partition", rest_in_chaos(1, [None, 0]))
def test_a_log_that_lost_its_end_and_grew_again_is_not_read_on(own_kafka, source_partition):
    """As after an unclean election or a power loss: other records are at offsets that the cursor has read."""
    pipeline, broker = (
        Pipeline(own_kafka, partitions=1, source_partition=source_partition),
        own_kafka.brokers[0],
    )
    pipeline.publish(["a"])
    log = broker.data_folder / f"{pipeline.source}-0" / f"{0:020}.log"
    kept = log.stat().st_size
    pipeline.publish(["b", "c"])
    pipeline.run("r1")
    broker.kill()
    os.truncate(log, kept)
    broker.start()
    pipeline.publish(["d", "e", "f"])
    source = TopicPartition(pipeline.source, 0)
    with pytest.raises(
        OffsetsOutOfRange, match=rf"stands at 3.* rewritten from 1 on.* unless .*--offset {source.topic}:0=1 "
    ):
        pipeline.run("r2")

    spec = pipeline.spec
    reset_cursor(spec.deployment, Reset(spec.group_id, offsets={source: 1}, topics=[source.topic]))
    assert pipeline.run("r3").records_read == 3
    assert pipeline.output() == ["a", "b", "c", "d", "e", "f"]


def test_given_ranges_that_move_the_cursor_leave_it_watched(own_kafka):
    """A log that is rewritten below them is refused by the next run of the cursor."""
    pipeline, broker = Pipeline(own_kafka, partitions=1), own_kafka.brokers[0]
    pipeline.publish(["a"])
    log = broker.data_folder / f"{pipeline.source}-0" / f"{0:020}.log"
    kept = log.stat().st_size
    pipeline.run("r1")
    pipeline.publish(["b", "c"])
    pipeline.run("given", ranges=Explicit([OffsetRange(pipeline.source, 0, 1, 3)], advance=True))
    broker.kill()
    os.truncate(log, kept)
    broker.start()
    pipeline.publish(["d", "e", "f"])
    with pytest.raises(OffsetsOutOfRange, match=r"stands at 3.* rewritten from 1 on"):
        pipeline.run("r2")
    assert pipeline.output() == ["a", "b", "c"]


@pytest.mark.chaos
def test_a_reset_of_one_partition_leaves_the_others_watched(own_kafka):
    """Two logs lost their ends and grew again: the command that the first error suggests settles one."""
    pipeline, broker = Pipeline(own_kafka), own_kafka.brokers[0]
    spec, sources = pipeline.spec, [TopicPartition(pipeline.source, number) for number in range(2)]
    logs = [broker.data_folder / str(source) / f"{0:020}.log" for source in sources]
    for source in sources:
        pipeline.publish([f"a{source.partition}"], partition=source.partition)
    kept = [log.stat().st_size for log in logs]
    for source in sources:
        pipeline.publish([f"b{source.partition}", f"c{source.partition}"], partition=source.partition)
    pipeline.run("r1")
    broker.kill()
    for log, size in zip(logs, kept, strict=True):
        os.truncate(log, size)
    broker.start()
    for source in sources:
        pipeline.publish([f"{v}{source.partition}" for v in "def"], partition=source.partition)

    for source, offset in zip(sources, (1, 3), strict=True):
        with pytest.raises(OffsetsOutOfRange, match=rf"^{source}: .* rewritten from 1 on"):
            pipeline.run("r2")
        group = examine(DoctorOptions(spec.deployment, spec.group_id))[-1]
        assert (group.status, group.found.count("rewritten from 1 on")) == ("fail", 2 - source.partition)
        assert f"--offset {source.topic}:{source.partition}=1`" in group.advice
        reset_cursor(spec.deployment, Reset(spec.group_id, offsets={source: offset}))
    assert pipeline.run("r2").records_read == 4
    assert pipeline.output() == ["a0", "a1", "b0", "b1", "c0", "c1", "d0", "e0", "f0", "f1"]


def test_an_interval_behind_a_log_that_was_rewritten_is_refused(own_kafka):
    """A leader without the last records wrote others below the boundary: no interval would read them."""
    pipeline, broker = Pipeline(own_kafka, partitions=1), own_kafka.brokers[0]
    hours = [dt.datetime(2026, 1, 5, hour, tzinfo=dt.timezone.utc) for hour in range(4)]

    def publish(values, hour):
        pipeline.publish(values, timestamp=int(hours[hour].timestamp() * 1000))

    def read(hour, **accepted):
        return pipeline.run(f"r{hour}", ranges=Interval(hours[hour], hours[hour + 1], **accepted))

    publish(["a"], 0)
    log = broker.data_folder / f"{pipeline.source}-0" / f"{0:020}.log"
    kept = log.stat().st_size
    publish(["b", "c"], 0)
    publish(["d"], 1)
    assert read(0).records_read == 3
    broker.kill()
    os.truncate(log, kept)
    broker.start()
    publish(["e", "f", "g", "h"], 1)
    with pytest.raises(
        IntervalUnaccountable, match=rf"{pipeline.source}-0: .* is offset 3, .* rewritten from 1 on"
    ):
        read(1)

    given = Explicit([OffsetRange(pipeline.source, 0, 1, 3)])
    assert pipeline.run("by offsets", ranges=given).records_read == 2
    assert read(1, accept_deleted=True).records_read == 2
    assert pipeline.output() == ["a", "b", "c", "e", "f", "g", "h"]
    broker.stop()
    broker.start()
    publish(["i"], 2)
    assert read(2).records_read == 1


def test_offsets_that_were_given_more_partitions_stop_no_run(own_kafka):
    """Brokers place groups by the partition count of their start, and tell clients the new one."""
    pipeline = Pipeline(own_kafka)
    pipeline.publish(["a"])
    pipeline.run("r1")
    added = next(n for n in map(str, range(99)) if offsets_partition_of(n, 5) != offsets_partition_of(n, 11))
    pipeline.add_partitions(OFFSETS_TOPIC, 11)
    assert pipeline.run("r2", group_id=added, pipeline=added).records_written == 1
