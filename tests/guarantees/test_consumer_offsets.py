"""C: the consumer and its offsets. Re-delivery, downstream keys, order, gaps, deleted heads, lost offsets."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time

import pytest
from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_eos.engine import read_process_write
from airflow_eos.exceptions import GroupNotEmpty, OffsetsOutOfRange, TopicRecreated
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.run import laws
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import NO_OFFSET, list_offsets
from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.guarantees import without_transactions
from tests.guarantees.driver import in_a_process
from tests.guarantees.experiment import Experiment, judged, lost_and_duplicated
from tests.guarantees.offset_layout import (
    ABORT_LAYOUT,
    COMMIT_LAYOUT,
    layout_of,
    write_abort_layout,
    write_commit_layout,
)

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)


def group_settings(experiment, **changes):
    return {
        **experiment.kafka.client_config(),
        "group.id": experiment.spec.group_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        **changes,
    }


def poll(consumer, count):
    """Read ``count`` records."""
    texts = []
    deadline = time.monotonic() + 60
    while len(texts) < count:
        assert time.monotonic() < deadline, f"{len(texts)} of {count} records"
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            texts.append(message.value().decode())
    return texts


# -- C1: re-delivery -------------------------------------------------------------------------------------


def test_input_that_is_delivered_again_after_a_crash_is_written_once(experiment):
    """C1: the driver is killed before its commit; the retry reads all input again: the output is exact."""
    experiment.feed(40)
    dead = experiment.driver(stop_at=State.STAGED).wait_for(State.STAGED)
    dead.kill()
    record = experiment.run(try_number=2)
    assert record.records_read == 40  # all of it once more
    experiment.assert_exact()


def test_a_rebalance_delivers_again_and_a_plain_consumer_writes_twice(experiment):
    """C1, contrast: a member writes and leaves before it commits offsets; the next one reads it all again."""
    experiment.feed(20)
    producer = Producer({**experiment.kafka.client_config(), "linger.ms": 0})
    for last in (False, True):
        member = Consumer(group_settings(experiment))
        member.subscribe([experiment.source])
        for value in poll(member, 20):
            producer.produce(experiment.sink, value=value)
        assert producer.flush(30) == 0
        if last:
            member.commit(asynchronous=False)
        member.close()
    lost, duplicated = judged(experiment)
    assert (lost, len(duplicated)) == ([], 20)


def test_a_member_that_joins_while_a_run_is_under_way_stops_its_commit(experiment):
    """C1: a live consumer of the group may commit at any moment, so the run aborts and publishes nothing."""
    experiment.feed(10)
    member = Consumer(group_settings(experiment))

    def join(state):
        if state is State.WRITTEN:
            member.subscribe([experiment.source])
            while not member.assignment():
                member.poll(0.1)

    with pytest.raises(GroupNotEmpty, match="1 live member"):
        experiment.run(on_state=join)
    assert experiment.output() == []
    member.close()
    assert experiment.run(try_number=2).records_written == 10


def test_without_law_6_a_run_commits_under_a_live_member_who_then_writes_twice(experiment, monkeypatch):
    """C1, counter-test: without the check run and consumer share the position: the output has duplicates."""
    monkeypatch.setattr(laws, "group_is_empty", lambda group, members: None)
    experiment.feed(10)
    member = Consumer(group_settings(experiment))
    member.subscribe([experiment.source])
    taken = poll(member, 10)
    experiment.run()
    producer = Producer({**experiment.kafka.client_config(), "linger.ms": 0})
    for value in taken:
        producer.produce(experiment.sink, value=value)
    assert producer.flush(30) == 0
    member.commit(asynchronous=False)
    member.close()
    lost, duplicated = judged(experiment)
    assert (lost, len(duplicated)) == ([], 10)


# -- C2: keys for systems outside Kafka ------------------------------------------------------------------


def with_provenance(df, run):
    """Copy, with headers that say where each record comes from and which run wrote it."""
    from pyspark.sql import functions as F  # noqa: N812

    def header(name, column):
        return F.struct(F.lit(name).alias("key"), column.cast("string").cast("binary").alias("value"))

    place = (header(name, F.col(name)) for name in ("topic", "partition", "offset"))
    headers = F.array(*place, header("run", F.lit(run.run_id)))
    return df.select("key", "value", headers.alias("headers"))


def test_a_database_dedupes_by_the_provenance_headers(experiment, spark):
    """C2: headers name source topic, partition and offset; an upsert by them makes a re-read harmless."""
    sent = experiment.feed(30)
    record = read_process_write(spark, experiment.spec, with_provenance)
    assert record.records_written == 30

    database = sqlite3.connect(":memory:")
    database.execute(
        "create table keyed (topic, partition, offset, value, primary key (topic, partition, offset))"
    )
    database.execute("create table blind (value)")
    for _ in range(2):  # the consumer crashes after its insert, before its commit, and reads it all again
        for message in read_topic(experiment.kafka.client_config(), experiment.sink):
            h = dict(message.headers)
            assert h["run"].decode() == record.run_id
            place = (h["topic"].decode(), int(h["partition"]), int(h["offset"]))
            database.execute(
                "insert into keyed values (?, ?, ?, ?) on conflict do nothing",
                (*place, message.value.decode()),
            )
            database.execute("insert into blind values (?)", (message.value.decode(),))

    def stored(table):
        return [value for (value,) in database.execute(f"select value from {table}")]

    assert lost_and_duplicated(sent, stored("keyed")) == ([], [])
    # Counter-test: the same consumer without the key.
    assert lost_and_duplicated(sent, stored("blind")) == ([], sorted(sent))


# -- C3: order -------------------------------------------------------------------------------------------


def order_kept(output):
    """Whether the numbers of each source partition rise within each output partition."""
    last = {}
    for sink_partition, value in output:
        partition, number = value.split(":")
        if last.get((sink_partition, partition), "") >= number:
            return False
        last[sink_partition, partition] = number
    return True


def in_order(experiment):
    return [
        (r.partition, r.value.decode()) for r in read_topic(experiment.kafka.client_config(), experiment.sink)
    ]


def same_partition(df):
    return df.select("value", "partition")


def shuffled(df):
    return df.orderBy("value", ascending=False).select("value", "partition")


def test_a_row_wise_transform_keeps_the_order_of_ten_partitions(embedded_kafka, spark):
    """C3: with an explicit partition column, each of ten output partitions equals its source partition."""
    experiment = Experiment(embedded_kafka, partitions=10)
    experiment.feed(1000)
    read_process_write(spark, experiment.spec, same_partition)
    output = in_order(experiment)
    assert [value for _, value in output] == sorted(experiment.sent)
    assert order_kept(output)
    assert all(int(value.split(":")[0]) == sink_partition for sink_partition, value in output)


def test_one_partition_is_a_total_order(embedded_kafka, spark):
    """C3: one source partition to one output partition, over two runs: the log is the input, in order."""
    experiment = Experiment(embedded_kafka, partitions=1)
    for run_id in ("r1", "r2"):
        experiment.feed(500)
        read_process_write(spark, experiment.changed(run_id), same_partition)
    output = in_order(experiment)
    assert [value for _, value in output] == experiment.sent
    assert order_kept(output)


def test_a_transform_that_shuffles_gives_up_the_order_and_nothing_else(embedded_kafka, spark):
    """C3, counter-test: a transform that sorts descending fails the order check, but loses nothing."""
    experiment = Experiment(embedded_kafka, partitions=2)
    experiment.feed(200)
    read_process_write(spark, experiment.spec, shuffled)
    output = in_order(experiment)
    assert not order_kept(output)
    assert lost_and_duplicated(experiment.sent, [value for _, value in output]) == ([], [])


# -- C4: gaps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "layout", "visible"),
    [
        (write_commit_layout, COMMIT_LAYOUT, ["r0", "r1", "r2", "r4"]),
        (write_abort_layout, ABORT_LAYOUT, ["r0", "r1", "r5", "r6"]),
    ],
    ids=["commit marker", "aborted records and their marker"],
)
def test_gaps_are_read_over_exactly(embedded_kafka, write, layout, visible):
    """C4: markers and aborted records take offsets; a run reads the visible rows, and passes them all."""
    experiment = Experiment(embedded_kafka, partitions=1)
    write(experiment.kafka.client_config(), experiment.source)
    assert [
        (cell.offset, cell.kind) for cell in layout_of(experiment.kafka.client_config(), experiment.source)
    ] == layout
    record = experiment.run()
    assert experiment.output() == visible
    (span,) = record.ranges
    assert (span.start, span.end) == (0, len(layout))
    assert experiment.committed() == [len(layout)]
    # Counter-test: a reader that counts offsets instead of reading to a position would report a loss.
    assert span.end - span.start > record.records_read == len(visible)
    assert experiment.run("r2").records_read == 0


def test_a_reader_that_counts_offsets_finds_one_record_too_few(embedded_kafka):
    """C4, counter-test: the end offset is 5, but there are four records: waiting for a fifth never ends."""
    experiment = Experiment(embedded_kafka, partitions=1)
    write_commit_layout(experiment.kafka.client_config(), experiment.source)
    consumer = Consumer(
        group_settings(experiment, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    )
    consumer.assign([ClientPartition(experiment.source, 0, 0)])
    count = 0
    while (message := consumer.poll(60)) is not None and message.error() is None:
        count += 1
    consumer.close()
    assert count == 4  # one short: the marker
    assert is_end(message, len(COMMIT_LAYOUT))


def is_end(message, offset):
    """Return whether a consumer's message is the end of the partition at this offset."""
    return (message.error().code(), message.offset()) == (KafkaError._PARTITION_EOF, offset)


