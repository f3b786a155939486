"""Through a real broker: we read what librdkafka writes, and librdkafka reads what we write."""

from __future__ import annotations

import time

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.exceptions import RecordTooLarge
from airflow_eos.recordbatch.compression import Codec
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import end_txn
from tests.support.record_batches import ALPHABET, Record, records, rows
from tests.support.wire_requests import end_of, open_transaction, partition, wait_for_marker

CODECS = [codec.label for codec in Codec]
MOMENT = 1_700_000_000_000
# (timestamp, key, value, headers): nulls, empty ones, tombstones, repeated header keys, several widths.
CONTENT = [
    (MOMENT, b"k", b"v", ()),
    (MOMENT - 9_000_000, None, None, ()),
    (MOMENT + 9_000_000, b"", b"", ()),
    (MOMENT, b"tombstone", None, (("a", b"1"), ("a", None), ("a", b""))),
    (MOMENT, None, b"x" * 20_000, (("ключ", b"\x00\xff"),)),
    *((MOMENT + row, b"%d" % row, b'{"row": %d}' % row * (row % 9), ()) for row in range(3000)),
]
# Old and future timestamps are neither deleted nor refused.
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
# Hypothesis on a shared machine and a shared broker.
SHARED = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# librdkafka's header keys are C strings, which end at a zero byte; its timestamp 0 means now.
CONTENTS = records(min_size=1, alphabet=ALPHABET.replace("\x00", "")).map(
    lambda rows: [(max(row[0], 1), *row[1:]) for row in rows]
)


@pytest.fixture
def producers(embedded_kafka):
    """One librdkafka producer per codec."""
    opened = {}

    def producer(codec):
        if codec not in opened:
            chosen = {
                "compression.type": codec,
                "linger.ms": 60_000,  # one batch per flush: a second one could overtake a refused one
                "partitioner": "murmur2_random",
                "log_level": 0,
            }
            opened[codec] = confluent_kafka.Producer({**embedded_kafka.client_config(), **chosen})
        return opened[codec]

    yield producer
    for each in opened.values():
        each.flush(30)
    opened.clear()


