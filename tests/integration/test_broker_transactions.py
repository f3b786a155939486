"""Transactions on a real broker: epochs, staging, commit, and EndTxn by identity."""

from __future__ import annotations

import datetime as dt
import threading
import time

import confluent_kafka
import pytest

from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import (
    BrokersUnavailable,
    EosError,
    ProducerFenced,
    ProtocolViolation,
    TimeoutsInconsistent,
)
from airflow_eos.model.kafka import CommittedOffset, EndTxnAnswer, TransactionState
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.txn_requests import end_txn
from airflow_eos_testing import count_records, read_topic
from tests.support.brokers import (
    QUIET,
    make_ledger,
    make_transactions,
    message,
    tp,
    unique,
)
from tests.support.patience import wait_until


@pytest.fixture
def name():
    return unique("work")


@pytest.fixture
def fence(transactions):
    """Fence and close at the end."""
    sessions = []

    def new(transactional_id):
        sessions.append(transactions.fence(transactional_id))
        return sessions[-1]

    yield new
    for session in sessions:
        session.close()


def staged(session, ledger_record=("run", "{}"), group="unused", offsets=None):
    session.begin()
    session.stage(group, offsets or {}, [message(*ledger_record)])
    return session


def completed(cluster, transactional_id):
    return wait_until(
        lambda: cluster.describe_transaction(transactional_id).state is TransactionState.COMPLETE_COMMIT
    )


# -- identity and fencing ---------------------------------------------------------------------------------


def test_the_identity_is_the_one_the_coordinator_gave(fence, cluster, name):
    """Producer id and epoch come from the producer and equal the coordinator's."""
    identity = fence(name).identity
    seen = cluster.describe_transaction(name)
    assert (identity.transactional_id, identity.producer_id, identity.producer_epoch) == (
        name,
        seen.producer_id,
        seen.producer_epoch,
    )
    assert seen.state is TransactionState.EMPTY


def test_every_fence_takes_a_higher_epoch_of_the_same_producer_id(fence, name):
    """Epochs order the attempts at one work."""
    identities = [fence(name).identity for _ in range(3)]
    assert len({identity.producer_id for identity in identities}) == 1
    epochs = [identity.producer_epoch for identity in identities]
    assert epochs == sorted(set(epochs))


def test_a_fence_aborts_what_an_older_attempt_left_open(fence, ledger, cluster, config, name):
    """When fence returns, the older transaction has ended on every partition; nothing of it is visible."""
    staged(fence(name))
    fence(name)
    assert (
        cluster.last_stable_offsets([tp(ledger.topic)])[tp(ledger.topic)] == 2
    )  # the record and its abort marker
    assert count_records(config, ledger.topic) == 0
    assert count_records(config, ledger.topic, "read_uncommitted") == 1


@pytest.mark.parametrize("act", ["stage", "commit", "add_partitions"])
def test_a_fenced_session_cannot_do_anything(fence, ledger, config, name, act):
    """Every request of an older attempt raises ProducerFenced and changes nothing for readers."""
    old = fence(name)
    old.begin()
    if act == "commit":
        old.stage("unused", {}, [message("run", "old")])
    fence(name)
    acts = {
        "stage": lambda: old.stage("group", {tp(ledger.topic): CommittedOffset(1)}, [message("run", "old")]),
        "commit": old.commit,
        "add_partitions": lambda: old.add_partitions([tp(ledger.topic)]),
    }
    with pytest.raises(ProducerFenced, match=name if act != "add_partitions" else "adding"):
        acts[act]()
    assert count_records(config, ledger.topic) == 0


def test_a_fenced_session_that_only_stages_messages_is_told(fence, ledger, config, name):
    """The fatal error that librdkafka raises in the polling thread reaches the caller of stage."""
    old = fence(name)
    old.begin()
    fence(name)
    with pytest.raises(ProducerFenced, match="fenced"):
        old.stage("unused", {}, [message("run", "old")])
    assert count_records(config, ledger.topic, "read_uncommitted") == 0


# -- staging and commit -----------------------------------------------------------------------------------


def test_a_commit_publishes_offsets_metadata_and_ledger_records_together(
    fence, cluster, ledger, config, name
):
    """Before it neither is readable, after it both are; the offset keeps its metadata string."""
    source, group = tp(ledger.topic), unique("group")
    session = staged(fence(name), ("run/1", "{}"), group, {source: CommittedOffset(7, "v1 abc 3")})
    assert count_records(config, ledger.topic) == 0
    session.commit()
    completed(cluster, name)
    assert cluster.committed(group, [source]) == {source: CommittedOffset(7, "v1 abc 3")}
    assert [(r.key, r.value) for r in read_topic(config, ledger.topic)] == [(b"run/1", b"{}")]


