"""Numbers that Airflow gives to a task's executions: the operator's run identity depends on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.compat import AIRFLOW_VERSION
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

DAG_ID = "lives"


def lives(folder: Path, task_id: str = "work") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{task_id}.jsonl").read_text().splitlines()]


@pytest.mark.chaos
def test_only_a_clear_of_the_task_itself_is_another_life(airflow: AirflowStandalone, folder: Path) -> None:
    """A retry, or a cleared neighbour: same number. Task or whole run cleared: a new number.

    Cleared while it runs, and therefore ended by Airflow: a new number. A task that ends on its own before
    Airflow's next heartbeat is retried instead.
    """
    hold = folder / "work.hold"

    hold.touch()
    run_id = airflow.trigger(DAG_ID)
    airflow.wait_for_task(DAG_ID, run_id, "neighbour", ["success"])
    airflow.wait_for_task(DAG_ID, run_id, "work", ["running"])
    airflow.clear(DAG_ID, run_id, ["neighbour"])
    (killed,) = airflow.kill_task(DAG_ID, run_id, "work")
    hold.unlink()
    assert airflow.wait_for_run(DAG_ID, run_id) == "success"
    tries = [attempt["state"] for attempt in airflow.api.tries(DAG_ID, run_id, "work")]
    assert tries == ["failed", "success"]
    assert killed not in airflow.processes()

    airflow.clear(DAG_ID, run_id, ["work"])
    assert airflow.wait_for_run(DAG_ID, run_id) == "success"

    hold.touch()
    airflow.clear(DAG_ID, run_id, ["work"])
    airflow.wait_for_task(DAG_ID, run_id, "work", ["running"], try_number=4)
    eventually(lambda: len(lives(folder)), lambda written: written == 4)
    old = set(airflow.task_processes(DAG_ID, run_id, "work"))
    airflow.clear(DAG_ID, run_id, ["work"])  # while it runs
    eventually(airflow.processes, lambda seen: not old & set(seen), seconds=90)
    hold.unlink()
    airflow.wait_for_task(DAG_ID, run_id, "work", ["success"], try_number=5)

    airflow.clear_run(DAG_ID, run_id)
    airflow.wait_for_task(DAG_ID, run_id, "work", ["success"], try_number=6)
    assert airflow.wait_for_run(DAG_ID, run_id) == "success"

    assert [(life["try_number"], life["task"]) for life in lives(folder)] == [
        (1, 0),
        (2, 0),  # a retry: the neighbour's clear does not count
        (3, 2),
        (4, 3),
        (5, 4),  # cleared while it ran, and ended by Airflow
        (6, 5),
    ]
    # Airflow 3.1 does not count the clear of a task in a running Dag run.
    counted = [0, 0, 1, 2, 2, 3] if AIRFLOW_VERSION < (3, 2) else [0, 1, 2, 3, 4, 5]
    assert [life["dag_run"] for life in lives(folder)] == counted
    assert airflow.xcom(DAG_ID, run_id, "work") == lives(folder)[-1]
