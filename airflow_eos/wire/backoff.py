"""Retries: which errors are transient, also among several answers, and backoff with a deadline."""

from __future__ import annotations

import logging
import random
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.future import Future

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokerUnsupported,
    ConfigurationError,
    CredentialsRefused,
)

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
SILENT_SECONDS = 6.0
"""Seconds without an answer after which a warning is logged; brokers learn of a new topic sooner."""
THROTTLED = "a broker throttles this client: see the quotas of its user and 'client.id'"
"""Why a request waits: the broker enforces a quota (KIP-219)."""


class Backoff:
    """Exponential backoff from 20 ms to 1 s, with jitter so that many clients do not retry at the same time.

    :param timeout: seconds until :attr:`expired`, from now.
    :ivar warned: whether :meth:`tell` has logged its warning.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.warned = False
        self._tries = 0

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def extend(self) -> None:
        """Restart the timeout."""
        self.deadline = time.monotonic() + self.timeout

    def next_pause(self) -> float:
        """Return the next pause in seconds; it ends at the deadline at the latest."""
        pause = pause_after(self._tries)
        self._tries += 1
        return min(pause, self.left)

    def tell(self, doing: str, error: Exception) -> None:
        """Log once, after :data:`SILENT_SECONDS`, why the caller waits: a silent minute looks like a hang."""
        if not self.warned and self.timeout - self.left >= SILENT_SECONDS and not self.expired:
            self.warned = True
            log.warning("%s: still waiting (%s), for up to %.0f s more", doing, describe(error), self.left)


def pause_after(tries: int) -> float:
    """Return the pause after ``tries`` failures: starts at 20 ms and doubles, with 50% jitter."""
    full = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries, 30))
    return float(full * random.uniform(0.5, 1.0))


TRANSIENT = (
    kafka_errors.RetriableError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.CorrelationIdError,
    OSError,
)
"""Exceptions of kafka-python after which the same request may be sent again."""


_REFUSED_CERTIFICATE = re.compile(
    r"ALERT_((BAD|UNSUPPORTED)_CERTIFICATE|CERTIFICATE_(REVOKED|EXPIRED|UNKNOWN|REQUIRED)"
    r"|UNKNOWN_CA|ACCESS_DENIED)$"
)
"""OpenSSL's names of the alerts about a peer's certificate (RFC 8446, section 6.2)."""


class NotYet(Exception):
    """A retriable answer; the text names the broker's error."""


def is_transient(error: BaseException) -> bool:
    """Whether a request that failed with this exception may be sent again."""
    return isinstance(error, TRANSIENT)


def describe(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = str(error)
    if isinstance(error, kafka_errors.NodeNotReadyError):  # raised with a node id, or a reason to wait
        if "throttle" in text:
            return THROTTLED
        if any(isinstance(argument, int) for argument in error.args):
            return f"broker {error.args[0]} could not be reached a moment ago"
    if isinstance(error, NotYet) or text.startswith(type(error).__name__):
        return text
    return f"{type(error).__name__}: {text}"


async def answers_to(
    futures: Mapping[int, Future], subject: str
) -> tuple[dict[int, Any], dict[int, Exception]]:
    """Await the answers to requests; return them by node id, and the errors of nodes that did not answer.

    :param subject: names the request in an error that a retry cannot fix, which is raised.
    """
    answers: dict[int, Any] = {}
    failures: dict[int, Exception] = {}
    for node, future in futures.items():
        try:
            answers[node] = await future
        except Exception as error:  # noqa: PERF203 - rare
            if not is_transient(error):
                raise translated(error, subject) from error
            failures[node] = error
    return answers, failures


def translated(error: Exception, subject: str) -> Exception:
    """Return this package's exception for an error that a retry cannot fix; other errors unchanged."""
    if isinstance(error, (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError)):
        return BrokerUnsupported(f"{subject}: the broker does not speak the needed request version: {error}")
    if isinstance(
        error, (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
    ):
        return CredentialsRefused(f"{subject}: the broker refused the credentials: {error}")
    if isinstance(error, kafka_errors.IllegalSaslStateError):
        return ConfigurationError(
            f"{subject}: this listener takes no SASL; set 'security.protocol' to PLAINTEXT or SSL, or name "
            "the port of a listener with SASL in 'bootstrap.servers'"
        )
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return CredentialsRefused(f"{subject}: {error}; check 'ssl.ca.location' and the broker's host name")
    if _REFUSED_CERTIFICATE.search(str(getattr(error.__cause__, "reason", ""))):
        return CredentialsRefused(
            f"{subject}: the broker refused this client's certificate: {error}; check "
            "'ssl.certificate.location' (or 'ssl.certificate.pem'), when it expires, and that the brokers "
            "trust its authority"
        )
    if isinstance(error, kafka_errors.AuthorizationError):
        return AuthorizationFailed(f"{subject}: {error}")
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return ConfigurationError(
            f"{subject}: {error}: this server is not a Kafka broker (see 'bootstrap.servers'), or "
            "'receive.message.max.bytes' is too low"
        )
    return error