# -- C5: deleted heads -----------------------------------------------------------------------------------


def test_a_deleted_head_is_refused_with_both_offsets_and_both_ways_on(experiment):
    """C5: retention overtook the cursor: nothing is committed; the error names the loss and the remedies."""
    experiment.feed(20)
    experiment.run()
    experiment.feed(20)
    experiment.delete_head(0, 15)
    before = experiment.committed(), experiment.output()
    with pytest.raises(OffsetsOutOfRange) as caught:
        experiment.run("r2")
    text = str(caught.value)
    for part in ("starts at 15", "range at 10", "10 to 14 were deleted", "Restore them", "reset-offsets"):
        assert part in text
    assert (experiment.committed(), experiment.output()) == before


def test_a_head_that_is_deleted_while_a_run_reads_is_an_error_too(experiment):
    """C5: records deleted after the plan make the reading task fail; it does not reset to the log start."""
    experiment.feed(20)
    with pytest.raises(OffsetsOutOfRange, match="deleted"):
        experiment.run(on_state=lambda state: state is State.PLANNED and experiment.delete_head(0, 5))
    assert experiment.output() == []
    assert experiment.committed() == [-1, -1]


def test_without_law_5_the_tasks_still_refuse(experiment, monkeypatch):
    """C5, counter-test: without the planner's check, the tasks that fetch the records refuse."""
    monkeypatch.setattr(laws, "within_log", lambda wanted, log_start, last_stable, mode: None)
    experiment.feed(20)
    experiment.run()
    experiment.feed(20)
    experiment.delete_head(0, 15)
    with pytest.raises(OffsetsOutOfRange, match="nothing was skipped"):
        experiment.run("r2")


