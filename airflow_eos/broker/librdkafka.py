"""confluent-kafka as the driver uses it: clients, calls that end in time, failures in our names."""

# ruff: noqa: SLF001

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

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
from airflow_eos.printable import printable
from airflow_eos.wire.client_config import ClientConfig, for_librdkafka
from airflow_eos.wire.retry import Backoff

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
        # A second call-back ran while such an object was propagating.
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
    return _result(doing, *attempt(call))


def _result(doing: str, result: T | None, error: KafkaError | None) -> T:
    if error is not None:
        raise explained(error, doing) from KafkaException(error)
    return result  # type: ignore[return-value]


logger = logging.getLogger("airflow_eos.librdkafka")
"""Receives librdkafka's own log lines at DEBUG: what matters of them is in the raised errors."""

_OUR_OWN = frozenset({"error_cb", "log_cb", "logger", "statistics.interval.ms", "stats_cb", "throttle_cb"})
# Call-backs of the connection belong to the clients its user makes.

_RECONNECT_BACKOFF_MAX_MS = 1000

_LOST_CONNECTION = tuple(
    KafkaError(code).str()
    for code in (
        KafkaError._DESTROY,
        KafkaError._DESTROY_BROKER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    )
)
# A connection that breaks before the answer to SaslHandshake is reported as a failed authentication, with its
# true reason in the text (rd_kafka_broker_handle_SaslHandshake of librdkafka 2.16).


_REFUSED_CERTIFICATE = re.compile(r"SSL alert number (4[2-689]|116)\b")
# Alerts about a peer's certificate (RFC 8446, section 6.2). With TLS 1.3 they come after the client's part of
# the handshake, and librdkafka reports a lost connection.


class QuietLog:
    """librdkafka logs refused connections and fencing as errors; here they are events of a normal run."""

    def log(self, _level: int, message: str, *args: Any) -> None:
        """Take a line as ``logging.Logger.log`` does."""
        logger.debug("%s", printable(message % args if args else message))


class Refusals:
    """Keeps the errors that librdkafka retries for ever although no retry can help; an ``error_cb``."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def take(self, error: KafkaError) -> None:
        """Take an error event."""
        if _REFUSED_CERTIFICATE.search(error.str()):
            error = KafkaError(
                KafkaError._SSL, f"the broker refused this client's certificate: {error.str()}"
            )
        if error.code() not in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            return
        if not any(reason in error.str() for reason in _LOST_CONNECTION):
            self.last = error

    def forget(self) -> None:
        """Note that a broker has accepted this client."""
        self.last = None


def base_settings(config: ClientConfig) -> dict[str, Any]:
    """Return the settings every client starts from; the configuration wins over them.

    librdkafka asks where a coordinator has gone after each failed connection to the old one, and by default
    waits 10 s between two of them: two coordinators that move cost half a minute.
    """
    theirs = for_librdkafka(config)
    settings = {"client.id": "airflow-eos", **theirs}
    if "reconnect.backoff.ms" not in theirs:
        settings.setdefault("reconnect.backoff.max.ms", _RECONNECT_BACKOFF_MAX_MS)
    return {key: value for key, value in settings.items() if key not in _OUR_OWN}


_SLICE_SECONDS = 10.0

_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)


class Admin:
    """An admin client that retries what may pass, and ends at once where credentials are refused.

    It connects in the background, at the first question.

    :param config: client configuration in librdkafka's names.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._settings = base_settings(config)
        self.client: Any = self._new_client()

    def _new_client(self) -> Any:
        # What a client was told before says nothing about the next one.
        self._refusals = Refusals()
        return AdminClient({**self._settings, "error_cb": self._refusals.take}, logger=QuietLog())

    def ask(self, doing: str, question: Callable[[float], T], *, timeout: float) -> T:
        """Ask until there is an answer.

        :param doing: names the request in errors.
        :param question: gets the seconds it may take; asks :attr:`client`, which is another one after a
            time-out; returns the answer or raises ``KafkaException``.
        :param timeout: seconds, with all retries.
        :raises ConfigurationError: when the brokers refuse the credentials.
        :raises EosError: for errors that no retry can help, and for the last one after ``timeout`` seconds.
        """
        backoff = Backoff(timeout)
        while True:
            # In slices: librdkafka would try refused credentials until the end.
            left = min(max(backoff.left, 1.0), _SLICE_SECONDS)
            result, error = attempt(lambda left=left: question(left))  # type: ignore[misc]
            # Events are heard in any case: those before an answer must not count after it.
            refusal = self.refusal()
            if error is None:
                self._refusals.forget()
                return result  # type: ignore[return-value]
            error = refusal or error
            if not (error.retriable() or error.code() in _PASSING) or backoff.expired:
                raise explained(error, doing) from KafkaException(error)
            if error.code() == KafkaError._TIMED_OUT:
                # librdkafka waits for the controller it has heard of first, dead or not, and asks nobody for
                # another: a new client does.
                self.client = self._new_client()
            time.sleep(backoff.next_pause())

    def refusal(self) -> KafkaError | None:
        """Return the reason for which brokers refuse this client, as far as it has heard of one."""
        attempt(lambda: self.client.poll(0))
        return self._refusals.last


GRACE = 5.0
"""Seconds for librdkafka to notice by itself that its own time-out is over."""


def bounded(doing: str, call: Callable[[float], T], timeout: float, *, grace: float = GRACE) -> T:
    """Make a blocking call in a thread of its own, and give it up when it does not come back.

    Not every call of librdkafka keeps its time-out (its issue 5456), and a commit must. The thread that is
    given up stays until the process ends; what it may still send carries the identity of a transaction that
    is aborted.
    Signals reach the caller while it waits, as they would not inside of librdkafka.

    :param doing: for messages, see :func:`airflow_eos.broker.librdkafka.explained`.
    :param call: called with ``timeout``.
    :param timeout: seconds.
    :raises EosError: as :func:`~airflow_eos.broker.librdkafka.checked`; a call that is given up timed out.
    """
    future: Future[tuple[T | None, KafkaError | None]] = Future()

    def body() -> None:
        try:
            future.set_result(attempt(functools.partial(call, timeout)))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            future.set_exception(error)

    threading.Thread(target=body, name=f"librdkafka: {doing}", daemon=True).start()
    if not wait([future], timeout + grace).done:
        late = f"librdkafka did not come back within {timeout + grace:.0f} s"
        raise explained(KafkaError(KafkaError._TIMED_OUT, late), doing)
    return _result(doing, *future.result())
