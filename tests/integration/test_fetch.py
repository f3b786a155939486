"""Fetch on real brokers: exactly the committed records of a range, or an error."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka.protocol.producer import ProduceRequest

from airflow_eos.exceptions import FetchStalled, OffsetsOutOfRange, UnknownTopic
from airflow_eos.recordbatch.stamp import stamp
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import end_txn
from airflow_eos_testing import EmbeddedKafka
from tests.support import wire_requests as support
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until
from tests.support.topic_settings import COMPACTED_SOON
from tests.support.wire_requests import end_of, fetch_range, partition, read, texts, transaction, values_of


@pytest.fixture
def mixed(connections, kafka_topic):
    """A partition of committed and aborted transactions, some interleaved; and its committed records."""
    sink = partition(kafka_topic("mixed"))
    committed = []

    def add(prefix, count, commit, per_batch):
        receipt = transaction(
            connections, sink, texts(prefix, count), commit=commit, records_per_batch=per_batch
        )
        if commit:
            committed.extend(
                zip(range(receipt.first_offset, receipt.last_offset + 1), texts(prefix, count), strict=True)
            )

    add("a", 25, commit=True, per_batch=10)
    add("gone", 33, commit=False, per_batch=7)
    add("b", 5, commit=True, per_batch=2)
    # Two transactions at once, batch by batch: one commits, the other aborts.
    left = support.open_transaction(connections, f"left-{sink}", [sink])
    right = support.open_transaction(connections, f"right-{sink}", [sink])
    sources = {
        left: iter(support.sealed(texts("left", 30), 5)),
        right: iter(support.sealed(texts("right", 30), 5)),
    }
    offsets = interleave(connections, sink, sources)
    end_txn(connections, right, commit=False)
    committed.extend(zip(offsets[left], texts("left", 30), strict=True))
    end_txn(connections, left, commit=True)
    support.wait_for_marker(connections, sink, max(offsets[right] + offsets[left]) + 1)
    add("gone2", 12, commit=False, per_batch=100)
    add("c", 40, commit=True, per_batch=3)
    return sink, committed


def interleave(connections, sink, sources):
    """Write batches of several open transactions in turn; return the offsets per identity."""
    turn = threading.Condition()
    order = list(sources)
    state = {"next": 0}
    offsets = {identity: [] for identity in sources}
    config = connections.config

    def paced(identity, source):
        for pair in source:
            with turn:
                turn.wait_for(lambda: order[state["next"] % len(order)] is identity, timeout=30)
                state["next"] += 1
                yield pair
                turn.notify_all()

    def write(identity, source):
        with BrokerConnections(config) as own:
            for pair in paced(identity, source):
                records, data = pair
                sequence = len(offsets[identity])
                base = send_one(own, identity, sink, data, sequence)
                offsets[identity].extend(range(base, base + records))

    threads = [threading.Thread(target=write, args=item) for item in sources.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return offsets


def send_one(connections, identity, sink, data, sequence):
    """One raw Produce with a given sequence, retried while the transaction is being verified."""
    topic_class = ProduceRequest.TopicProduceData
    stamped = stamp(data, identity.producer_id, identity.producer_epoch, sequence)

    def attempt():
        (node,) = set(connections.topics([sink.topic])[sink.topic].leaders.values())
        part = topic_class.PartitionProduceData(index=sink.partition, records=stamped)
        request = ProduceRequest(
            transactional_id=identity.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[topic_class(name=sink.topic, partition_data=[part])],
            max_version=9,
        )
        answer = connections.wait(connections.send(request, node)).responses[0].partition_responses[0]
        assert answer.error_code in (0, 19), answer
        return None if answer.error_code else (answer.base_offset,)

    return wait_until(attempt)[0]


def test_committed_records_only_with_every_offset(connections, mixed):
    """Aborted ranges and control markers are omitted; offsets are the log's own."""
    source, committed = mixed
    assert read(connections, source) == committed


@pytest.mark.parametrize("max_bytes", [1, 300, 2000, 1 << 20])
def test_the_size_of_answers_changes_nothing(connections, mixed, max_bytes):
    """Also when an answer begins inside an aborted transaction, or holds a single batch above the limit."""
    source, committed = mixed
    assert read(connections, source, max_bytes=max_bytes) == committed