def test_a_consumer_that_resets_loses_the_head_in_silence(experiment):
    """C5, contrast: auto.offset.reset=earliest resumes at the new log start, without an error."""
    sent = experiment.feed(20)
    arguments = (
        experiment.kafka.client_config(),
        experiment.source,
        experiment.sink,
        experiment.spec.group_id,
    )
    assert in_a_process(without_transactions.copy, *arguments, "output first") == 0
    sent += experiment.feed(20)
    experiment.delete_head(0, 15)
    assert in_a_process(without_transactions.copy, *arguments, "output first") == 0
    lost, duplicated = judged(experiment)
    assert (lost, duplicated) == ([f"0:{n:06d}" for n in range(10, 15)], [])


# -- C6: offsets that expire, topics recreated, partitions added, intervals with late records -----------


def test_offsets_that_expired_start_nothing_again(experiment):
    """C6: the broker deleted the group's offsets: the run goes on from the ledger's cursor, and notes it."""
    experiment.feed(20)
    experiment.run()
    experiment.forget_offsets()
    assert experiment.committed() == [-1, -1]
    experiment.feed(10)
    record = experiment.run("r2")
    experiment.assert_exact()
    assert "expired" in record.details["notes"][0]


def test_a_consumer_whose_offsets_expired_begins_again(experiment):
    """C6, contrast: auto.offset.reset=earliest repeats everything."""
    sent = experiment.feed(20)
    arguments = (
        experiment.kafka.client_config(),
        experiment.source,
        experiment.sink,
        experiment.spec.group_id,
    )
    assert in_a_process(without_transactions.copy, *arguments, "output first") == 0
    experiment.forget_offsets()
    assert in_a_process(without_transactions.copy, *arguments, "output first") == 0
    assert judged(experiment) == ([], sorted(sent))


@pytest.mark.chaos
def test_the_broker_itself_expires_the_offsets():
    """C6: the broker deletes the offsets after offsets.retention.minutes=1; the ledger's cursor stays."""
    settings = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    with EmbeddedKafka(broker_config=settings) as kafka:
        experiment = Experiment(kafka)
        experiment.feed(20)
        experiment.run()
        deadline = time.monotonic() + 150
        while experiment.committed() != [-1, -1]:
            assert time.monotonic() < deadline, "the broker kept the offsets"
            time.sleep(1)
        experiment.feed(10)
        record = experiment.run("r2")
        assert "expired" in record.details["notes"][0]
        experiment.assert_exact()


