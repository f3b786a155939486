"""Brokers that ask clients for a certificate."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from tests.support.client_certificates import Authority, mutual_tls


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """One that brokers trust, and a stranger."""
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder, "trusted-ca"), Authority(folder, "strange-ca")


@pytest.fixture(scope="module")
def kafka(authorities):
    with mutual_tls(authorities[0]) as running:
        yield running


def settings_with(kafka, certificate):
    return {
        **{k: v for k, v in kafka.client_config().items() if not k.startswith(("ssl.cert", "ssl.key"))},
        **certificate,
    }


def initialise(config):
    """Take a producer id by librdkafka."""
    producer = TransactionalProducer(
        ClientConfig.of(config), "certificates", transaction_timeout=60.0, delivery_timeout=30.0
    )
    try:
        return producer.initialise(60.0, topic="any")
    finally:
        producer.close()


@pytest.mark.parametrize("which", ["none", "stranger", "expired"])
def test_a_refused_certificate_is_named_at_once(kafka, authorities, which):
    """Both clients, long before the 60 seconds that brokers which do not answer get."""
    trusted, strange = authorities
    certificate = {
        "none": dict,
        "stranger": lambda: strange.client("stranger"),
        "expired": lambda: trusted.client("expired", ends_in=-dt.timedelta(hours=1)),
    }[which]()
    config = settings_with(kafka, certificate)
    for connect in (BrokerConnections, initialise):
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match="refused this client's certificate"):
            connect(config)
        assert time.monotonic() - began < 20


def test_a_trusted_certificate_is_taken(kafka, authorities):
    """The same settings with a good one."""
    config = settings_with(kafka, authorities[0].client("good"))
    with BrokerConnections(config) as connections:
        assert connections.topics([]) == {}
    assert initialise(config).producer_epoch == 0
