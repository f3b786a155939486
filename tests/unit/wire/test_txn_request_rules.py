"""Control requests against a scripted coordinator: every answer, and its effect."""

from __future__ import annotations

from types import SimpleNamespace

import kafka.errors as kafka_errors
import pytest

from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, ProducerFenced, ProtocolViolation
from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.error_codes import ADD_PARTITIONS, COORDINATOR, Fatal, Retry
from airflow_eos.wire.txn_requests import add_partitions_to_txn, describe_transaction, end_txn
from tests.unit.wire.fakes import ScriptedCoordinator, kind_of

IDENTITY = ProducerIdentity("work", 7, 2)
PARTITIONS = [TopicPartition("out", 1), TopicPartition("out", 0), TopicPartition("dead-letter", 0)]


class FakeCoordinator(ScriptedCoordinator):
    """A transaction coordinator."""

    def answer(self, request, code):
        if kind_of(request) == "EndTxn":
            return SimpleNamespace(error_code=code)
        if kind_of(request) == "DescribeTransactions":
            return SimpleNamespace(transaction_states=[self.state(code)])
        # The real broker answers 55 for all other partitions if one is refused.
        codes = iter([55 if code else 0, code, 55 if code else 0])
        return SimpleNamespace(
            results_by_topic_v3_and_below=[
                SimpleNamespace(
                    name=topic.name,
                    results_by_partition=[
                        SimpleNamespace(partition_index=index, partition_error_code=next(codes))
                        for index in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    @staticmethod
    def state(code):
        return SimpleNamespace(
            error_code=code,
            transaction_state="Ongoing",
            transaction_timeout_ms=60000,
            transaction_start_time_ms=5,
            producer_id=7,
            producer_epoch=2,
            topics=[SimpleNamespace(topic="out", partitions=[0, 1])],
        )


@pytest.fixture
def coordinator():
    fake = FakeCoordinator()
    yield fake
    fake.close()


def test_all_partitions_are_added_by_one_request_of_version_3_at_most(coordinator):
    """With the executors' identity; from version 4 on, the request is for brokers only."""
    add_partitions_to_txn(coordinator, IDENTITY, PARTITIONS)
    ((_, request),) = coordinator.requests
    assert {topic.name: topic.partitions for topic in request.v3_and_below_topics} == {
        "dead-letter": [0],
        "out": [0, 1],
    }
    assert request.v3_and_below_transactional_id == "work"
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (7, 2)
    assert request._max_version == 3


@pytest.mark.parametrize("code", sorted(code for code, d in ADD_PARTITIONS.items() if isinstance(d, Retry)))
def test_adding_survives_every_retriable_code(coordinator, code):
    """The same request is sent again, to a coordinator that is looked up again if the code says so."""
    coordinator.codes = [code, code]
    add_partitions_to_txn(coordinator, IDENTITY, PARTITIONS)
    assert len(coordinator.requests) == 3
    assert coordinator.forgotten == ["work"] * (2 if ADD_PARTITIONS[code].refresh else 0)


@pytest.mark.parametrize("code", sorted(code for code, d in ADD_PARTITIONS.items() if isinstance(d, Fatal)))
def test_adding_ends_with_the_partition_that_was_refused(coordinator, code):
    """Not with one of those that were not attempted because of it."""
    coordinator.codes = [code]
    with pytest.raises(ADD_PARTITIONS[code].error, match="adding out-0 to the transaction"):
        add_partitions_to_txn(coordinator, IDENTITY, PARTITIONS)
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (0, EndTxnAnswer.ENDED),
        (48, EndTxnAnswer.NOTHING_OPEN),
        (47, EndTxnAnswer.FENCED),
        (49, EndTxnAnswer.FENCED),
        (90, EndTxnAnswer.FENCED),
    ],
)
@pytest.mark.parametrize("commit", [True, False])
def test_every_outcome_of_ending_is_told_apart(coordinator, code, result, commit):
    """Ended by us, nothing open, or fenced; version 3 at most, with exactly our identity."""
    coordinator.codes = [code]
    assert end_txn(coordinator, IDENTITY, commit=commit) is result
    ((_, request),) = coordinator.requests
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("work", 7, 2)
    assert request.committed is commit
    assert request._max_version == 3


@pytest.mark.parametrize("code", sorted(code for code, d in COORDINATOR.items() if isinstance(d, Retry)))
def test_ending_survives_every_retriable_code(coordinator, code):
    """Markers still being written, a coordinator that moves or loads."""
    coordinator.codes = [code, code]
    assert end_txn(coordinator, IDENTITY, commit=False) is EndTxnAnswer.ENDED
    assert len(coordinator.requests) == 3


def test_a_lost_answer_to_ending_is_asked_again(coordinator):
    """The answer to the retry is returned unchanged: 48 may then be the outcome of the first request."""
    coordinator.codes = [kafka_errors.KafkaConnectionError("gone"), 48]
    assert end_txn(coordinator, IDENTITY, commit=True) is EndTxnAnswer.NOTHING_OPEN
    assert coordinator.forgotten == ["work"]


@pytest.mark.parametrize(("code", "error"), [(53, AuthorizationFailed), (42, ProtocolViolation)])
def test_ending_is_refused_by_name(coordinator, code, error):
    """A missing permission, and a code that should not occur."""
    coordinator.codes = [code]
    with pytest.raises(error, match=r"EndTxn\(abort\) of 'work'"):
        end_txn(coordinator, IDENTITY, commit=False)


def test_an_outcome_that_cannot_be_asked_for_is_an_error(coordinator):
    """In time, with the last answer: unknown means neither committed nor aborted."""
    coordinator.codes = [51] * 1000
    with pytest.raises(BrokersUnavailable, match=r"EndTxn\(abort\).*CONCURRENT_TRANSACTIONS"):
        end_txn(coordinator, IDENTITY, commit=False, timeout=0.2)


def test_a_coordinator_that_stays_away_is_told_before_the_time_is_over(coordinator, clock, caplog):
    """The log has the request, and the last answer."""

    def late(code):
        clock.now += 4.0
        return FakeCoordinator.answer(coordinator, coordinator.requests[-1][1], code)

    coordinator.codes = [51, 51, 51]
    coordinator.answer = lambda _request, code: late(code)
    assert end_txn(coordinator, IDENTITY, commit=False) is EndTxnAnswer.ENDED
    (message,) = caplog.messages
    assert message.startswith(
        "EndTxn(abort) of 'work': still waiting (EndTxn(abort) of 'work': CONCURRENT_TRAN"
    )


def test_a_fence_while_adding_is_a_fence(coordinator):
    """Also after retriable answers."""
    coordinator.codes = [51, 90]
    with pytest.raises(ProducerFenced):
        add_partitions_to_txn(coordinator, IDENTITY, PARTITIONS)


def test_describing_survives_a_coordinator_that_moves(coordinator):
    """NOT_COORDINATOR and a lost connection, then the state."""
    coordinator.codes = [16, kafka_errors.KafkaConnectionError("gone")]
    status = describe_transaction(coordinator, "work")
    assert status is not None
    assert status.partitions == {TopicPartition("out", 0), TopicPartition("out", 1)}
    assert (status.timeout_ms, status.start_ms) == (60000, 5)


def test_an_unknown_id_is_none(coordinator):
    """TRANSACTIONAL_ID_NOT_FOUND is an answer, not an error."""
    coordinator.codes = [105]
    assert describe_transaction(coordinator, "work") is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("group", r"'__consumer_offsets', .*: offsets\.topic\.replication\.factor may exceed their number"),
        (
            "transaction",
            r"'__transaction_state', .*: transaction\.state\.log\.replication\.factor may exceed",
        ),
    ],
)
def test_a_topic_that_brokers_cannot_create_is_named(coordinator, kind, why):
    """As on one broker with Kafka's default replication factor: it never gets a coordinator."""

    async def unavailable(_request):
        return SimpleNamespace(error_code=15)

    coordinator._coordinators, coordinator.ask_any_async = {}, unavailable
    with pytest.raises(BrokersUnavailable, match=rf"coordinator of {kind} 'work': .* no leader in {why}"):
        coordinator.run(BrokerConnections.coordinator_async(coordinator, kind, "work", timeout=0.1))
