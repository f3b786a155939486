"""Failures of requests: which may be tried again, and what the others are called here."""

from __future__ import annotations

import ssl

import kafka.errors as kafka_errors

from airflow_eos.exceptions import AuthorizationFailed, BrokerUnsupported, ConfigurationError

TRANSIENT = (
    kafka_errors.RetriableError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.CorrelationIdError,
    OSError,
)
"""Exceptions of kafka-python after which the same request may be sent again."""


class NotYet(Exception):
    """An answer that asks for another try; the text says what the broker answered."""


def is_transient(error: BaseException) -> bool:
    """Whether a request that failed by this exception may be sent again."""
    return isinstance(error, TRANSIENT)


def describe(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = str(error)
    if isinstance(error, NotYet) or text.startswith(type(error).__name__):
        return text
    return f"{type(error).__name__}: {text}"


def translated(error: Exception, what: str) -> Exception:
    """Return this package's exception for one that no retry can help; others as they are."""
    if isinstance(error, (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError)):
        return BrokerUnsupported(f"{what}: the broker does not speak the needed request version: {error}")
    if isinstance(
        error, (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
    ):
        return ConfigurationError(f"{what}: the broker refused the credentials: {error}")
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return ConfigurationError(f"{what}: {error}; check 'ssl.ca.location' and the broker's host name")
    if isinstance(error, kafka_errors.AuthorizationError):
        return AuthorizationFailed(f"{what}: {error}")
    if isinstance(error, kafka_errors.InvalidReceiveError):
        return ConfigurationError(f"{what}: {error}; raise 'receive.message.max.bytes'")
    return error
