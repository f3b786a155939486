"""Control requests to real brokers: adding partitions, ending by identity, and the brokers' answers."""

from __future__ import annotations

import logging
import re
import time

import pytest

from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, ConfigurationError, ProducerFenced
from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity, TransactionState
from airflow_eos.wire import backoff
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import (
    add_partitions_to_txn,
    describe_producers,
    describe_transaction,
    end_txn,
)
from airflow_eos_testing import EmbeddedKafka
from tests.support import wire_requests as support
from tests.support.brokers import assert_hidden
from tests.support.patience import wait_until
from tests.support.wire_requests import (
    open_transaction,
    partition,
    read,
    sealed,
    take_epoch,
    texts,
    values_of,
)


def state_of(connections, identity):
    return describe_transaction(connections, identity.transactional_id)


def test_added_partitions_are_in_the_transaction(connections, kafka_topic):
    """One request adds all; repeating it changes nothing; without partitions no request is sent."""
    topic = kafka_topic("added", partitions=3)
    every = {partition(topic, n) for n in range(3)}
    identity = take_epoch(connections, topic)
    add_partitions_to_txn(connections, identity, [])
    assert state_of(connections, identity).state is TransactionState.EMPTY
    add_partitions_to_txn(connections, identity, every)
    add_partitions_to_txn(connections, identity, every)
    status = state_of(connections, identity)
    assert status.state is TransactionState.ONGOING
    assert status.partitions == every
    assert (status.producer_id, status.producer_epoch) == (identity.producer_id, identity.producer_epoch)
    assert status.timeout_ms == 60_000
    assert status.start_ms > 0
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.ENDED


def test_an_old_epoch_may_not_add(connections, kafka_topic):
    """A newer attempt exists, so the request is fenced."""
    sink = partition(kafka_topic("added-late"))
    old = take_epoch(connections, "added-late")
    take_epoch(connections, "added-late")
    with pytest.raises(ProducerFenced, match=r"added-late-.*-0|adding"):
        add_partitions_to_txn(connections, old, [sink])


def test_an_unknown_topic_cannot_be_added(connections):
    """The coordinator does not know the topic: retried in case it is new, then an error names it."""
    identity = take_epoch(connections, "nowhere")
    with pytest.raises(BrokersUnavailable, match="UNKNOWN_TOPIC_OR_PARTITION"):
        add_partitions_to_txn(connections, identity, [partition("no-such-topic")], timeout=0.5)


def test_an_open_transaction_of_ours_is_aborted(connections, kafka_topic):
    """OK: nothing of it becomes visible; a repetition of the abort is OK too."""
    sink = partition(kafka_topic("aborted"))
    identity = open_transaction(connections, "aborted", [sink])
    (receipt,) = send_partitions(connections, identity, {sink: sealed(texts("a", 30))})
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.ENDED
    support.wait_for_marker(connections, sink, receipt.last_offset)
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.ENDED
    assert read(connections, sink) == []
    wait_until(lambda: state_of(connections, identity).state is TransactionState.COMPLETE_ABORT)


def test_nothing_open_is_told_apart(connections):
    """NOT_OPEN: the epoch is ours and nothing was added."""
    identity = take_epoch(connections, "nothing-open")
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.NOTHING_OPEN


def test_an_abort_after_the_commit_changes_nothing(connections, kafka_topic):
    """NOT_OPEN: it was committed, and stays committed."""
    sink = partition(kafka_topic("committed"))
    identity = open_transaction(connections, "committed", [sink])
    (receipt,) = send_partitions(connections, identity, {sink: sealed(texts("a", 30))})
    assert end_txn(connections, identity, commit=True) is EndTxnAnswer.ENDED
    support.wait_for_marker(connections, sink, receipt.last_offset)
    wait_until(lambda: state_of(connections, identity).state is TransactionState.COMPLETE_COMMIT)
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.NOTHING_OPEN
    assert values_of(read(connections, sink)) == texts("a", 30)


def test_a_commit_after_our_abort_is_refused(connections, kafka_topic):
    """NOT_OPEN: a commit that was delayed in the network cannot revive an aborted transaction."""
    sink = partition(kafka_topic("delayed"))
    identity = open_transaction(connections, "delayed", [sink])
    (receipt,) = send_partitions(connections, identity, {sink: sealed(texts("a", 30))})
    assert end_txn(connections, identity, commit=False) is EndTxnAnswer.ENDED
    support.wait_for_marker(connections, sink, receipt.last_offset)
    assert end_txn(connections, identity, commit=True) is EndTxnAnswer.NOTHING_OPEN
    assert read(connections, sink) == []


def test_a_fenced_attempt_cannot_end_the_live_one(connections, kafka_topic):
    """FENCED: the live transaction stays open and commits."""
    sink = partition(kafka_topic("live"))
    old = open_transaction(connections, "live", [sink])
    live = open_transaction(connections, "live", [sink])
    (receipt,) = send_partitions(connections, live, {sink: sealed(texts("a", 30))})
    assert end_txn(connections, old, commit=False) is EndTxnAnswer.FENCED
    assert end_txn(connections, old, commit=True) is EndTxnAnswer.FENCED
    assert state_of(connections, live).state is TransactionState.ONGOING
    assert end_txn(connections, live, commit=True) is EndTxnAnswer.ENDED
    support.wait_for_marker(connections, sink, receipt.last_offset)
    assert values_of(read(connections, sink)) == texts("a", 30)


