"""confluent-kafka's failures become this package's errors, with the request and the remedy."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker.librdkafka import attempt, checked, explained
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    CredentialsRefused,
    ProducerFenced,
    RecordRefused,
    RecordTooLarge,
    RequestRefused,
    TimeoutsInconsistent,
    UnknownTopic,
)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AuthorizationFailed, "topic"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationFailed, "transactional id"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, AuthorizationFailed, "cluster"),
        (KafkaError._FENCED, ProducerFenced, "another attempt"),
        (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFenced, "timed out"),
        (KafkaError.PRODUCER_FENCED, ProducerFenced, "another attempt"),
        (KafkaError._AUTHENTICATION, CredentialsRefused, "security settings"),
        (KafkaError._SSL, CredentialsRefused, "security settings"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopic, "create the topic"),
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLarge, "max.message.bytes"),
        (KafkaError.INVALID_TIMESTAMP, RecordRefused, "settings of the topic"),
        (KafkaError.INVALID_RECORD, RecordRefused, "settings of the topic"),
        (KafkaError.POLICY_VIOLATION, RecordRefused, "settings of the topic"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, TimeoutsInconsistent, "transaction.max.timeout.ms"),
        (KafkaError.CONCURRENT_TRANSACTIONS, BrokersUnavailable, "in-sync replicas"),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, BrokersUnavailable, "replicas in sync"),
        (KafkaError._TIMED_OUT, BrokersUnavailable, "brokers run"),
        (KafkaError._DESTROY_BROKER, BrokersUnavailable, "brokers run"),
        (KafkaError.INVALID_TXN_STATE, RequestRefused, "INVALID_TXN_STATE"),
    ],
)
def test_every_error_names_request_answer_and_next_step(code, kind, advice):
    """The class tells the kind of problem, the text what to do."""
    error = explained(KafkaError(code), "EndTxn of 'work'")
    assert type(error) is kind
    assert str(error).startswith("EndTxn of 'work': ")
    assert advice in str(error)


def test_a_kafka_exception_is_returned_as_its_error():
    """attempt returns the error that was raised, or the result."""

    def fails():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    result, error = attempt(fails)
    assert result is None
    assert error.code() == KafkaError._TIMED_OUT
    assert attempt(lambda: 7) == (7, None)


def test_other_exceptions_pass():
    """Only Kafka's own failures are translated, and certainly not an interrupt."""

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted)
    with pytest.raises(ZeroDivisionError):
        checked("dividing", lambda: 1 / 0)


def test_the_cause_is_kept():
    """The raised error has confluent-kafka's exception as its cause."""

    def fails():
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    with pytest.raises(RequestRefused, match="commit of 'work'") as raised:
        checked("commit of 'work'", fails)
    assert isinstance(raised.value.__cause__, KafkaException)
