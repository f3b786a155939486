"""Reads of the cluster's state on a real broker: topics, offsets, groups, settings and producers."""

from __future__ import annotations

import gc
import threading
import time
import uuid
import warnings

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition as Position

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError, UnknownTopic
from airflow_eos.model.kafka import (
    CommittedOffset,
    LogBounds,
    ProducerIdentity,
    TimedOffset,
)
from airflow_eos.operators.retriable import is_final
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.groups import fetch_committed_offsets
from airflow_eos_testing import EmbeddedKafka
from tests.support.brokers import (
    QUIET,
    foreign_transaction,
    message,
    tp,
    unique,
    write,
)
from tests.support.group_offsets import commit_offset
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until


def plain_producer(config):
    return confluent_kafka.Producer({**config, **QUIET, "linger.ms": 0})


# -- topics -----------------------------------------------------------------------------------------------


def test_topics_have_an_id_and_a_partition_count(embedded_kafka, cluster, kafka_topic):
    """The id is shown in the form of Kafka's own tools."""
    first, second = kafka_topic(partitions=3), kafka_topic(partitions=1)
    topics = cluster.describe_topics([first, second])
    assert {name: topic.partitions for name, topic in topics.items()} == {first: 3, second: 1}
    collection = confluent_kafka.TopicCollection([first])
    shown = str(embedded_kafka.admin().describe_topics(collection)[first].result().topic_id)
    # librdkafka shows the other base64 alphabet.
    assert topics[first].topic_id == shown.replace("+", "-").replace("/", "_")


def test_a_topic_made_again_has_another_id(embedded_kafka, cluster, kafka_topic):
    """Only the id shows that the records are gone, not the name."""
    name = kafka_topic()
    before = cluster.describe_topics([name])[name].topic_id
    embedded_kafka.delete_topic(name)
    embedded_kafka.create_topic(name)
    assert cluster.describe_topics([name])[name].topic_id != before


def test_an_unknown_topic_is_named(cluster, kafka_topic):
    """UnknownTopic names the topic that does not exist."""
    name = unique("nowhere")
    with pytest.raises(UnknownTopic, match=name):
        cluster.describe_topics([kafka_topic(), name])


def test_a_topic_with_a_similar_name_is_suggested(cluster, kafka_topic):
    """Only topics that this principal may see are suggested."""
    topic = kafka_topic()
    with (
        missing_at_once(),
        pytest.raises(UnknownTopic, match=f"correct the name; did you mean '{topic}'") as refused,
    ):
        cluster.describe_topics([topic[:-1]])
    assert not is_final(refused.value), "it may be on its way"


@pytest.mark.parametrize("name", ["two words", "x" * 250, "..", "a/b"])
def test_a_name_that_no_topic_can_have_is_refused_for_good(cluster, kafka_topic, name):
    """No request is sent: a retry would have the same result."""
    with pytest.raises(ConfigurationError, match="is not a valid topic name") as refused:
        cluster.describe_topics([kafka_topic(), name])
    assert is_final(refused.value)


# -- offsets ----------------------------------------------------------------------------------------------


def test_log_starts_follow_deleted_records(embedded_kafka, config, cluster, kafka_topic):
    """Return the first remaining offset of each partition."""
    topic = kafka_topic(partitions=2)
    write(plain_producer(config), topic, *[("k", "v")] * 5)
    embedded_kafka.admin().delete_records([Position(topic, 0, 3)])[Position(topic, 0)].result()
    assert cluster.log_starts([tp(topic, 0), tp(topic, 1)]) == {tp(topic, 0): 3, tp(topic, 1): 0}


def test_the_last_stable_offset_stops_at_an_open_transaction(config, cluster, kafka_topic):
    """It is the first offset of the oldest open transaction, or the end of the log if none is open."""
    topic = kafka_topic()
    partition = tp(topic)
    write(plain_producer(config), topic, ("k", "v"))
    assert cluster.last_stable_offsets([partition])[partition] == 1
    with foreign_transaction(config, topic, ("k", "open")) as producer:
        write(plain_producer(config), topic, ("k", "above"))
        assert cluster.last_stable_offsets([partition])[partition] == 1
        assert cluster.log_bounds([partition]) == LogBounds({partition: 0}, {partition: 1}, {partition: 3})
        producer.commit_transaction(30)
    wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == 4)


def test_offsets_for_a_time_do_not_depend_on_open_transactions(config, cluster, kafka_topic):
    """First offset at or after that time, also above the last stable offset; None if there is none."""
    # By default the broker would delete records of 1970, at a time of its own.
    topic = kafka_topic(partitions=2, config={"retention.ms": "-1"})
    producer = plain_producer(config)
    for timestamp in (1000, 2000, 3000):
        producer.produce(topic, b"v", partition=0, timestamp=timestamp)
        assert producer.flush(20) == 0  # one by one: retried batches may change their order
    both = [tp(topic, 0), tp(topic, 1)]
    assert cluster.offsets_for_time(both, 1500) == {both[0]: TimedOffset(1, 2000), both[1]: None}
    assert cluster.offsets_for_time(both, 2000)[both[0]] == TimedOffset(1, 2000)
    assert cluster.offsets_for_time(both, 3001)[both[0]] is None
    with foreign_transaction(config, topic, ("k", "open")) as foreign:
        assert cluster.offsets_for_time(both, 3001)[both[0]].offset == 3
        foreign.abort_transaction(30)