def test_another_producer_id_is_fenced(connections):
    """The transactional id does not have this producer id, or no longer has it."""
    identity = take_epoch(connections, "other-id")
    stranger = ProducerIdentity("other-id", identity.producer_id + 999, 0)
    assert end_txn(connections, stranger, commit=False) is EndTxnAnswer.FENCED


def test_an_unknown_transactional_id_has_no_description(connections):
    """None for an unknown id, a description for a known one."""
    identity = take_epoch(connections, "known-id")
    assert describe_transaction(connections, "unknown-id") is None
    status = describe_transaction(connections, "known-id")
    assert (status.producer_id, status.start_ms) == (identity.producer_id, -1)


def test_producers_are_described_per_partition(connections, kafka_topic):
    """Last sequence and start of the open transaction; nothing for an unwritten partition."""
    topic = kafka_topic("described", partitions=3)
    every = [partition(topic, n) for n in range(3)]
    support.transaction(connections, every[0], texts("before", 5), transactional_id="described-before")
    identity = open_transaction(connections, "described", every)
    send_partitions(
        connections, identity, {every[0]: sealed(texts("a", 30)), every[1]: sealed(texts("b", 7))}
    )
    producers = describe_producers(connections, every)
    own = {sink: [p for p in producers[sink] if p.producer_id == identity.producer_id] for sink in every}
    assert [p.last_sequence for p in own[every[0]]] == [29]
    assert [p.current_txn_start_offset for p in own[every[0]]] == [6]
    assert [p.last_sequence for p in own[every[1]]] == [6]
    assert own[every[2]] == []
    assert len(producers[every[0]]) == 2
    assert own[every[0]][0].last_timestamp > 1_600_000_000_000
    end_txn(connections, identity, commit=False)


def test_a_cluster_that_is_down_is_named(unused_port):
    """The error has the servers and the reason, within the given time."""
    servers = f"127.0.0.1:{unused_port}"
    with pytest.raises(BrokersUnavailable, match=rf"{servers} within 1 s .*refused.*bootstrap\.servers"):
        BrokerConnections({"bootstrap.servers": servers}, bootstrap_timeout=1.0)


def test_a_cluster_that_is_down_is_in_the_log_before_the_time_is_over(unused_port, monkeypatch, caplog):
    """Once, with servers and reason: a task that waits silently for a minute seems to hang."""
    monkeypatch.setattr(backoff, "SILENT_SECONDS", 0.5)
    servers = f"127.0.0.1:{unused_port}"
    with pytest.raises(BrokersUnavailable):
        BrokerConnections({"bootstrap.servers": servers}, bootstrap_timeout=3.0)
    (line,) = [record.getMessage() for record in caplog.records if "still waiting" in record.getMessage()]
    assert re.search(rf"connecting to {servers}: still waiting \(.*refused.*\), for up to \d s more", line)


def test_credentials_on_a_listener_that_takes_none_are_refused_at_once(embedded_kafka):
    """Waiting does not help: the error names both remedies."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    config = {
        "bootstrap.servers": embedded_kafka.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        **login,
    }
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"takes no SASL; set 'security\.protocol'"):
        BrokerConnections(config)
    assert time.monotonic() - began < 20


def test_permissions_and_credentials_are_named(caplog):
    """The error names what is missing: Write on a topic, the transactional id, or the right password."""
    with EmbeddedKafka(security="SASL_PLAINTEXT", acls=True) as kafka:
        sink = partition(kafka.create_topic("private"))
        user = kafka.user("nobody")
        with BrokerConnections(user) as connections:
            with pytest.raises(AuthorizationFailed, match="Describe topic 'private'"):
                connections.topics(["private"])
            with pytest.raises(AuthorizationFailed, match="Describe transaction 'private-id'"):
                connections.coordinator("transaction", "private-id")
        with BrokerConnections(kafka.client_config()) as admin:
            identity = open_transaction(admin, "private-id", [sink])
        batches = {sink: sealed(texts("a", 3))}
        # A client that may not describe the topic sends no Produce.
        kafka.grant("nobody", "DESCRIBE", topic="private")
        with BrokerConnections(user) as connections:
            with pytest.raises(AuthorizationFailed, match="Write and Describe on the transactional id"):
                send_partitions(connections, identity, batches)
            kafka.grant("nobody", "WRITE", "DESCRIBE", transactional_id="private-id")
            with pytest.raises(AuthorizationFailed, match="grant Write on the topic"):
                send_partitions(connections, identity, batches)
        refused = {**user, "sasl.password": "not-the-password"}
        caplog.set_level(logging.DEBUG)
        with pytest.raises(ConfigurationError, match="refused the credentials") as caught:
            BrokerConnections(refused)
        assert_hidden("not-the-password", caught.value, caplog)


def test_a_certificate_of_a_stranger_is_refused():
    """The authority has not signed the broker's certificate: a configuration error, at once."""
    with EmbeddedKafka(security="SSL") as kafka:
        trusting = {k: v for k, v in kafka.client_config().items() if not k.startswith("ssl.ca")}
        with pytest.raises(ConfigurationError, match=r"certificate verify failed.*ssl\.ca\.location"):
            BrokerConnections(trusting)