def make_again(experiment):
    experiment.kafka.delete_topic(experiment.source)
    experiment.kafka.create_topic(experiment.source, partitions=experiment.partitions)


def test_a_topic_made_again_is_never_read_from_the_old_position(experiment):
    """C6: a recreated topic has the same name but another topic id: refused, nothing is skipped."""
    experiment.feed(4)
    experiment.run()
    make_again(experiment)
    experiment.publish(["new0", "new1", "new2"])
    with pytest.raises(TopicRecreated, match="deleted and recreated"):
        experiment.run("r2")
    assert experiment.verdict().exact


def test_without_law_5_a_topic_made_again_loses_its_head(experiment, monkeypatch):
    """C6, counter-test: with topic ids unchecked, the old offsets skip the new topic's first records."""
    monkeypatch.setattr(laws, "topics_unchanged", lambda *_, **__: None)
    experiment.feed(4)
    experiment.run()
    make_again(experiment)
    fresh = ["new0", "new1", "new2"]
    experiment.publish(fresh)
    # A deleted topic's committed offsets are deleted with it; the ledger's cursor still says 2.
    experiment.publish(["other0", "other1"], partition=1)
    experiment.run("r2")
    lost, _ = lost_and_duplicated([*experiment.sent, *fresh, "other0", "other1"], experiment.output())
    assert lost == ["new0", "new1", "other0", "other1"]


def test_partitions_that_are_added_are_read_from_their_first_record(experiment):
    """C6: policy latest is for the first run only; a partition that the cursor does not know begins at 0."""
    latest = Cursor(start="latest")
    experiment.run(ranges=latest)
    experiment.add_partitions(experiment.source, 3)
    experiment.publish(["new"], partition=2)
    experiment.run("r2", ranges=latest)
    assert experiment.output() == ["new"]


def test_a_consumer_with_policy_latest_skips_what_added_partitions_hold(experiment):
    """C6, contrast: the records written before the consumer noticed the new partition are lost."""
    experiment.add_partitions(experiment.source, 3)
    experiment.publish(["new"], partition=2)
    consumer = Consumer(
        group_settings(experiment, **{"auto.offset.reset": "latest", "enable.partition.eof": True})
    )
    consumer.assign([ClientPartition(experiment.source, 2, OFFSET_STORED)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert is_end(message, 1)  # after "new", which was never delivered


def minute(number):
    return DAY + dt.timedelta(minutes=number)


def publish_at(experiment, value, minutes, partition=0):
    experiment.publish([value], partition=partition, timestamp=int(minute(minutes).timestamp() * 1000))
    experiment.sent.append(value)


def interval_runs(experiment, starts):
    for start in starts:
        experiment.run(f"i{start}", ranges=Interval(minute(start), minute(start + 5)))


def late_between_two_intervals(experiment):
    """Minutes 1, 6, 11 in partition 0; between two runs a record of minute 3 in the idle partition."""
    for number in (1, 6, 11):
        publish_at(experiment, f"m{number}", number)
    interval_runs(experiment, [0])
    publish_at(experiment, "late", 3, partition=1)
    interval_runs(experiment, [5])


def test_two_intervals_around_a_late_record_hold_it_once(experiment):
    """C6: boundaries are pinned once: the second interval has the late record, also in reverse and again."""
    late_between_two_intervals(experiment)
    interval_runs(experiment, [10, 0, 5])
    assert experiment.verdict().exact


def test_boundaries_that_are_asked_for_again_lose_a_late_record(experiment):
    """C6, counter-test: if every run looks up its boundary anew, the late record is in no interval."""
    both = [TopicPartition(experiment.source, p) for p in (0, 1)]

    def first_offsets(moment):
        with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
            at = list_offsets(connections, both, int(moment.timestamp() * 1000))
            ends = list_offsets(connections, both, "latest")
        return {tp: ends[tp] if at[tp] == NO_OFFSET else at[tp] for tp in both}

    def run(start):
        lower, upper = first_offsets(minute(start)), first_offsets(minute(start + 5))
        ranges = tuple(OffsetRange(tp.topic, tp.partition, lower[tp], upper[tp]) for tp in both)
        experiment.run(f"i{start}", ranges=Explicit(ranges))

    for number in (1, 6, 11):
        publish_at(experiment, f"m{number}", number)
    run(0)
    publish_at(experiment, "late", 3, partition=1)
    run(5)
    run(10)
    assert judged(experiment) == (["late"], [])
