"""confluent-kafka as the driver uses it: clients, calls with a deadline, this package's exceptions."""

# ruff: noqa: SLF001

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    CredentialsRefused,
    EosError,
    ProducerFenced,
    RecordRefused,
    RecordTooLarge,
    RequestRefused,
    TimeoutsInconsistent,
    UnknownTopic,
)
from airflow_eos.printable import printable
from airflow_eos.wire.client_config import OUR_SETTINGS, ClientConfig, import_callable, read_int
from airflow_eos.wire.ignored_settings import BULK_PRODUCING, OWNED_BY_PACKAGE

T = TypeVar("T")

# Negative codes are librdkafka's own; they are public although their names begin with an underscore.
_VERDICTS: tuple[tuple[frozenset[int], type[EosError], str], ...] = (
    (
        frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED}),
        AuthorizationFailed,
        "grant this principal Write on the topic by an ACL",
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
        frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}),
        CredentialsRefused,
        "check the security settings of the kafka connection",
    ),
    (
        frozenset({KafkaError._INVALID_ARG}),
        ConfigurationError,
        "correct the client setting of the kafka connection, or the name, that librdkafka refuses",
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
        frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.POLICY_VIOLATION}),
        RecordRefused,
        "correct the settings of the topic; `airflow eos doctor` names those of a ledger",
    ),
    (
        frozenset({KafkaError.INVALID_TRANSACTION_TIMEOUT}),
        TimeoutsInconsistent,
        (
            "raise transaction.max.timeout.ms of the brokers, or lower transaction_timeout, which stays "
            "above delivery_timeout + 30 s"
        ),
    ),
    (
        frozenset({KafkaError.CONCURRENT_TRANSACTIONS}),
        BrokersUnavailable,
        (
            "the end of the id's last transaction is not written everywhere: some partition lacks a leader "
            "or in-sync replicas, see `airflow eos doctor --sink TOPIC`"
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
        (
            "check that the brokers run, are reachable and take more connections (max.connections.per.ip); "
            "`airflow eos doctor` names partitions without a leader, and topics with too few replicas in sync"
        ),
    ),
    (
        frozenset(
            {
                KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
                KafkaError.COORDINATOR_NOT_AVAILABLE,
                KafkaError.NOT_COORDINATOR,
            }
        ),
        BrokersUnavailable,
        "check that all brokers run; `airflow eos doctor` names topics with too few replicas in sync",
    ),
)


_LOGIN_NOT_READY = ("OAuth token not set", "Failed to acquire SASL OAUTHBEARER token")
"""Errors of a client whose ``oauth_cb`` fails; their code is that of refused credentials."""


def explained(error: KafkaError, doing: str) -> EosError:
    """Return the error to raise for a :class:`confluent_kafka.KafkaError`.

    :param doing: the request and what it names, for example ``"InitProducerId of 'eos.orders'"``.
    """
    message = f"{doing}: {error.str()} ({error.name()})"
    if error.str().startswith(_LOGIN_NOT_READY):
        return BrokersUnavailable(f"{message}; 'oauth_cb' fails: see whether its issuer answers")
    for codes, kind, advice in _VERDICTS:
        if error.code() in codes:
            return kind(f"{message}; {advice}")
    return RequestRefused(message)


def attempt(call: Callable[[], T]) -> tuple[T | None, KafkaError | None]:
    """Call into confluent-kafka and return its result, or the :class:`KafkaError` it raised.

    ``poll`` and ``flush`` raise a fatal error as a bare ``KafkaError``, which is not an exception: ``except
    BaseException`` does not catch it (measured with confluent-kafka 2.16). Python does not expect such an
    object, so the handler only stores it.
    """
    try:
        return call(), None
    except KafkaException as error:
        if isinstance(error.args[0], KafkaError):
            return None, error.args[0]
        raise
    except SystemError as error:
        # A second callback ran while such an object was propagating.
        return None, KafkaError(KafkaError._FATAL, f"fatal error of the client: {error}")
    except BaseException:
        raise
    except:  # noqa: E722 - see above
        raised = sys.exc_info()[1]
    assert isinstance(raised, KafkaError), f"confluent-kafka raised {raised!r}"
    return None, raised


def checked(doing: str, call: Callable[[], T]) -> T:
    """Call into confluent-kafka; translate its error to this package's, see :func:`explained`."""
    result, error = attempt(call)
    if error is not None:
        raise explained(error, doing) from KafkaException(error)
    return result  # type: ignore[return-value]


