"""Produce on real brokers: every sealed batch once, in order, or an error and nothing visible."""

from __future__ import annotations

import threading
import time
from collections import Counter

import kafka.errors as kafka_errors
import pytest
from kafka.future import Future

from airflow_eos.exceptions import (
    BrokersUnavailable,
    DeliveryTimedOut,
    DuplicateReceipt,
    ProducerFenced,
    ProtocolViolation,
    RecordTooLarge,
    UnknownTopic,
)
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.wire import partition_queue
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import describe_producers, end_txn
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.faults import KafkaProxy
from tests.support import wire_requests as support
from tests.support.cases import rest_in_chaos
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until
from tests.support.wire_requests import (
    commit,
    during,
    end_of,
    open_transaction,
    partition,
    read,
    sealed,
    slowly,
    texts,
    values_of,
)


def test_receipts_say_what_the_log_and_the_broker_say(connections, kafka_topic):
    """Offsets, counts and sequences of several partitions, one of them without batches."""
    topic = kafka_topic("out", partitions=4)
    every = [partition(topic, n) for n in range(4)]
    identity = open_transaction(connections, topic, every)
    batches = {
        every[0]: sealed(texts("a", 95)),
        every[1]: sealed(texts("b", 3)),
        every[2]: iter(sealed(texts("c", 40))),
    }
    receipts = send_partitions(connections, identity, {**batches, every[3]: []})
    assert [
        (r.partition, r.first_offset, r.last_offset, r.records, r.batches, r.last_sequence) for r in receipts
    ] == [
        (0, 0, 94, 95, 10, 94),
        (1, 0, 2, 3, 1, 2),
        (2, 0, 39, 40, 4, 39),
        (3, -1, -1, 0, 0, -1),
    ]
    assert receipts[3] == PartitionReceipt(topic, 3, -1, -1, 0, 0, 0, -1)
    producers = describe_producers(connections, every)
    for receipt, tp in zip(receipts[:3], every, strict=False):
        (producer,) = producers[tp]
        assert (producer.producer_id, producer.producer_epoch) == (
            identity.producer_id,
            identity.producer_epoch,
        )
        assert producer.last_sequence == receipt.last_sequence
    assert producers[every[3]] == ()
    assert read(connections, every[0]) == []
    commit(connections, identity, receipts)
    assert read(connections, every[0]) == list(enumerate(texts("a", 95)))
    assert values_of(read(connections, every[2])) == texts("c", 40)


def test_a_second_transaction_continues_behind_the_first(connections, kafka_topic):
    """Sequences begin at 0 again in a new epoch; offsets continue after the marker."""
    tp = partition(kafka_topic("twice"))
    for expected_first, prefix in ((0, "a"), (21, "b")):
        identity = open_transaction(connections, "twice", [tp])
        (receipt,) = send_partitions(connections, identity, {tp: sealed(texts(prefix, 20))})
        assert (receipt.first_offset, receipt.last_sequence) == (expected_first, 19)
        commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == texts("a", 20) + texts("b", 20)


def test_the_same_batches_in_the_same_epoch_are_found(connections, kafka_topic):
    """The broker acknowledges the retry with the old offsets: nothing is written, and an error says so."""
    tp = partition(kafka_topic("again"))
    identity = open_transaction(connections, "again", [tp])
    (receipt,) = send_partitions(connections, identity, {tp: sealed(texts("a", 30))})
    with pytest.raises(DuplicateReceipt, match="acknowledged at offset 0, below 30"):
        send_partitions(connections, identity, {tp: sealed(texts("other", 30))})
    commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == texts("a", 30)


def test_a_second_attempt_that_is_longer_than_the_brokers_memory_is_found(connections, kafka_topic):
    """After more than five batches an old sequence is refused, and the run stops."""
    tp = partition(kafka_topic("again-long"))
    identity = open_transaction(connections, "again-long", [tp])
    send_partitions(connections, identity, {tp: sealed(texts("a", 100))})
    with pytest.raises(ProtocolViolation, match="OUT_OF_ORDER_SEQUENCE"):
        send_partitions(connections, identity, {tp: sealed(texts("other", 100))})
    end_txn(connections, identity, commit=False)