def produce(producer, tp, content):
    """Write (timestamp, key, value, headers) rows and wait for all of them."""
    failed = []
    for timestamp, key, value, headers in content:
        producer.produce(
            tp.topic,
            value,
            key,
            tp.partition,
            timestamp=timestamp,
            headers=list(headers),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []


def fetched(connections, tp, start, end):
    """Raw batches of a range, as the read path sees them."""
    for answer in fetch_answers(connections, tp, start, end):
        yield from data_batches(answer.batches, answer.aborted)


def write(connections, tp, content, codec, **options):
    """Seal, stamp and commit rows in one transaction; return its receipt."""
    timestamp, key, value, headers = zip(*content, strict=True)
    batches = seal(
        pa.array(value, pa.binary()),
        np.full(len(content), tp.partition, np.int32),
        topic=tp.topic,
        key=pa.array(key, pa.binary()),
        timestamp=np.array(timestamp),
        headers=pa.array(headers, HEADERS_TYPE),
        compressor=codec,
        **options,
    )
    identity = open_transaction(connections, f"tx-{tp}", [tp])
    (receipt,) = send_partitions(
        connections, identity, {tp: [(batch.records, batch.data) for batch in batches]}
    )
    end_txn(connections, identity, commit=True)
    wait_for_marker(connections, tp, receipt.last_offset)
    return receipt


def consumed(kafka, tp, start, count):
    """Return what a read_committed librdkafka consumer reads."""
    consumer = confluent_kafka.Consumer(
        {
            **kafka.client_config(),
            "group.id": f"reader-{tp}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, start)])
        received = []
        deadline = time.monotonic() + 60
        while len(received) < count:
            assert time.monotonic() < deadline, f"only {len(received)} of {count} records came"
            for message in consumer.consume(count - len(received), 1.0):
                assert message.error() is None
                kind, moment = message.timestamp()
                assert kind == confluent_kafka.TIMESTAMP_CREATE_TIME
                headers = tuple(message.headers() or ())
                received.append(Record(message.offset(), moment, message.key(), message.value(), headers))
        return received
    finally:
        consumer.close()


def numbered(content, first):
    return [Record(first + index, *row) for index, row in enumerate(content)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_writes_is_decoded(connections, kafka_topic, producers, codec):
    """Every record and field, from batches in the requested codec."""
    tp = partition(kafka_topic("librdkafka", config=ANY_TIME))
    produce(producers(codec), tp, CONTENT)
    batches = list(fetched(connections, tp, 0, len(CONTENT)))
    assert codec in {Codec(batch.header.codec).label for batch in batches}
    assert [row for batch in batches for row in rows(decode_batch(batch))] == numbered(CONTENT, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_is_sealed(embedded_kafka, connections, kafka_topic, codec):
    """The broker validates each codec's stream; the consumer checks CRCs and sees every field."""
    tp = partition(kafka_topic("sealed", config=ANY_TIME))
    receipt = write(connections, tp, CONTENT, codec, batch_bytes=30_000)
    assert (receipt.first_offset, receipt.records) == (0, len(CONTENT))
    assert receipt.batches > 2
    assert consumed(embedded_kafka, tp, 0, len(CONTENT)) == numbered(CONTENT, 0)


@SHARED
@given(contents=st.lists(CONTENTS, min_size=1, max_size=3), codec=st.sampled_from(CODECS))
def test_anything_librdkafka_writes_is_decoded(connections, kafka_topic, producers, contents, codec):
    """Arbitrary keys, values, timestamps and headers."""
    tp = partition(kafka_topic("anything", config=ANY_TIME))
    for content in contents:
        produce(producers(codec), tp, content)
    written = [row for content in contents for row in content]
    decoded = [
        row for batch in fetched(connections, tp, 0, len(written)) for row in rows(decode_batch(batch))
    ]
    assert decoded == numbered(written, 0)


@SHARED
@given(content=CONTENTS, codec=st.sampled_from(CODECS), batch_bytes=st.integers(100, 5000))
def test_librdkafka_reads_anything_that_is_sealed(
    embedded_kafka, connections, kafka_topic, content, codec, batch_bytes
):
    """Arbitrary keys, values, timestamps and headers, split at any record."""
    tp = partition(kafka_topic("anything", config=ANY_TIME))
    write(connections, tp, content, codec, batch_bytes=batch_bytes)
    assert consumed(embedded_kafka, tp, 0, len(content)) == numbered(content, 0)


def test_keys_go_to_the_partitions_of_the_java_partitioner(kafka_topic, producers):
    """librdkafka's murmur2 partitioner is its port of Java's default one."""
    topic = kafka_topic("keys", partitions=7)
    # Without empty keys: murmur2_random spreads them as if they were null, Java hashes them.
    keys = [b"%d" % row * (1 + row % 11) for row in range(500)] + ["ключ".encode(), bytes(1000)]
    placed = {}
    producer = producers("none")
    for key in keys:
        producer.produce(
            topic,
            b"",
            key,
            on_delivery=lambda error, message: placed.update({message.key() or b"": message.partition()}),
        )
    assert producer.flush(60) == 0
    target = partitions_for(len(keys), 7, topic=topic, key=pa.array(keys, pa.binary())).tolist()
    assert target == [placed[key] for key in keys]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_of_exactly_max_message_bytes_is_accepted_and_one_byte_more_is_refused_here(
    embedded_kafka, connections, kafka_topic, codec
):
    """The limit is the broker's own: what it accepts is sent, what it refuses is refused here first."""
    limit = 5000
    tp = partition(kafka_topic("limit", config={"max.message.bytes": str(limit)}))
    noise = np.random.default_rng(5).bytes(limit)

    def sealed(size, bound=limit):
        column = pa.array([noise[:size]], pa.binary())
        (batch,) = seal(
            column, np.zeros(1, np.int32), topic=tp.topic, compressor=codec, max_message_bytes=bound
        )
        return batch

    overhead = len(sealed(4000).data) - 4000
    exact = sealed(limit - overhead)
    assert len(exact.data) == limit
    with pytest.raises(
        RecordTooLarge, match=f"for {tp.topic}-0 takes 5001 bytes .* max.message.bytes of 5000"
    ):
        sealed(limit - overhead + 1)
    identity = open_transaction(connections, f"tx-{tp}", [tp])
    send_partitions(connections, identity, {tp: [(1, exact.data)]})
    end_txn(connections, identity, commit=True)
    wait_for_marker(connections, tp, 0)
    (row,) = consumed(embedded_kafka, tp, 0, 1)
    assert row.value == noise[: limit - overhead]
    # The broker refuses the additional byte, too, if our own check is bypassed.
    identity = open_transaction(connections, f"tx-{tp}", [tp])
    with pytest.raises(RecordTooLarge):
        send_partitions(connections, identity, {tp: [(1, sealed(limit - overhead + 1, bound=10_000).data)]})
    end_txn(connections, identity, commit=False)


@pytest.mark.parametrize("own", ["gzip", "snappy", "lz4", "zstd"])
def test_a_full_batch_leaves_room_for_the_codec_of_its_topic(connections, kafka_topic, own):
    """The broker recompresses and checks that size: data that is already compressed grows a little."""
    limit = 100_000
    config = {"max.message.bytes": str(limit), "compression.type": own}
    tp = partition(kafka_topic("room", config=config))
    noise = np.random.default_rng(5).bytes(limit)
    for size in (limit // 2 - 55, limit // 3 - 45, limit // 4 - 40):  # two, three or four fill a batch
        column = pa.array([noise[:size]] * 12, pa.binary())
        target = np.zeros(12, np.int32)
        batches = seal(column, target, topic=tp.topic, compressor="none", max_message_bytes=limit)
        identity = open_transaction(connections, f"tx-{tp}", [tp])
        sent = [(batch.records, batch.data) for batch in batches]
        (receipt,) = send_partitions(connections, identity, {tp: sent})
        assert receipt.records == 12
        end_txn(connections, identity, commit=True)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_topic_with_log_append_time_gives_the_brokers_times(connections, kafka_topic, producers, codec):
    """The broker rewrites only the header; the producer's timestamp deltas in the records are ignored."""
    tp = partition(kafka_topic("append-time", config={"message.timestamp.type": "LogAppendTime"}))
    before = time.time() * 1000 - 1000
    produce(producers(codec), tp, CONTENT[:100])
    decoded = [decode_batch(batch) for batch in fetched(connections, tp, 0, 100)]
    moments = [moment for batch in decoded for moment in batch.timestamp.tolist()]
    assert len(moments) == 100
    assert all(before < moment < time.time() * 1000 + 1000 for moment in moments)
    assert {batch.timestamp_type.name for batch in decoded} == {"LOG_APPEND_TIME"}


def test_batches_the_broker_compressed_again_are_decoded(connections, kafka_topic, producers):
    """The topic has its own compression type: the batches are of the broker's writer, not a client's."""
    for own in ("gzip", "snappy", "lz4", "zstd"):
        tp = partition(kafka_topic("again", config={**ANY_TIME, "compression.type": own}))
        produce(producers("none"), tp, CONTENT)
        batches = list(fetched(connections, tp, 0, len(CONTENT)))
        assert {Codec(batch.header.codec).label for batch in batches} == {own}
        assert [row for batch in batches for row in rows(decode_batch(batch))] == numbered(CONTENT, 0)
        assert end_of(connections, tp) == len(CONTENT)
