"""Runs whose broker goes away, at the start and in the middle."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_eos.broker import shared_connections
from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline


@pytest.fixture(scope="module")
def own_kafka():
    """A broker that tests may kill."""
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture
def pipeline(own_kafka):
    found = Pipeline(own_kafka)
    found.publish([f"v{i}" for i in range(50)])
    found.run("warm-up")
    found.publish([f"w{i}" for i in range(50)])
    return found


def test_a_broker_that_is_down_at_the_start_is_named(pipeline, unused_port, monkeypatch):
    """Nobody listens: one clear error with the address, nothing started."""
    monkeypatch.setattr(shared_connections, "BOOTSTRAP_TIMEOUT", 5.0)
    kafka = {"bootstrap.servers": f"127.0.0.1:{unused_port}"}
    with pytest.raises(BrokersUnavailable, match=str(unused_port)):
        pipeline.run("r1", kafka=kafka)
    assert len(pipeline.output()) == 50
    assert pipeline.run("r1", try_number=2).records_written == 50


@pytest.mark.parametrize(
    "state",
    [
        State.OPEN,
        pytest.param(State.STAGED, marks=pytest.mark.chaos),
        pytest.param(State.PROVEN, marks=pytest.mark.chaos),
    ],
)
def test_a_broker_killed_in_mid_run_and_started_again_loses_nothing(pipeline, own_kafka, state):
    """SIGKILL of the only broker at this state: the run waits, retries or resolves; all agrees."""
    broker = own_kafka.brokers[0]
    starters = []

    def kill(entered):
        if entered is state and not starters:
            broker.kill()
            starter = threading.Thread(target=lambda: (time.sleep(1), broker.start()))
            starter.start()
            starters.append(starter)

    try:
        record = pipeline.run("r1", on_state=kill)
    finally:
        for starter in starters:
            starter.join(120)
    assert starters
    assert len(pipeline.output()) == 100
    assert record.records_written == 50
    assert pipeline.run("r2").records_read == 0
