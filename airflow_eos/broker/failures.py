"""Turns confluent-kafka's failures into this package's errors, with the request they belong to."""

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

_PERMISSIONS: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "on the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "on the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "on the transactional id",
}
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}  # noqa: SLF001
)
_CREDENTIALS = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}  # noqa: SLF001
)
_UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_NO_ANSWER = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
    }
)


def explained(error: KafkaError, doing: str) -> EosError:
    """Return the error to raise for a :class:`confluent_kafka.KafkaError`.

    :param doing: the request and what it names, for example ``"DescribeGroups of 'orders'"``.
    """
    code = error.code()
    said = f"{doing}: {error.str()} ({error.name()})"
    if code in _PERMISSIONS:
        return AuthorizationFailed(
            f"{said}; grant this principal the operation {_PERMISSIONS[code]} by an ACL"
        )
    if code in _FENCED:
        return ProducerFenced(
            f"{said}; another attempt took the transactional id, or the transaction timed out"
        )
    if code in _CREDENTIALS:
        return ConfigurationError(f"{said}; check the security settings of the kafka connection")
    if code in _UNKNOWN_TOPIC:
        return UnknownTopic(f"{said}; create the topic or correct its name")
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        return RecordTooLarge(f"{said}; raise max.message.bytes of the topic")
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return TimeoutsInconsistent(
            f"{said}; lower transaction_timeout or raise transaction.max.timeout.ms of the brokers"
        )
    if code == KafkaError.UNSTABLE_OFFSET_COMMIT:
        return RequestRefused(
            f"{said}; an open transaction holds offsets of this group: wait for it, or find its owner with "
            "kafka-transactions.sh describe-producers on the group's __consumer_offsets partition"
        )
    if code in _NO_ANSWER:
        return BrokersUnavailable(f"{said}; check that the brokers run and are reachable")
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
