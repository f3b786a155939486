"""Turns confluent-kafka's failures into this package's errors, with the request they belong to."""

# ruff: noqa: SLF001

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    EosError,
    ProducerFenced,
    RecordTooLarge,
    RequestRefused,
    TimeoutsInconsistent,
    UnknownTopic,
)

T = TypeVar("T")

# Negative codes are librdkafka's own, in public use although their names begin with an underscore.
_VERDICTS: tuple[tuple[frozenset[int], type[EosError], str], ...] = (
    (
        frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED}),
        AuthorizationFailed,
        "grant this principal the operation on the topic by an ACL",
    ),
    (
        frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED}),
        AuthorizationFailed,
        "grant this principal the operation on the consumer group by an ACL",
    ),
    (
        frozenset({KafkaError.CLUSTER_AUTHORIZATION_FAILED}),
        AuthorizationFailed,
        "grant this principal the operation on the cluster by an ACL",
    ),
    (
        frozenset({KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}),
        AuthorizationFailed,
        "grant this principal Write and Describe on the transactional id by an ACL",
    ),
    (
        frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}),
        ProducerFenced,
        "another attempt took the transactional id, or the transaction timed out",
    ),
    (
        frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}),
        ConfigurationError,
        "check the security settings of the kafka connection",
    ),
    (
        frozenset(
            {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
        ),
        UnknownTopic,
        "create the topic or correct its name",
    ),
    (
        frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}),
        RecordTooLarge,
        "raise max.message.bytes of the topic",
    ),
    (
        frozenset({KafkaError.INVALID_TRANSACTION_TIMEOUT}),
        TimeoutsInconsistent,
        "lower transaction_timeout or raise transaction.max.timeout.ms of the brokers",
    ),
    (
        frozenset({KafkaError.UNSTABLE_OFFSET_COMMIT}),
        RequestRefused,
        (
            "an open transaction holds offsets of this group: wait for its end, or find its owner with "
            "kafka-transactions.sh describe-producers on the group's __consumer_offsets partition"
        ),
    ),
    (
        frozenset(
            {
                KafkaError._ALL_BROKERS_DOWN,
                KafkaError._DESTROY_BROKER,
                KafkaError._MSG_TIMED_OUT,
                KafkaError._TIMED_OUT,
                KafkaError._TRANSPORT,
                KafkaError.REQUEST_TIMED_OUT,
            }
        ),
        BrokersUnavailable,
        "check that the brokers run and are reachable",
    ),
)


def explained(error: KafkaError, doing: str) -> EosError:
    """Return the error to raise for a :class:`confluent_kafka.KafkaError`.

    :param doing: the request and what it names, for example ``"DescribeGroups of 'orders'"``.
    """
    said = f"{doing}: {error.str()} ({error.name()})"
    for codes, kind, advice in _VERDICTS:
        if error.code() in codes:
            return kind(f"{said}; {advice}")
    return RequestRefused(said)


def attempt(call: Callable[[], T]) -> tuple[T | None, KafkaError | None]:
    """Call into confluent-kafka and return its result, or the :class:`KafkaError` it raised.

    ``poll`` and ``flush`` raise a fatal error as a bare ``KafkaError``, which is no exception: ``except
    BaseException`` lets it through (measured with confluent-kafka 2.16). Python is not made for handling
    such an object, so nothing else happens while it is caught.
    """
    try:
        return call(), None
    except KafkaException as error:
        if isinstance(error.args[0], KafkaError):
            return None, error.args[0]
        raise
    except SystemError as error:
        # A second call-back met such an object that was on its way up.
        return None, KafkaError(KafkaError._FATAL, f"fatal error of the client: {error}")
    except BaseException:
        raise
    except:  # noqa: E722 - see above
        raised = sys.exc_info()[1]
    assert isinstance(raised, KafkaError), f"confluent-kafka raised {raised!r}"
    return None, raised


def checked(doing: str, call: Callable[[], T]) -> T:
    """Call into confluent-kafka; raise its failure as this package's error.

    :param doing: see :func:`explained`.
    """
    result, error = attempt(call)
    if error is not None:
        raise explained(error, doing) from KafkaException(error)
    return result  # type: ignore[return-value]