def test_lost_answers_are_repeated_without_a_duplicate(connections, kafka_topic, monkeypatch):
    """The broker wrote the batches but the client got no answer: the broker recognises the retry."""
    tp = partition(kafka_topic("lost"))
    identity = open_transaction(connections, "lost", [tp])
    send = connections.send
    counted = Counter()

    def lossy(request, node, **options):
        future = send(request, node, **options)
        if type(request).__name__ != "ProduceRequest":
            return future
        counted["requests"] += 1
        if counted["requests"] not in (1, 4, 5, 6, 9):
            return future
        heard = Future()
        future.add_callback(lambda _: heard.failure(kafka_errors.KafkaConnectionError("answer lost")))
        future.add_errback(heard.failure)
        return heard

    monkeypatch.setattr(connections, "send", lossy)
    (receipt,) = send_partitions(connections, identity, {tp: sealed(texts("a", 200))})
    assert counted["requests"] > 20
    assert (receipt.first_offset, receipt.last_offset, receipt.records) == (0, 199, 200)
    commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == texts("a", 200)


def test_a_fenced_writer_writes_nothing(connections, kafka_topic):
    """A newer attempt has the epoch: the old one is refused."""
    tp = partition(kafka_topic("fenced"))
    old = open_transaction(connections, "fenced", [tp])
    new = open_transaction(connections, "fenced", [tp])
    with pytest.raises(ProducerFenced, match="newer attempt"):
        send_partitions(connections, old, {tp: sealed(texts("old", 30))})
    (receipt,) = send_partitions(connections, new, {tp: sealed(texts("new", 30))})
    commit(connections, new, [receipt])
    assert values_of(read(connections, tp)) == texts("new", 30)


def test_a_writer_is_fenced_in_the_middle(connections, kafka_topic):
    """A takeover with batches in flight stops the old attempt: only the new one's records are visible."""
    topic = kafka_topic("taken", partitions=3)
    every = [partition(topic, n) for n in range(3)]
    old = open_transaction(connections, "taken", every)

    def until_taken_over():
        pairs = sealed(texts("old", 400))
        yield from pairs[:20]
        with BrokerConnections(connections.config) as other:
            fresh.append(open_transaction(other, "taken", every))
        yield from pairs[20:]

    fresh = []
    with pytest.raises(ProducerFenced):
        send_partitions(
            connections,
            old,
            {every[0]: until_taken_over(), every[1]: slowly(sealed(texts("old", 400)), 0.005)},
        )
    receipts = send_partitions(connections, fresh[0], {tp: sealed(texts("new", 25)) for tp in every})
    commit(connections, fresh[0], receipts)
    for tp in every:
        assert values_of(read(connections, tp)) == texts("new", 25)


def test_a_partition_that_was_not_added_is_refused(connections, kafka_topic):
    """Because of a bug in the driver, or a late writer: nothing is written, no retry."""
    topic = kafka_topic("unknown-to-txn", partitions=2)
    identity = open_transaction(connections, topic, [partition(topic, 0)])
    with pytest.raises(ProtocolViolation, match=r"not in the transaction"):
        send_partitions(connections, identity, {partition(topic, 1): sealed(texts("a", 3))})
    assert end_of(connections, partition(topic, 1), "read_uncommitted") == 0
    end_txn(connections, identity, commit=False)


@pytest.mark.parametrize("committed", [True, False])
def test_a_writer_that_comes_after_the_end_is_refused(connections, kafka_topic, committed):
    """After commit or abort, the same epoch writes nothing."""
    tp = partition(kafka_topic("late"))
    identity = open_transaction(connections, f"late-{committed}", [tp])
    (receipt,) = send_partitions(connections, identity, {tp: sealed(texts("a", 3))})
    end_txn(connections, identity, commit=committed)
    support.wait_for_marker(connections, tp, receipt.last_offset)
    with pytest.raises((ProtocolViolation, ProducerFenced)):
        send_partitions(
            connections,
            identity,
            {
                tp: sealed(
                    texts(
                        "b",
                        3,
                    ),
                    records_per_batch=1,
                )
            },
        )
    assert values_of(read(connections, tp)) == (texts("a", 3) if committed else [])


