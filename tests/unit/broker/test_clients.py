"""Settings of the driver's own clients."""

from __future__ import annotations

import subprocess
import sys

from confluent_kafka import KafkaError

from airflow_eos.broker.clients import Refusals, base_settings, member_less_group
from airflow_eos.wire.client_config import ClientConfig


def test_call_backs_of_the_connection_are_not_taken_over():
    """They belong to the clients the connection's author makes; the rest is kept."""
    settings = base_settings(
        ClientConfig.of(
            {
                "bootstrap.servers": "a:1",
                "error_cb": print,
                "stats_cb": print,
                "statistics.interval.ms": 10,
                "group.id": "theirs",
                "sasl.username": "me",
            }
        )
    )
    assert settings == {"bootstrap.servers": "a:1", "client.id": "airflow-eos", "sasl.username": "me"}


def test_only_refusals_are_kept():
    """A lost connection may come back; refused credentials do not get better."""
    refusals = Refusals()
    refusals.take(KafkaError(KafkaError._TRANSPORT))
    assert refusals.last is None
    refusals.take(KafkaError(KafkaError._AUTHENTICATION))
    assert refusals.last.code() == KafkaError._AUTHENTICATION


def test_group_metadata_needs_no_broker():
    """Metadata of someone who is no member is made without a connection."""
    assert member_less_group("orders") is not None


def test_importing_the_package_imports_no_client():
    """confluent-kafka and kafka-python are loaded at first use of a class."""
    code = (
        "import sys, airflow_eos.broker\n"
        "assert not {'confluent_kafka', 'kafka', 'pyarrow'} & set(sys.modules), 'too much'\n"
        "from airflow_eos.broker import KafkaCluster, KafkaLedger, KafkaTransactions, Link\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