logger = logging.getLogger("airflow_eos.librdkafka")
"""Receives librdkafka's log lines at DEBUG; the raised errors contain what matters."""

_OUR_OWN = frozenset({"error_cb", "log_cb", "logger", "statistics.interval.ms", "stats_cb", "throttle_cb"})
# Callbacks in the connection are meant for clients that the user creates.

_RECONNECT_BACKOFF_MS = 20
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
# librdkafka reports a connection that breaks before the answer to SaslHandshake as a failed authentication,
# with the true reason in the text (rd_kafka_broker_handle_SaslHandshake of librdkafka 2.16).


_REFUSED_CERTIFICATE = re.compile(r"SSL alert number (4[2-689]|116)\b")
# Alerts about a peer's certificate (RFC 8446, section 6.2). With TLS 1.3 they arrive after the client's part
# of the handshake, and librdkafka reports them as a lost connection.


class QuietLog:
    """Logs librdkafka's lines at DEBUG: it reports as errors what normal runs expect, such as fencing."""

    def log(self, _level: int, message: str, *args: Any) -> None:
        """Log a line; signature of ``logging.Logger.log``."""
        logger.debug("%s", printable(message % args if args else message))


@dataclass(eq=False)
class Refusals:
    """Keeps the errors that librdkafka retries forever although a retry cannot help; for ``error_cb``."""

    last: KafkaError | None = None

    def take(self, error: KafkaError) -> None:
        """Handle an error event."""
        if _REFUSED_CERTIFICATE.search(error.str()):
            error = KafkaError(
                KafkaError._SSL, f"the broker refused this client's certificate: {error.str()}"
            )
        if error.code() not in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            return
        if not any(reason in error.str() for reason in _LOST_CONNECTION):
            self.last = error


def base_settings(config: ClientConfig) -> dict[str, Any]:
    """Return the base settings of every client; the configuration overrides them.

    librdkafka looks a moved coordinator up only after a failed connection to the old one, and by default
    waits 10 s between two connections: two coordinators that move cost half a minute. It leaves half of
    ``reconnect.backoff.ms`` between the connections to two brokers, and each client begins with two: that
    of a bootstrap server, which it closes, and that of a broker.
    """
    left_out = OWNED_BY_PACKAGE | OUR_SETTINGS | _OUR_OWN | BULK_PRODUCING
    given = {key: value for key, value in config.items if key not in left_out}
    settings = {"client.id": "airflow-eos", **given}
    if callback := settings.get("oauth_cb"):
        from airflow_eos.wire.security import token_of

        if isinstance(callback, str):
            callback = import_callable("oauth_cb", callback)
        settings["oauth_cb"] = functools.partial(token_of, callback)
    if "reconnect.backoff.ms" not in given:
        key, longest = "reconnect.backoff.max.ms", _RECONNECT_BACKOFF_MAX_MS
        if key in given:
            longest = read_int(key, given[key])
        else:
            settings[key] = longest
        settings["reconnect.backoff.ms"] = min(_RECONNECT_BACKOFF_MS, longest)
    return settings


GRACE = 5.0
"""Extra seconds for librdkafka to return after its own timeout."""


def bounded(doing: str, call: Callable[[float], T], timeout: float, *, grace: float = GRACE) -> T:
    """Run a blocking call in its own thread, and abandon it if it does not return in time.

    Not every call of librdkafka honours its timeout (its issue 5456), but a commit must. An abandoned thread
    stays until the process ends; its late requests have the producer id and epoch of an aborted
    transaction. The caller receives signals while it waits, which it would not inside librdkafka.

    :param doing: for messages, see :func:`airflow_eos.broker.librdkafka.explained`.
    :param call: called with ``timeout``.
    :param timeout: seconds.
    :raises EosError: as :func:`~airflow_eos.broker.librdkafka.checked`; an abandoned call counts as timed
        out.
    """
    calling = functools.partial(checked, doing, functools.partial(call, timeout))
    future = in_daemon_thread(f"librdkafka: {doing}", calling)
    if not wait([future], timeout + grace).done:
        late = f"librdkafka did not come back within {timeout + grace:.0f} s"
        raise explained(KafkaError(KafkaError._TIMED_OUT, late), doing)
    return future.result()