def test_offsets_of_more_partitions_than_one_batch_of_the_group_holds(fence, cluster, kafka_topic, name):
    """The offsets of thousands of partitions take 1.5 MB; brokers accept batches of 1 MB."""
    source = kafka_topic(partitions=60)
    offsets = {tp(source, number): CommittedOffset(number, "v1 abc 3") for number in range(60)}
    group = unique("group").ljust(25_000, "g")
    session = staged(fence(name), group=group, offsets=offsets)
    session.commit()
    completed(cluster, name)
    assert cluster.committed(group, list(offsets)) == offsets


def test_the_coordinator_sees_exactly_the_partitions_that_were_added_or_staged(
    fence, cluster, ledger, kafka_topic, name
):
    """Added partitions, the ledger's, and the one of __consumer_offsets for the group."""
    group, sink = unique("group"), kafka_topic(partitions=3)
    session = fence(name)
    session.begin()
    session.add_partitions([tp(sink, 0), tp(sink, 2)])
    assert cluster.describe_transaction(name).partitions == {tp(sink, 0), tp(sink, 2)}
    session.stage(group, {tp(sink, 1): CommittedOffset(0)}, [message("run", "{}")])
    seen = cluster.describe_transaction(name)
    assert seen.state is TransactionState.ONGOING
    assert seen.partitions == {
        tp(sink, 0),
        tp(sink, 2),
        tp(ledger.topic),
        cluster.group_offsets_partition(group),
    }


def test_a_ledger_record_goes_to_the_partition_of_its_routing(config, link, cluster, name):
    """Records with one routing share a partition whatever their keys are."""
    ledger = make_ledger(config, link, partitions=8)
    session = make_transactions(config, ledger, link).fence(name)
    session.begin()
    session.stage("unused", {}, [message(f"run/{i}", "{}", "pipeline-a") for i in range(5)])
    session.commit()
    completed(cluster, name)
    session.close()
    assert {r.partition for r in read_topic(config, ledger.topic)} == {ledger.partition_for("pipeline-a")}


def test_without_offsets_the_group_is_left_alone(fence, cluster, ledger, name):
    """An empty mapping sends no request about the group, and the commit counts nevertheless."""
    group = unique("group")
    session = staged(fence(name), group=group)
    assert cluster.describe_transaction(name).partitions == {tp(ledger.topic)}
    session.commit()
    completed(cluster, name)
    assert cluster.committed(group, [tp(ledger.topic)]) == {}


def test_nothing_to_stage_is_refused(fence, name):
    """librdkafka sends no EndTxn for a transaction without data, and reports success."""
    session = fence(name)
    session.begin()
    with pytest.raises(ValueError, match="needs a ledger message"):
        session.stage("group", {}, [])
    with pytest.raises(ProtocolViolation, match="nothing was staged"):
        session.commit()


def test_staging_twice_waits_for_both(fence, cluster, ledger, config, name):
    """Every call returns only when its own records are acknowledged."""
    session = fence(name)
    session.begin()
    for number in range(2):
        session.stage("unused", {}, [message(f"run/{number}", "{}")])
        assert count_records(config, ledger.topic, "read_uncommitted") == number + 1
    session.commit()
    completed(cluster, name)
    assert count_records(config, ledger.topic) == 2


def test_close_sends_nothing(fence, cluster, ledger, config, name):
    """A dropped session leaves its transaction open: the owner of its identity may still end it."""
    session = staged(fence(name))
    started = time.monotonic()
    session.close()
    assert time.monotonic() - started < 2
    assert cluster.describe_transaction(name).state is TransactionState.ONGOING
    assert cluster.last_stable_offsets([tp(ledger.topic)])[tp(ledger.topic)] == 0


def test_a_record_that_is_too_large_is_named(fence, name):
    """The error names the key and the setting to raise."""
    session = fence(name)
    session.begin()
    with pytest.raises(EosError, match=r"run/big.*max\.message\.bytes"):
        session.stage("unused", {}, [message("run/big", "x" * 2_000_000)])


def test_the_topic_alone_decides_how_large_a_record_may_be(embedded_kafka, kafka_topic, config, name):
    """librdkafka's message.max.bytes does not limit it, neither its default nor a connection's."""
    topic = kafka_topic("large", config={"max.message.bytes": "10000000"})
    settings = ClientConfig.of({**config, "message.max.bytes": 1000, "queue.buffering.max.kbytes": 1})
    producer = TransactionalProducer(settings, name, transaction_timeout=60.0, delivery_timeout=30.0)
    try:
        producer.initialise(30.0, topic=topic)
        producer.instance.begin_transaction()
        assert producer.publish(topic, [(0, "run/big", "x" * 2_000_000)], 30.0) == [0]
    finally:
        producer.close()


