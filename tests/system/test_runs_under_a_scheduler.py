"""Runs with their own JVM under a real scheduler: cleared, killed, marked. Rows of docs/retries.md."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually
from tests.system.flights_support import MALFORMED, canonical, expected_output
from tests.system.retries_table import Pipeline, added, grown

from flights_input import generate_flights, publish  # isort: skip

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine


def test_cleared_run_is_found_and_writes_nothing(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """After a clear following the commit, the task succeeds from the ledger; readers see each flight once.

    A healthy task's log has no error lines, even though it has started a JVM.
    """
    messages = [*generate_flights(2000, malformed=0.02), *MALFORMED]
    publish(kafka.client_config(), "flights", messages)
    classified, dead = expected_output(messages)
    pipeline = Pipeline(
        kafka, "flights-classifier", "flights.classify", source="flights", sink="flights-classified"
    )
    before = pipeline.look()

    run_id = airflow.trigger("flights")
    assert airflow.wait_for_run("flights", run_id) == "success", airflow.task_log(
        "flights", run_id, "classify", 1
    )
    lines = [json.loads(line) for line in airflow.task_log("flights", run_id, "classify", 1).splitlines()]
    assert [line for line in lines if line["level"] in ("error", "critical")] == []
    assert {line["level"] for line in lines if "Using incubator modules" in line["event"]} == {"info"}
    first = airflow.xcom("flights", run_id, "classify")
    assert (first["found"], first["records_read"], first["records_written"]) == (
        False,
        len(messages),
        len(messages),
    )

    columns = pipeline.look()
    assert columns.offset == before.offset + len(messages)
    assert added(before, columns) == [(run_id, 1)]

    airflow.clear("flights", run_id, ["classify"])
    assert airflow.wait_for_run("flights", run_id) == "success"
    again = airflow.xcom("flights", run_id, "classify")
    assert again == {**first, "found": True}
    assert "Starting Spark" not in airflow.task_log("flights", run_id, "classify", 2)
    assert pipeline.look() == columns

    flights = read_topic(kafka.client_config(), "flights-classified")
    assert Counter((r.key, canonical(json.loads(r.value or b""))) for r in flights) == classified
    letters = read_topic(kafka.client_config(), "flights-dead-letter")
    assert Counter(r.value for r in letters) == dead


def test_task_marked_failed_ends_soon_and_leaves_nothing(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path
) -> None:
    """Marked failed by hand while its executors work: it ends, nothing stays open; a clear does the work."""
    held = Pipeline(kafka, "held", "held.copy")
    before = held.look()
    sent = held.publish("marked", 1000)
    run_id = _start_and_hold(airflow, folder)
    processes = airflow.task_processes("held", run_id, "copy", tree=True)
    assert processes
    airflow.set_task_state("held", run_id, "copy", "failed")
    # The task learns of it by Airflow's heartbeat.
    eventually(airflow.processes, lambda seen: not set(processes) & set(seen), seconds=90)
    assert airflow.task("held", run_id, "copy")["state"] == "failed"
    assert held.look() == before
    assert held.uncommitted() == before.output.total()

    (folder / "held.hold").unlink()
    # A task cleared while the scheduler ends the run would never run.
    assert airflow.wait_for_run("held", run_id) == "failed"
    airflow.clear("held", run_id, ["copy"])
    assert airflow.wait_for_run("held", run_id) == "success", airflow.task_log("held", run_id, "copy", 2)
    xcom = airflow.xcom("held", run_id, "copy")
    assert (xcom["found"], xcom["records_written"]) == (False, 1000)
    after = held.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


def test_killed_task_is_retried_by_the_scheduler(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path
) -> None:
    """SIGKILL, as by the OOM killer: the scheduler's next try commits everything, once."""
    held = Pipeline(kafka, "held", "held.copy")
    before = held.look()
    sent = held.publish("killed", 1000)
    run_id = _start_and_hold(airflow, folder)
    airflow.kill_task("held", run_id, "copy")
    assert held.look() == before
    (folder / "held.hold").unlink()
    assert airflow.wait_for_run("held", run_id) == "success", airflow.task_log("held", run_id, "copy", 2)
    assert [ti["state"] for ti in airflow.api.tries("held", run_id, "copy")] == ["failed", "success"]
    xcom = airflow.xcom("held", run_id, "copy")
    assert (xcom["try_number"], xcom["clear_number"], xcom["records_written"]) == (2, 0, 1000)
    after = held.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


def _start_and_hold(airflow: AirflowStandalone, folder: Path) -> str:
    """Trigger the Dag and wait until it has planned: its executors then wait at the gate."""
    (folder / "held.hold").touch()
    run_id = airflow.trigger("held")
    airflow.wait_for_task("held", run_id, "copy", ["running"])
    eventually(
        lambda: airflow.task_log("held", run_id, "copy", 1), lambda log: "state PLANNED" in log, seconds=120
    )
    return run_id
