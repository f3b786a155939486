"""A TLS alert about this client's certificate is a configuration error; waiting does not help."""

from __future__ import annotations

import ssl

import kafka.errors as kafka_errors
import pytest
from confluent_kafka import KafkaError

from airflow_eos.broker.librdkafka import Refusals
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.backoff import translated

ALERTS = {
    42: "SSLV3_ALERT_BAD_CERTIFICATE",
    43: "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    44: "SSLV3_ALERT_CERTIFICATE_REVOKED",
    45: "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    46: "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    48: "TLSV1_ALERT_UNKNOWN_CA",
    49: "TLSV1_ALERT_ACCESS_DENIED",
    116: "TLSV13_ALERT_CERTIFICATE_REQUIRED",
}
OTHERS = {
    40: "SSLV3_ALERT_HANDSHAKE_FAILURE",
    47: "SSLV3_ALERT_ILLEGAL_PARAMETER",
    80: "TLSV1_ALERT_INTERNAL_ERROR",
}


def of_kafka_python(reason):
    failure = ssl.SSLError(1, reason)
    failure.reason = reason
    error = kafka_errors.KafkaConnectionError(reason)
    error.__cause__ = failure
    return translated(error, "connecting")


def of_librdkafka(number):
    refusals = Refusals()
    text = f"Receive failed: error:0A:SSL routines::ssl/tls alert: SSL alert number {number} (after 0ms)"
    refusals.take(KafkaError(KafkaError._TRANSPORT, text))
    return refusals.last


@pytest.mark.parametrize("number", ALERTS)
def test_alerts_about_the_certificate_are_final(number):
    """In the messages of both client libraries."""
    assert isinstance(of_kafka_python(ALERTS[number]), ConfigurationError)
    assert of_librdkafka(number).code() == KafkaError._SSL


@pytest.mark.parametrize("number", OTHERS)
def test_other_alerts_may_pass(number):
    """They stay lost connections, which are retried."""
    assert isinstance(of_kafka_python(OTHERS[number]), kafka_errors.KafkaConnectionError)
    assert of_librdkafka(number) is None