def test_two_transactional_ids_may_commit_one_group_even_backwards(fence, cluster, ledger, name):
    """Brokers do not protect a cursor from a second owner: the run has to (law 7)."""
    group, source = unique("group"), tp(ledger.topic)
    for transactional_id, offset in ((name, 9), (unique("other"), 3)):
        session = staged(fence(transactional_id), group=group, offsets={source: CommittedOffset(offset)})
        session.commit()
        completed(cluster, transactional_id)
    assert cluster.committed(group, [source])[source].offset == 3


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_are_accepted_although_the_group_has_members(fence, cluster, ledger, config, name, protocol):
    """Brokers accept commits from outside the group: only the group's description tells (law 6)."""
    group = unique("group")
    member = confluent_kafka.Consumer({**config, **QUIET, "group.id": group, "group.protocol": protocol})
    try:
        member.subscribe([ledger.topic])
        wait_until(lambda: member.poll(0.05) or member.assignment(), seconds=60)
        assert cluster.describe_group(group).members == 1
        source = tp(ledger.topic)
        session = staged(fence(name), group=group, offsets={source: CommittedOffset(5)})
        session.commit()
        completed(cluster, name)
        assert cluster.committed(group, [source])[source].offset == 5
    finally:
        member.close()
    # close() waits 5 s for the answer; a member whose LeaveGroup was lost stays until its session ends, 45 s.
    wait_until(lambda: cluster.describe_group(group).members == 0, seconds=90)


# -- EndTxn by identity -----------------------------------------------------------------------------------


def test_abort_of_our_own_open_transaction(fence, transactions, cluster, ledger, config, name):
    """It is aborted under the same epoch; a repeated abort is confirmed (error code 0)."""
    session = staged(fence(name))
    assert transactions.abort(session.identity) is EndTxnAnswer.ENDED
    wait_until(lambda: cluster.describe_transaction(name).state is TransactionState.COMPLETE_ABORT)
    assert cluster.describe_transaction(name).producer_epoch == session.identity.producer_epoch
    assert transactions.abort(session.identity) is EndTxnAnswer.ENDED
    assert count_records(config, ledger.topic) == 0


def test_abort_before_anything_was_added_finds_nothing_open(fence, transactions, name):
    """begin alone sends nothing to the coordinator."""
    session = fence(name)
    session.begin()
    assert transactions.abort(session.identity) is EndTxnAnswer.NOTHING_OPEN


def test_abort_after_a_completed_commit_finds_nothing_open_and_changes_nothing(
    fence, transactions, cluster, ledger, config, name
):
    """Error 48 does not tell whether it was committed; the ledger does."""
    session = staged(fence(name))
    session.commit()
    completed(cluster, name)
    assert transactions.abort(session.identity) is EndTxnAnswer.NOTHING_OPEN
    assert count_records(config, ledger.topic) == 1


def test_abort_of_added_partitions_to_which_librdkafka_sent_nothing(
    fence, transactions, cluster, kafka_topic, name
):
    """The raw request ends what only executors wrote; librdkafka's own abort would send nothing."""
    sink = kafka_topic()
    session = fence(name)
    session.begin()
    session.add_partitions([tp(sink)])
    assert transactions.abort(session.identity) is EndTxnAnswer.ENDED
    wait_until(lambda: cluster.describe_transaction(name).state is TransactionState.COMPLETE_ABORT)


def test_abort_with_an_older_identity_leaves_the_live_transaction_alone(
    fence, transactions, cluster, ledger, config, name
):
    """A zombie learns that it is fenced; the live attempt commits undisturbed."""
    zombie = staged(fence(name), ("run", "old"))
    live = staged(fence(name), ("run", "new"))
    assert transactions.abort(zombie.identity) is EndTxnAnswer.FENCED
    assert cluster.describe_transaction(name).state is TransactionState.ONGOING
    live.commit()
    completed(cluster, name)
    assert [r.value for r in read_topic(config, ledger.topic)] == [b"new"]


def test_abort_with_an_unknown_identity_is_fenced(transactions, fence, name):
    """A producer id that the coordinator does not have for this transactional id is another client's."""
    identity = fence(name).identity
    stranger = type(identity)(name, identity.producer_id + 1_000_000, 0)
    assert transactions.abort(stranger) is EndTxnAnswer.FENCED