def test_any_slice_is_exact(connections, mixed):
    """A range may begin and end in the middle of a batch, in an aborted range, or at a marker."""
    source, committed = mixed
    end = end_of(connections, source)
    rng = random.Random(5)
    slices = [(start, start + 1) for start in range(0, end, 3)]
    slices += [tuple(sorted((rng.randrange(end + 1), rng.randrange(end + 1)))) for _ in range(60)]
    for start, stop in slices:
        expected = [pair for pair in committed if start <= pair[0] < stop]
        assert read(connections, source, start, stop) == expected, (start, stop)


def test_uncommitted_reading_shows_aborted_records_but_no_markers(connections, mixed):
    """read_uncommitted returns every record that was written, each once."""
    source, committed = mixed
    seen = read(connections, source, isolation="read_uncommitted")
    assert set(committed) < set(seen)
    assert len(seen) == len(set(seen)) == 25 + 33 + 5 + 30 + 30 + 12 + 40


def test_an_empty_range_asks_nobody(connections):
    """start == end: no request is sent, whatever the topic."""
    assert list(fetch_range(connections, "no-such-topic", 0, 7, 7)) == []


def test_a_range_that_ends_in_markers_and_aborted_records_is_finished(connections, kafka_topic):
    """The position decides: there may be only gaps after the last record."""
    source = partition(kafka_topic("gaps"))
    transaction(connections, source, texts("a", 3))
    transaction(connections, source, texts("gone", 50), commit=False)
    assert values_of(read(connections, source)) == texts("a", 3)
    assert read(connections, source, 4) == []


def test_answers_are_bounded_and_cover_the_range(connections, kafka_topic):
    """Raw answers follow each other without gaps, each about as large as the requested number of bytes."""
    source = partition(kafka_topic("big"))
    values = [f"{n:05d}" + "x" * 1000 for n in range(3000)]
    transaction(connections, source, values, records_per_batch=50)
    answers = list(fetch_answers(connections, source, 0, end_of(connections, source), max_bytes=200_000))
    assert [a.position for a in answers[1:]] == [a.next_position for a in answers[:-1]]
    assert max(len(answer.data) for answer in answers) <= 200_000
    assert len(answers) > 10


