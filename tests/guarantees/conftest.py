"""Brokers and Spark of the experiments, each started once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_eos_testing import EmbeddedKafka
from tests.guarantees.experiment import Experiment

OLDER = "3.9.2"

QUICK_FAILOVER = {
    # A dead broker is fenced after 2 s instead of 9.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 250,
    "replica.lag.time.max.ms": 3000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    # Leaders move when an experiment moves them, not by the clock.
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture
def experiment(embedded_kafka: EmbeddedKafka) -> Experiment:
    """A pipeline of two partitions on the current broker."""
    return Experiment(embedded_kafka)


@pytest.fixture(scope="module")
def older_kafka() -> Iterator[EmbeddedKafka]:
    """Kafka 3.9 with transaction version 1, stopped after the module: even an idle broker costs resources."""
    with EmbeddedKafka(version=OLDER) as kafka:
        yield kafka


@pytest.fixture(params=["4.3", "3.9"])
def any_kafka(request: pytest.FixtureRequest) -> EmbeddedKafka:
    """One broker of each supported line in turn."""
    return request.getfixturevalue("embedded_kafka" if request.param == "4.3" else "older_kafka")


@pytest.fixture(scope="package")
def replicated_kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers that detect a dead one quickly; a test restarts what it kills."""
    with EmbeddedKafka(brokers=3, broker_config=QUICK_FAILOVER) as kafka:
        yield kafka


@pytest.fixture
def in_sync(replicated_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """Three brokers, all of them in sync before and after."""
    replicated_kafka.wait_in_sync()
    yield replicated_kafka
    for broker in replicated_kafka.brokers:
        broker.resume()
        if not broker.is_alive:
            broker.start()
    replicated_kafka.wait_in_sync()


@pytest.fixture
def replicated(in_sync: EmbeddedKafka) -> Experiment:
    """A pipeline of two partitions on three brokers."""
    return Experiment(in_sync)


@pytest.fixture
def replicated_one(in_sync: EmbeddedKafka) -> Experiment:
    """A pipeline of one partition on three brokers."""
    return Experiment(in_sync, partitions=1)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A Spark session; Spark's own Kafka connector is there too, as a contrast."""
    from tests.support.spark_sessions import new_session

    session = new_session("classic")
    yield session
    session.stop()
