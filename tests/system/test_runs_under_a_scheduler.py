"""Runs under a real scheduler: cleared, killed by hand, cleared again."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_eos.testing import EmbeddedKafka, count_records, read_topic
from airflow_eos.testing.airflow import AirflowStandalone
from tests.system.flights_support import MALFORMED, canonical, expected_output

from flights_input import Message, generate_flights, publish  # isort: skip

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine


def test_cleared_run_is_found_and_writes_nothing(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """Clear after the commit: the task succeeds from the ledger, readers see each flight once."""
    messages = [*generate_flights(2000, malformed=0.02), *MALFORMED]
    publish(kafka.client_config(), "flights", messages)
    classified, dead = expected_output(messages)

    run_id = airflow.trigger("flights")
    assert airflow.wait_for_run("flights", run_id) == "success", airflow.task_log(
        "flights", run_id, "classify", 1
    )
    first = airflow.xcom("flights", run_id, "classify")
    assert (first["found"], first["records_read"], first["records_written"]) == (
        False,
        len(messages),
        len(messages),
    )

    airflow.clear("flights", run_id, ["classify"])
    assert airflow.wait_for_run("flights", run_id) == "success"
    again = airflow.xcom("flights", run_id, "classify")
    assert again == {**first, "found": True}
    assert "Starting Spark" not in airflow.task_log("flights", run_id, "classify", 2)

    flights = read_topic(kafka.client_config(), "flights-classified")
    assert Counter((one.key, canonical(json.loads(one.value or b""))) for one in flights) == classified
    letters = read_topic(kafka.client_config(), "flights-dead-letter")
    assert Counter(one.value for one in letters) == dead


def test_task_marked_failed_ends_soon_and_leaves_nothing(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path
) -> None:
    """Marked failed by hand while its executors work: it ends, nothing is open; a clear runs it all."""
    before = Counter(_values(kafka))
    sent = _publish(kafka, b"marked")
    run_id = _start_and_hold(airflow, folder)
    processes = airflow.task_processes("held", run_id, "copy", tree=True)
    assert processes
    airflow.set_task_state("held", run_id, "copy", "failed")
    _wait_until_gone(airflow, processes)
    assert airflow.task("held", run_id, "copy")["state"] == "failed"
    assert _seen(kafka) == (before.total(), before.total())

    (folder / "held.hold").unlink()
    airflow.clear("held", run_id, ["copy"])
    assert airflow.wait_for_run("held", run_id) == "success", airflow.task_log("held", run_id, "copy", 2)
    found = airflow.xcom("held", run_id, "copy")
    assert (found["found"], found["records_written"]) == (False, 1000)
    assert Counter(_values(kafka)) == before + sent

    events = airflow.api.call("GET", f"/assets/events?source_run_id={run_id}")["asset_events"]
    (extra,) = [event["extra"]["airflow_eos"] for event in events]
    assert extra["records_written"] == sum(extra["written"].values()) == 1000


def test_killed_task_is_retried_by_the_scheduler(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path
) -> None:
    """SIGKILL, as by the OOM killer: the scheduler's next try commits everything, once."""
    before = Counter(_values(kafka))
    sent = _publish(kafka, b"killed")
    run_id = _start_and_hold(airflow, folder)
    airflow.kill_task("held", run_id, "copy")
    (folder / "held.hold").unlink()
    assert airflow.wait_for_run("held", run_id) == "success", airflow.task_log("held", run_id, "copy", 2)
    assert [one["state"] for one in airflow.api.tries("held", run_id, "copy")] == ["failed", "success"]
    found = airflow.xcom("held", run_id, "copy")
    assert (found["try_number"], found["clear_number"], found["records_written"]) == (2, 0, 1000)
    assert Counter(_values(kafka)) == before + sent


def _publish(kafka: EmbeddedKafka, prefix: bytes) -> Counter[bytes]:
    sent = [Message(b"%d" % (n % 7), prefix + b"%d" % n, 1_700_000_000_000) for n in range(1000)]
    publish(kafka.client_config(), "held-in", sent)
    return Counter(message.value for message in sent)


def _start_and_hold(airflow: AirflowStandalone, folder: Path) -> str:
    """Trigger the Dag and wait until its executors stand at the gate."""
    (folder / "held.hold").touch()
    run_id = airflow.trigger("held")
    airflow.wait_for_task("held", run_id, "copy", ["running"])
    _wait_for_log(airflow, run_id, "Starting Spark")
    return run_id


def _values(kafka: EmbeddedKafka) -> list[bytes]:
    return [one.value or b"" for one in read_topic(kafka.client_config(), "held-out")]


def _seen(kafka: EmbeddedKafka) -> tuple[int, int]:
    config = kafka.client_config()
    return (
        count_records(config, "held-out", "read_committed"),
        count_records(config, "held-out", "read_uncommitted"),
    )


def _wait_for_log(airflow: AirflowStandalone, run_id: str, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in airflow.task_log("held", run_id, "copy", 1):
        assert time.monotonic() < deadline, airflow.task_log("held", run_id, "copy", 1)[-4000:]
        time.sleep(0.1)


def _wait_until_gone(airflow: AirflowStandalone, processes: list[int]) -> None:
    deadline = time.monotonic() + 90  # Airflow's heartbeat brings the news to the task
    while left := set(processes).intersection(airflow.processes()):
        assert time.monotonic() < deadline, f"still there: {left}\n{airflow.logs()}"
        time.sleep(0.1)
