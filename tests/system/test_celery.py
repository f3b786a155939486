"""PostgreSQL, two schedulers, two Celery workers: one is killed. Rows of docs/retries.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos.engine.admin import abort_transaction
from airflow_eos.ledger import keys
from airflow_eos.model.spec import DEFAULT_PREFIX
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow_platform import AirflowPlatform
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.system.gate import Gate
from tests.system.platform_fixtures import big_airflow
from tests.system.platform_run import ends_once, hold_run
from tests.system.retries_table import Pipeline

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine


@pytest.fixture(scope="module")
def platform(
    kafka: EmbeddedKafka, spark_connect: SparkConnectServer, folder: Path
) -> Iterator[AirflowPlatform]:
    with big_airflow(kafka, spark_connect, folder) as running:
        yield running


@pytest.fixture
def gate(folder: Path, request: pytest.FixtureRequest) -> Iterator[Gate]:
    gate = Gate(folder, request.param)
    yield gate
    gate.open()


def has_open_transaction(kafka: EmbeddedKafka, group: str) -> bool:
    name = keys.cursor_transactional_id(DEFAULT_PREFIX, group)
    found = abort_transaction(kafka.client_config(), name, execute=False)
    return str(found["state"]) == "Ongoing"


@pytest.mark.parametrize("gate", ["open"], indirect=True)
def test_worker_killed_with_its_transaction_open(
    platform: AirflowPlatform, kafka: EmbeddedKafka, gate: Gate
) -> None:
    """A worker dies with all it started: the other one takes the next try, which writes everything once."""
    pipeline = Pipeline(kafka, "open", "stays_open.copy")
    held = hold_run(platform, pipeline, gate, "stays_open", "worker")
    assert has_open_transaction(kafka, "open")
    dead = platform.owner_of(held.process)
    assert held.process in platform.kill_component(dead, tree=True)
    # The next try stands at the gate before the test looks: nothing of the dead one was seen by then.
    (_, second) = gate.wait(2)
    assert platform.owner_of(second) != dead
    assert pipeline.look() == held.before
    gate.open()
    ends_once(platform, held, committed_by=2, tries=["failed", "success"])


@pytest.mark.parametrize("gate", ["open"], indirect=True)
def test_scheduler_killed_while_a_transaction_is_open(
    platform: AirflowPlatform, kafka: EmbeddedKafka, gate: Gate
) -> None:
    """The worker goes on, the other scheduler takes the end over: one try, everything once."""
    pipeline = Pipeline(kafka, "open", "stays_open.copy")
    held = hold_run(platform, pipeline, gate, "stays_open", "scheduler")
    assert has_open_transaction(kafka, "open")
    platform.kill_component("scheduler1")
    gate.open()
    ends_once(platform, held, committed_by=1, tries=["success"])
