"""Fixtures of the tests that talk to real brokers.

A module that defines its own ``embedded_kafka`` or ``config`` makes the other control-plane fixtures use it.
"""

from __future__ import annotations

import os
import socket

import pytest

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.wire.connection import BrokerConnections
from tests.support.brokers import make_ledger, make_transactions
from tests.support.postgres_tables import postgres_server
from tests.support.spark_sessions import BOOTSTRAP, KIND, Broker, new_session

__all__ = ["postgres_server"]


@pytest.fixture
def unused_port():
    """A loopback port on which nothing listens; held, so that no other process gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# -- the control plane ------------------------------------------------------------------------------------


@pytest.fixture
def config(embedded_kafka):
    """Client configuration of the control plane under test."""
    return embedded_kafka.client_config()


@pytest.fixture
def link(config):
    with Link(config) as opened:
        yield opened


@pytest.fixture
def ledger(config, link):
    return make_ledger(config, link)


@pytest.fixture
def cluster(link):
    return KafkaCluster(link)


@pytest.fixture
def transactions(config, ledger, link):
    return make_transactions(config, ledger, link)


# -- the wire layer ---------------------------------------------------------------------------------------


@pytest.fixture
def connections(embedded_kafka):
    with BrokerConnections(embedded_kafka.client_config()) as opened:
        yield opened


# -- the data plane, on a classic session or, in a separate process, on Spark Connect ---------------------


@pytest.fixture(scope="module")
def broker(request):
    bootstrap = os.environ.get(BOOTSTRAP)
    return Broker(bootstrap or request.getfixturevalue("embedded_kafka").bootstrap_servers)


@pytest.fixture(scope="module")
def spark():
    session = new_session("connect" if os.environ.get(KIND) == "connect" else "classic")
    yield session
    session.stop()