def test_memory_stays_bounded(embedded_kafka, connections, kafka_topic):
    """A process that reads a partition of 200 MB grows by a few answers, not by the partition."""
    source = partition(kafka_topic("huge"))
    value = "x" * 100_000
    transaction(connections, source, [f"{n:05d}{value}" for n in range(2000)], records_per_batch=8)
    code = """
        import re, sys
        from pathlib import Path
        from airflow_eos.model.ranges import TopicPartition
        from airflow_eos.wire.connection import BrokerConnections
        from airflow_eos.wire.fetch import decoded, fetch_answers

        def peak_mb():
            # Not getrusage: there a new process begins with the peak of the one that started it.
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

        servers, topic, end = sys.argv[1:]
        with BrokerConnections({"bootstrap.servers": servers}) as connections:
            def read(end):
                answers = fetch_answers(connections, TopicPartition(topic, 0), 0, end)
                return sum(len(batch) for batch in decoded(connections, answers, 0, end))

            read(8)
            before = peak_mb()
            count = read(int(end))
            print(count, peak_mb() - before)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), embedded_kafka.bootstrap_servers, source.topic, "2000"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )
    count, grown_mb = map(int, done.stdout.split())
    assert count == 2000
    assert grown_mb < 64


def test_reading_waits_for_an_open_transaction(embedded_kafka, connections, kafka_topic, monkeypatch):
    """A range above the last stable offset is complete once the transaction commits."""
    source = partition(kafka_topic("open"))
    transaction(connections, source, texts("a", 3))
    identity = support.open_transaction(connections, f"open-{source}", [source])
    send_partitions(connections, identity, {source: support.sealed(texts("b", 3))})
    end = end_of(connections, source, "read_uncommitted")

    send = connections.send
    offsets = []

    def committed_meanwhile(request, node, **options):
        if type(request).__name__ == "FetchRequest":
            offsets.append(request.topics[0].partitions[0].fetch_offset)
            if offsets.count(4) == 3:  # two answers had nothing
                with BrokerConnections(embedded_kafka.client_config()) as own:
                    end_txn(own, identity, commit=True)
        return send(request, node, **options)

    monkeypatch.setattr(connections, "send", committed_meanwhile)
    assert values_of(read(connections, source, 0, end)) == texts("a", 3) + texts("b", 3)
    assert offsets.count(4) >= 3


def test_a_transaction_that_stays_open_stalls_the_read(connections, kafka_topic):
    """The error names the position, the end and the last stable offset that holds it up."""
    source = partition(kafka_topic("stuck"))
    transaction(connections, source, texts("a", 3))
    identity = support.open_transaction(connections, f"stuck-{source}", [source])
    send_partitions(connections, identity, {source: support.sealed(texts("b", 3))})
    with pytest.raises(
        FetchStalled, match=r"at offset 4 \(the end is 7\) for 1 s; .*last stable offset.* is 4"
    ):
        read(connections, source, 0, 7, stall_timeout=1.0)
    end_txn(connections, identity, commit=False)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_an_end_above_the_log_stalls(connections, kafka_topic, isolation):
    """As with a topic that was recreated since the plan: the error blames no transaction."""
    source = partition(kafka_topic("short"))
    transaction(connections, source, texts("a", 3))
    with pytest.raises(FetchStalled, match=r"high watermark is 4 \(the topic was recreated"):
        read(connections, source, 0, 9, isolation=isolation, stall_timeout=0.6)


def test_deleted_records_are_an_error_never_a_reset(embedded_kafka, connections, kafka_topic):
    """The error has both offsets; a range that begins at the log start is fine."""
    source = partition(kafka_topic("cut"))
    transaction(connections, source, texts("a", 30))
    futures = embedded_kafka.admin().delete_records([ConfluentPartition(source.topic, 0, 12)])
    for future in futures.values():
        future.result(30)
    with pytest.raises(OffsetsOutOfRange, match="begins at offset 12, above the requested 5"):
        read(connections, source, 5)
    assert values_of(read(connections, source, 12)) == texts("a", 30)[12:]


def test_records_deleted_while_reading_are_an_error(embedded_kafka, connections, kafka_topic):
    """Retention that overtakes a slow reader is found in the middle of the range."""
    source = partition(kafka_topic("overtaken"))
    transaction(connections, source, texts("a", 100), records_per_batch=5)
    reader = fetch_range(connections, source.topic, 0, 0, 100, max_bytes=1)
    got = [next(reader)]
    futures = embedded_kafka.admin().delete_records([ConfluentPartition(source.topic, 0, 60)])
    for future in futures.values():
        future.result(30)
    with pytest.raises(OffsetsOutOfRange, match="begins at offset 60"):
        got.extend(reader)
    assert [int(offset) for batch in got for offset in batch.offset][:5] == [0, 1, 2, 3, 4]


def test_an_offset_behind_the_log_is_an_error(connections, kafka_topic):
    """As after a topic was recreated: the log ends below the requested offset."""
    source = partition(kafka_topic("new"))
    transaction(connections, source, texts("a", 3))
    with pytest.raises(OffsetsOutOfRange, match="ends at offset 4, below the requested 50"):
        read(connections, source, 50, 60)


def test_an_unknown_topic_or_partition_is_named(connections, kafka_topic):
    """A missing topic and a missing partition."""
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        read(connections, partition("no-such-topic"), 0, 1)
    topic = kafka_topic("one")
    with pytest.raises(UnknownTopic, match="none has number 9"):
        read(connections, partition(topic, 9), 0, 1)


def test_a_deleted_topic_ends_the_read(embedded_kafka, connections, kafka_topic):
    """If it is deleted during the read, an error names it, instead of a wait for minutes."""
    source = partition(kafka_topic("deleted"))
    transaction(connections, source, texts("a", 100), records_per_batch=5)
    reader = fetch_range(connections, source.topic, 0, 0, 101, max_bytes=1)
    next(reader)
    embedded_kafka.delete_topic(source.topic)
    with missing_at_once(), pytest.raises(UnknownTopic, match=source.topic):
        list(reader)


def test_a_compacted_log_with_holes_is_read_exactly(embedded_kafka, connections, kafka_topic):
    """Batches and single records are missing: the rest is read; a range without any record ends."""
    source = partition(kafka_topic("compacted", config=COMPACTED_SOON))
    # One batch per flush: a second one could overtake a refused one.
    producer = Producer({**embedded_kafka.client_config(), "linger.ms": 60_000})
    for n in range(100):
        producer.produce(source.topic, key=b"same" if n % 10 else b"key%d" % n, value=b"v%d" % n)
        if n % 20 == 19:
            producer.flush(10)
    expected = [(n, f"v{n}") for n in range(0, 100, 10)] + [(99, "v99")]

    def compacted():
        # The next record rolls a segment that is old enough; the active one is never cleaned.
        producer.produce(source.topic, key=b"last", value=b"roll")
        producer.flush(10)
        return read(connections, source, 0, 100) == expected

    wait_until(compacted)
    assert read(connections, source, 51, 60) == []
    assert read(connections, source, 41, 99) == [
        (50, "v50"),
        (60, "v60"),
        (70, "v70"),
        (80, "v80"),
        (90, "v90"),
    ]


def test_reading_survives_a_broker_that_is_killed_and_comes_back():
    """One broker, killed by SIGKILL during a read and restarted: nothing is lost or duplicated."""
    with (
        EmbeddedKafka(broker_config=support.QUICK_SESSIONS) as kafka,
        BrokerConnections(kafka.client_config()) as connections,
    ):
        source = partition(kafka.create_topic("restart"))
        transaction(connections, source, texts("a", 400), records_per_batch=4)
        reader = fetch_range(connections, source.topic, 0, 0, 401, max_bytes=1)
        got = [value for _ in range(20) for value in next(reader).value.to_pylist()]
        kafka.brokers[0].kill()
        kafka.brokers[0].start(wait=False)
        got += [value for batch in reader for value in batch.value.to_pylist()]
        assert [value.decode() for value in got] == texts("a", 400)


def test_offsets_by_question(connections, kafka_topic):
    """Log start, log end for both isolation levels, and by timestamp, for many partitions at once."""
    topic = kafka_topic("offsets", partitions=3)
    first, second, third = (partition(topic, n) for n in range(3))
    transaction(connections, first, texts("a", 10))
    identity = support.open_transaction(connections, f"offsets-{topic}", [second])
    send_partitions(connections, identity, {second: support.sealed(texts("b", 5))})
    every = [first, second, third]
    assert list_offsets(connections, every, "earliest") == dict.fromkeys(every, 0)
    assert list_offsets(connections, every, "latest") == {first: 11, second: 0, third: 0}
    uncommitted = list_offsets(connections, every, "latest", isolation="read_uncommitted")
    assert uncommitted == {first: 11, second: 5, third: 0}
    assert list_offsets(connections, every, 0) == {first: 0, second: -1, third: -1}
    later = int(time.time() * 1000) + 3_600_000
    assert list_offsets(connections, every, later) == dict.fromkeys(every, -1)
    assert list_offsets(connections, [], "latest") == {}
    end_txn(connections, identity, commit=False)


def test_the_first_offset_at_a_time_is_found(embedded_kafka, connections, kafka_topic):
    """The first record whose timestamp is at or after T."""
    topic = kafka_topic("times")
    producer = Producer(embedded_kafka.client_config())
    for n in range(10):
        producer.produce(topic, value=b"v", timestamp=1_700_000_000_000 + n * 1000)
        producer.flush(10)
    source = partition(topic)
    for moment, expected in ((0, 0), (1_700_000_000_000, 0), (1_700_000_000_001, 1), (1_700_000_009_000, 9)):
        assert list_offsets(connections, [source], moment) == {source: expected}
    assert list_offsets(connections, [source], 1_700_000_009_001) == {source: -1}


def test_topics_ids_and_partitions_are_looked_up(embedded_kafka, connections, kafka_topic):
    """Topic ids are those that the admin client shows, in Kafka's form (librdkafka's has + and /)."""
    topic = kafka_topic("known", partitions=3)
    (described,) = embedded_kafka.admin().describe_topics(TopicCollection([topic])).values()
    shown = str(described.result(30).topic_id).translate(str.maketrans("+/", "-_"))
    described = connections.topics([topic])[topic]
    assert (described.topic_id, described.partitions) == (shown, 3)
    assert connections.topics([topic])[topic].leaders == dict.fromkeys(range(3), 1)
    with missing_at_once(), pytest.raises(UnknownTopic, match="'nope'"):
        connections.topics([topic, "nope"])


@pytest.mark.parametrize("version", ["3.9.2"])
def test_older_brokers_are_read_and_written(version):
    """The same requests work on a 3.9 broker."""
    with EmbeddedKafka(version=version) as kafka, BrokerConnections(kafka.client_config()) as connections:
        source = partition(kafka.create_topic("old"))
        transaction(connections, source, texts("a", 30))
        transaction(connections, source, texts("gone", 30), commit=False)
        transaction(connections, source, texts("b", 30))
        assert values_of(read(connections, source)) == texts("a", 30) + texts("b", 30)
