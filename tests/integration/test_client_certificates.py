"""Brokers that require client certificates."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import pytest

from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.engine import RunAttempt
from airflow_eos.exceptions import ConfigurationError, CredentialsRefused, RunFailed
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from tests.support.client_certificates import Authority, mutual_tls
from tests.support.local_runs import LocalPlane, Pipeline, Session


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    """One that brokers trust, and one that they do not."""
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
    """Get a producer id with librdkafka."""
    producer = TransactionalProducer(
        ClientConfig.of(config), "certificates", transaction_timeout=60.0, delivery_timeout=30.0
    )
    try:
        return producer.initialise(60.0, topic="any")
    finally:
        producer.close()


@pytest.mark.parametrize("which", ["none", "stranger", "expired"])
def test_a_refused_certificate_is_named_at_once(kafka, authorities, which, monkeypatch):
    """In both clients, long before the 60 seconds that an unresponsive broker is given."""
    if which != "none":  # one case keeps the usual interval
        monkeypatch.setattr("airflow_eos.broker.producer._INIT_SLICE_SECONDS", 0.5)
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
    """The same settings with a trusted certificate."""
    config = settings_with(kafka, authorities[0].client("good"))
    with BrokerConnections(config) as connections:
        assert connections.topics([]) == {}
    assert initialise(config).producer_epoch == 0


@pytest.mark.parametrize("replaced", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_certificate_that_is_replaced_while_a_run_works_is_read_by_the_next_try(
    kafka, authorities, tmp_path, monkeypatch, replaced
):
    """The authority is replaced before the brokers' certificates, or a certificate before its key: retry."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", LocalPlane)
    trusted, strange = authorities
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish(["a", "b"])
    config = settings_with(kafka, trusted.client("rotated"))
    file = tmp_path / "replaced.pem"
    good = Path(config[replaced]).read_bytes()
    file.write_bytes(good)

    def entered(state):
        if state is State.PLANNED:
            file.write_bytes(strange.location.read_bytes())

    spec = pipeline.changed("r1", kafka={**config, replaced: str(file)})
    with pytest.raises(RunFailed, match=r"(?i)certificate.*a retry reads the connection") as failed:
        RunAttempt(Session(), spec, None, on_state=entered).execute()
    assert not is_final(failed.value)
    with pytest.raises(CredentialsRefused, match=r"(?i)certificate"):
        BrokerConnections(spec.kafka)
    file.write_bytes(good)
    assert RunAttempt(Session(), spec, None).execute().records_written == 2
    assert pipeline.output() == ["a", "b"]