def test_a_commit_that_arrives_after_our_own_abort_is_refused(
    fence, transactions, config, ledger, cluster, name
):
    """The delayed EndTxn(commit) of a lost answer cannot publish the aborted transaction."""
    session = staged(fence(name))
    assert transactions.abort(session.identity) is EndTxnAnswer.ENDED
    with BrokerConnections(config) as connections:
        assert end_txn(connections, session.identity, commit=True) is EndTxnAnswer.NOTHING_OPEN
    assert cluster.describe_transaction(name).state is TransactionState.COMPLETE_ABORT
    assert count_records(config, ledger.topic) == 0


def test_a_commit_that_arrives_after_the_next_fence_is_refused(
    fence, transactions, config, ledger, cluster, name
):
    """It has an old epoch: it commits neither the aborted transaction nor the one that is open now."""
    session = staged(fence(name), ("run", "old"))
    assert transactions.abort(session.identity) is EndTxnAnswer.ENDED
    following = staged(fence(name), ("run", "new"))
    with BrokerConnections(config) as connections:
        assert end_txn(connections, session.identity, commit=True) is EndTxnAnswer.FENCED
    assert cluster.describe_transaction(name).state is TransactionState.ONGOING
    assert count_records(config, ledger.topic) == 0
    following.commit()
    completed(cluster, name)
    assert [r.value for r in read_topic(config, ledger.topic)] == [b"new"]


def test_an_instance_whose_transaction_was_aborted_behind_its_back_cannot_commit(
    fence, transactions, ledger, config, name
):
    """librdkafka's commit is refused by the coordinator: an error, never a silent success."""
    session = staged(fence(name))
    transactions.abort(session.identity)
    with pytest.raises(EosError, match=name):
        session.commit()
    assert count_records(config, ledger.topic) == 0


def test_abort_may_interrupt_a_request_of_the_same_thread(fence, transactions, link, name):
    """A signal handler calls it while the shared connections are in use."""
    session = staged(fence(name))
    with link.connections():
        assert transactions.abort(session.identity) is EndTxnAnswer.ENDED


def test_a_timed_out_transaction_is_fenced_by_its_coordinator(config, ledger, link, cluster, name):
    """The coordinator's abort bumps the epoch: commit and abort are refused, and nothing is visible."""
    transactions = make_transactions(
        config,
        ledger,
        link,
        # Long enough for staging, also on a slow machine.
        transaction_timeout=dt.timedelta(seconds=6),
        delivery_timeout=dt.timedelta(seconds=5),
    )
    session = staged(transactions.fence(name))
    try:
        wait_until(lambda: cluster.describe_transaction(name).state is TransactionState.COMPLETE_ABORT)
        assert transactions.abort(session.identity) is EndTxnAnswer.FENCED
        with pytest.raises(ProducerFenced, match="timed out"):
            session.commit()
        assert count_records(config, ledger.topic) == 0
    finally:
        session.close()


# -- failures ---------------------------------------------------------------------------------------------


def test_a_transaction_time_out_above_the_brokers_limit_is_explained(config, ledger, name):
    """The error names both settings."""
    transactions = make_transactions(config, ledger, transaction_timeout=dt.timedelta(hours=2))
    with pytest.raises(TimeoutsInconsistent, match=r"transaction\.max\.timeout\.ms"):
        transactions.fence(name)


def test_an_unreachable_cluster_is_reported_in_time(ledger, name, unused_port, monkeypatch, caplog):
    """fence logs that it waits, and ends at its deadline with an error that names the transactional id."""
    monkeypatch.setattr("airflow_eos.wire.backoff.SILENT_SECONDS", 0.3)
    monkeypatch.setattr("airflow_eos.broker.producer._INIT_SLICE_SECONDS", 0.2)
    transactions = make_transactions(
        {"bootstrap.servers": f"127.0.0.1:{unused_port}"}, ledger, fence_timeout=dt.timedelta(seconds=2)
    )
    started = time.monotonic()
    with pytest.raises(BrokersUnavailable, match=name):
        transactions.fence(name)
    assert time.monotonic() - started < 10
    assert sum(f"{name!r}: still waiting" in text for text in caplog.messages) == 1


def test_no_thread_is_left_behind(transactions, name):
    """Closing a session ends the thread that polled it; closing twice is harmless."""
    session = transactions.fence(name)
    assert any(name in thread.name for thread in threading.enumerate())
    session.close()
    session.close()
    assert not any(name in thread.name for thread in threading.enumerate())