def test_another_producers_identity_is_refused(connections, kafka_topic):
    """A producer id that does not belong to the transactional id."""
    tp = partition(kafka_topic("stranger"))
    identity = open_transaction(connections, "stranger", [tp])
    stranger = ProducerIdentity("stranger", identity.producer_id + 999, 0)
    with pytest.raises(ProtocolViolation, match="do not belong together"):
        send_partitions(connections, stranger, {tp: sealed(texts("a", 3))})
    end_txn(connections, identity, commit=False)


def test_a_batch_above_the_topics_limit_names_the_setting(connections, kafka_topic):
    """The topic's max.message.bytes decides."""
    tp = partition(kafka_topic("small", config={"max.message.bytes": "2000"}))
    identity = open_transaction(connections, "small", [tp])
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        send_partitions(connections, identity, {tp: sealed(["x" * 5000])})
    end_txn(connections, identity, commit=False)


def test_an_unknown_topic_is_named_before_anything_is_sent(connections):
    """The end offsets are read first."""
    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-topic"):
        send_partitions(connections, ProducerIdentity("x", 1, 0), {partition("no-such-topic"): sealed(["a"])})


def test_many_partitions_share_few_requests(connections, kafka_topic, monkeypatch):
    """36 partitions: the first batches are sent in one request, and the output is exact."""
    topic = kafka_topic("many", partitions=36)
    every = [partition(topic, n) for n in range(36)]
    identity = open_transaction(connections, topic, every)
    send = connections.send
    sizes = []

    def counting(request, node, **options):
        if type(request).__name__ == "ProduceRequest":
            sizes.append(sum(len(topic.partition_data) for topic in request.topic_data))
        return send(request, node, **options)

    monkeypatch.setattr(connections, "send", counting)
    receipts = send_partitions(connections, identity, {tp: sealed(texts("v", 30)) for tp in every})
    assert sizes[0] == 36
    commit(connections, identity, receipts)
    for tp in every:
        assert values_of(read(connections, tp)) == texts("v", 30)


def test_the_source_is_read_only_as_fast_as_it_is_sent(connections, kafka_topic):
    """At most one window of batches is in memory."""
    tp = partition(kafka_topic("lazy"))
    identity = open_transaction(connections, "lazy", [tp])
    taken = []

    def source():
        for number, pair in enumerate(sealed(texts("a", 300))):
            taken.append((number, end_of_written()))
            yield pair

    def end_of_written():
        with BrokerConnections(connections.config) as other:
            return end_of(other, tp, "read_uncommitted") // 10

    send_partitions(connections, identity, {tp: source()})
    assert max(number - written for number, written in taken) <= 6
    end_txn(connections, identity, commit=False)


@pytest.fixture(scope="module")
def killed_kafka():
    """One broker for the tests that kill and restart it."""
    with EmbeddedKafka(broker_config=support.QUICK_SESSIONS) as kafka:
        yield kafka


def test_a_killed_broker_that_comes_back_costs_nothing_but_time(killed_kafka, kafka_topic, monkeypatch):
    """The only broker is killed during a send, one batch at a time, and restarted: the output is exact."""
    monkeypatch.setattr(partition_queue, "MAX_IN_FLIGHT", 1)
    kafka = killed_kafka
    with BrokerConnections(kafka.client_config()) as connections:
        topic = kafka_topic("crash", partitions=3, kafka=kafka)
        every = [partition(topic, n) for n in range(3)]
        identity = open_transaction(connections, topic, every)

        def crash():
            kafka.brokers[0].kill()
            kafka.brokers[0].start(wait=False)

        fault = during(0.3, crash)
        batches = {tp: slowly(sealed(texts(str(tp), 400)), 0.005) for tp in every}
        receipts = send_partitions(connections, identity, batches)
        fault.join()
        assert [r.records for r in receipts] == [400] * 3
        commit(connections, identity, receipts)
        for tp in every:
            assert values_of(read(connections, tp)) == texts(str(tp), 400)