def test_a_record_is_seen_as_its_producers(config, cluster, kafka_topic):
    """True for a committed record of that producer, False for an aborted one, None for any other."""
    topic = kafka_topic()
    partition = tp(topic)
    with foreign_transaction(config, topic, ("k", "committed")) as producer:
        producer.commit_transaction(30)
    with foreign_transaction(config, topic, ("k", "aborted")) as producer:
        producer.abort_transaction(30)
    wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == 4)
    with foreign_transaction(config, topic, ("k", "open")) as producer:
        producers = cluster.describe_producers([partition])[partition]
        first, second, third = (
            ProducerIdentity("any", state.producer_id, state.producer_epoch)
            for state in sorted(producers, key=lambda state: state.producer_id)
        )
        assert cluster.is_visible(partition, 0, first) is True
        assert cluster.is_visible(partition, 2, second) is False
        assert cluster.is_visible(partition, 4, third) is None
        assert cluster.is_visible(partition, 0, second) is cluster.is_visible(partition, 2, first) is None
        producer.abort_transaction(30)


def test_the_first_record_of_a_time_is_no_marker(config, cluster, kafka_topic):
    """Brokers return a commit marker, by its timestamp; records after it may be older, or missing."""
    topic = kafka_topic(config={"retention.ms": "-1"})
    partition = tp(topic)
    for timestamp in (1000, 3000):
        producer = confluent_kafka.Producer(
            {**config, **QUIET, "transactional.id": f"history-{uuid.uuid4()}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=0, timestamp=timestamp)
        producer.produce(topic, b"v", partition=0, timestamp=timestamp + 500)
        producer.commit_transaction(30)
    wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == 6)

    def first(timestamp, **how):
        return cluster.offsets_for_time([partition], timestamp, **how)[partition]

    assert first(1200) == TimedOffset(1, 1500)
    assert first(2000) == TimedOffset(3, 3000)
    assert first(3200) == TimedOffset(4, 3500)
    assert first(4000) is None
    assert first(2000, markers=True).offset == first(4000, markers=True).offset == 2


# -- groups -----------------------------------------------------------------------------------------------


def test_committed_offsets_come_with_their_metadata(config, cluster, kafka_topic):
    """Partitions without a committed offset are absent; an unknown group has none."""
    topic, group = kafka_topic(partitions=3), unique("group")
    commit_offset(config, group, topic, 42, partition=1, metadata="v1 abc 7")
    commit_offset(config, group, topic, 0, partition=2)
    everything = [tp(topic, i) for i in range(3)]
    assert cluster.committed(group, everything) == {
        tp(topic, 1): CommittedOffset(42, "v1 abc 7"),
        tp(topic, 2): CommittedOffset(0, ""),
    }
    assert cluster.committed(unique("nobody"), everything) == {}
    assert cluster.committed(group, []) == {}


@pytest.mark.parametrize(("end", "expected"), [("commit", 9), ("abort", 5)])
def test_committed_waits_for_pending_offsets(config, cluster, transactions, kafka_topic, end, expected):
    """While a transaction has pending offsets of the group, the result is open; its end decides."""
    partition, group, name = tp(kafka_topic()), unique("group"), unique("work")
    commit_offset(config, group, partition.topic, 5)
    session = transactions.fence(name)
    session.begin()
    session.stage(group, {partition: CommittedOffset(9)}, [message("run", "{}")])
    answers = []
    reader = threading.Thread(target=lambda: answers.append(cluster.committed(group, [partition])))
    reader.start()
    reader.join(0.5)
    assert reader.is_alive()
    assert answers == []
    session.commit() if end == "commit" else transactions.abort(session.identity)
    reader.join(30)
    session.close()
    assert answers == [{partition: CommittedOffset(expected)}]


def test_offsets_that_stay_pending_are_an_error(config, transactions, kafka_topic):
    """After the time-out, the error says that a transaction has pending offsets of the group."""
    partition, group, name = tp(kafka_topic()), unique("group"), unique("work")
    session = transactions.fence(name)
    session.begin()
    session.stage(group, {partition: CommittedOffset(9)}, [message("run", "{}")])
    with (
        BrokerConnections(config) as connections,
        pytest.raises(BrokersUnavailable, match=rf"{group}.*transaction"),
    ):
        fetch_committed_offsets(connections, group, [partition], timeout=0.5)
    transactions.abort(session.identity)
    session.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_live_members_are_counted(config, cluster, kafka_topic, protocol):
    """Both group protocols (KIP-848); zero after all have left."""
    topic, group = kafka_topic(partitions=2), unique("group")
    settings = {**config, **QUIET, "group.id": group, "group.protocol": protocol}
    members = [confluent_kafka.Consumer(settings) for _ in range(2)]
    try:
        for member in members:
            member.subscribe([topic])

        def joined():
            for member in members:
                member.poll(0.05)
            return all(member.assignment() for member in members)

        wait_until(joined, seconds=60)
        # Members of a KIP-848 group are detected, not counted.
        assert cluster.describe_group(group).members == (2 if protocol == "classic" else 1)
    finally:
        for member in members:
            member.close()
    # close() waits 5 s for the answer; a member whose LeaveGroup was lost stays until its session ends, 45 s.
    wait_until(lambda: cluster.describe_group(group).members == 0, seconds=90)


def test_a_group_nobody_knows_has_no_members(cluster):
    """GROUP_ID_NOT_FOUND and the state Dead both mean that there are no members."""
    assert cluster.describe_group(unique("nobody")).members == 0


def test_a_group_with_offsets_only_has_no_members(config, cluster, kafka_topic):
    """Committed offsets make a group exist, but give it no member."""
    group = unique("group")
    commit_offset(config, group, kafka_topic(), 3)
    assert cluster.describe_group(group).members == 0


# The hash of the third one is negative: its absolute value, its lower 31 bits and its 32 bits are three
# different partitions of five.
@pytest.mark.parametrize("group", ["airflow-eos", "a", "x" * 184, "polygenelubricants"])
def test_the_offsets_partition_is_where_the_broker_puts_the_groups_commits(
    cluster, transactions, kafka_topic, group
):
    """It is the one that the transaction's coordinator lists; the last hash has no absolute value."""
    name = unique("work")
    session = transactions.fence(name)
    session.begin()
    session.stage(group, {tp(kafka_topic()): CommittedOffset(1)}, [message("run", "{}")])
    assert cluster.group_offsets_partition(group) in cluster.describe_transaction(name).partitions
    transactions.abort(session.identity)
    session.close()


# -- transactions -----------------------------------------------------------------------------------------


def test_a_transactional_id_nobody_used_is_none(cluster):
    """The coordinator does not know the id."""
    assert cluster.describe_transaction(unique("never")) is None


def test_producers_are_listed_with_epoch_and_last_sequence(cluster, transactions, kafka_topic):
    """lastSequence counts the records of the ledger partition; an unwritten partition has no producers."""
    name, untouched = unique("work"), tp(kafka_topic())
    session = transactions.fence(name)
    session.begin()
    session.stage("unused", {}, [message(f"run/{i}", "{}") for i in range(3)])
    partition = next(iter(cluster.describe_transaction(name).partitions))
    producers = cluster.describe_producers([partition, untouched])
    assert [(p.producer_id, p.producer_epoch, p.last_sequence) for p in producers[partition]] == [
        (session.identity.producer_id, session.identity.producer_epoch, 2)
    ]
    assert list(producers[untouched]) == []
    transactions.abort(session.identity)
    session.close()


# -- broker settings --------------------------------------------------------------------------------------


def test_broker_settings_of_a_default_broker(cluster):
    """15 minutes and verification on, as Kafka ships."""
    assert cluster.features().transaction_max_timeout_ms == 900_000
    assert cluster.features().partition_verification is True


def test_a_fresh_cluster_with_other_settings():
    """Settings are read from the broker; a cluster without __consumer_offsets creates it on demand."""
    settings = {"transaction.max.timeout.ms": "120000", "transaction.partition.verification.enable": "false"}
    with EmbeddedKafka(broker_config=settings) as kafka, Link(kafka.client_config()) as link:
        cluster = KafkaCluster(link)
        offsets = cluster.group_offsets_partition("somebody")
        assert (offsets.topic, offsets.partition in range(5)) == ("__consumer_offsets", True)
        assert cluster.features().transaction_max_timeout_ms == 120_000
        assert cluster.features().partition_verification is False


def test_an_unreachable_cluster_is_reported(unused_port, monkeypatch):
    """Requests of either client end at the time-out; the error names the servers or the request."""
    monkeypatch.setattr("airflow_eos.broker.shared_connections.BOOTSTRAP_TIMEOUT", 2.0)
    started = time.monotonic()
    with warnings.catch_warnings():
        # kafka-python leaves the sockets of refused connections to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        with Link({"bootstrap.servers": f"127.0.0.1:{unused_port}"}) as link:
            cluster = KafkaCluster(link)
            with pytest.raises(BrokersUnavailable, match=str(unused_port)):
                cluster.describe_topics(["any"])
            with pytest.raises(BrokersUnavailable, match="no broker answered"):
                cluster.describe_group("somebody")
        gc.collect()
    assert time.monotonic() - started < 15