@pytest.fixture
def send_over_a_restart(killed_kafka, kafka_topic):
    """Write batches of ten; all acknowledgements but the first are lost with the only broker.

    Returns what the send returned or raised, the direct connections, the identity and the partition.
    """
    kafka = killed_kafka
    with (
        KafkaProxy(kafka.bootstrap_servers) as proxy,
        BrokerConnections(kafka.client_config()) as direct,
        BrokerConnections(proxy.client_config(kafka.client_config())) as connections,
    ):
        tp = partition(kafka_topic("restart", kafka=kafka))
        identity = open_transaction(direct, tp.topic, [tp])

        def send(unanswered):
            pairs = sealed(texts("a", 10 * (unanswered + 1)))

            def source():
                yield pairs[0]
                silence = proxy.lose_response("Produce", times=None, silent=True)
                restart = threading.Thread(target=when_written, args=(silence,))
                restart.start()
                yield from pairs[1:]

            def when_written(silence):
                wait_until(lambda: end_of(direct, tp, "read_uncommitted") == 10 * len(pairs))
                kafka.brokers[0].kill()
                silence.cancel()
                kafka.brokers[0].start(wait=False)

            return send_partitions(connections, identity, {tp: source()})

        yield send, direct, identity, tp


def test_a_restarted_broker_knows_the_last_batch_again(send_over_a_restart):
    """Its acknowledgement was lost with the broker; the retry is answered with the old offset."""
    send, connections, identity, tp = send_over_a_restart
    (receipt,) = send(unanswered=1)
    assert (receipt.first_offset, receipt.last_offset, receipt.batches) == (0, 19, 2)
    commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == texts("a", 20)


@pytest.mark.parametrize("unanswered", rest_in_chaos(1, [2, 5]))
def test_a_restarted_broker_has_forgotten_all_but_the_last_batch(send_over_a_restart, unanswered):
    """It cannot tell the retry from a second attempt: the attempt ends, and the next one is exact."""
    send, connections, identity, tp = send_over_a_restart
    with pytest.raises(ProtocolViolation, match=r"restart-\w+-0 \(sequence 10, .* or the broker restarted"):
        send(unanswered)
    end_txn(connections, identity, commit=False)
    identity = open_transaction(connections, tp.topic, [tp])
    (receipt,) = send_partitions(connections, identity, {tp: sealed(texts("b", 30))})
    commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == texts("b", 30)


def test_a_broker_that_stays_dead_times_out():
    """The error names the partition; nothing hangs."""
    with EmbeddedKafka() as kafka, BrokerConnections(kafka.client_config()) as connections:
        tp = partition(kafka.create_topic("dead"))
        identity = open_transaction(connections, "dead", [tp])

        def until_dead():
            pairs = sealed(texts("a", 100))
            yield pairs[0]
            kafka.brokers[0].kill()
            yield from pairs[1:]

        with pytest.raises(DeliveryTimedOut, match=r"dead-0: .* within 2 s"):
            send_partitions(connections, identity, {tp: until_dead()}, delivery_timeout=2.0)
        with pytest.raises(BrokersUnavailable, match=r"coordinator|EndTxn"):
            end_txn(connections, identity, commit=False, timeout=1.0)


@pytest.mark.parametrize(
    "security",
    ["SASL_SSL", *(pytest.param(each, marks=pytest.mark.chaos) for each in ("SASL_PLAINTEXT", "SSL"))],
)
def test_secured_brokers_are_written_and_read(security):
    """TLS and SCRAM with the configuration of a confluent-kafka client; enough data to fill buffers."""
    with (
        EmbeddedKafka(security=security) as kafka,
        BrokerConnections(kafka.client_config()) as connections,
    ):
        tp = partition(kafka.create_topic("secured"))
        identity = open_transaction(connections, "secured", [tp])
        values = [f"{n:06d}" + "x" * 1000 for n in range(20_000)]
        began = time.monotonic()
        receipts = send_partitions(connections, identity, {tp: sealed(values, 800)})
        elapsed = time.monotonic() - began
        commit(connections, identity, receipts)
        assert values_of(read(connections, tp)) == values
        assert elapsed < 60
