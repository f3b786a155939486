"""docs/tutorial-tables.md under a real scheduler; its final output is that on the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually
from tests.support.tables import held_catalog
from tests.system.airflow_env import ROOT
from tests.system.tutorial import DAG, TASK, TOPIC, TUTORIAL
from tools.try_getting_started import block, commands


def program(folder: Path, page: str, name: str, *arguments: str, env: dict[str, str]) -> str:
    """Run a program of a page, with the tutorial's topic; return the last line of its output."""
    text = block(page, "python", f"# {name}").replace('"orders",', f'"{TOPIC}",')
    (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, name, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def run_states(airflow: AirflowStandalone) -> dict[str, str]:
    runs = airflow.api.call("GET", f"/dags/{DAG}/dagRuns?limit=100")["dag_runs"]
    return {run["dag_run_id"]: run["state"] for run in runs}


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_orders_of_three_days_are_there_once_though_a_task_is_killed(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, lake: dict[str, str], tmp_path: Path
) -> None:
    """A task is killed between its files and its commit; the page's backfill loads the days before."""
    connection = json.dumps({"conn_type": "iceberg", "extra": lake})
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW_CONN_ICEBERG_DEFAULT": connection}
    started = (ROOT / "docs" / "getting-started.md").read_text()
    assert program(tmp_path, started, "publish.py", kafka.bootstrap_servers, env=env).startswith("0 records")
    program(tmp_path, TUTORIAL, "create_table.py", env=env)

    airflow.wait_for_dag(DAG)
    with held_catalog(lake, load_catalog("iceberg_default", **lake).load_table("shop.orders")) as held:
        airflow.api.unpause(DAG)
        held.wait_for(1)
        (yesterday,) = run_states(airflow)
        airflow.kill_task(DAG, yesterday, TASK)
    assert airflow.wait_for_run(DAG, yesterday) == "success"
    assert [ti["state"] for ti in airflow.api.tries(DAG, yesterday, TASK)] == ["failed", "success"]

    days = block(TUTORIAL, "console", "airflow backfill create")
    expanded = subprocess.run(
        ["bash", "-ec", f"printf '%s\\n' {days.removeprefix('airflow ')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    with airflow.standing_still():
        done = airflow.cli(*expanded.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    states = eventually(
        lambda: run_states(airflow),
        lambda seen: len(seen) == 3 and set(seen.values()) <= {"success", "failed"},
        seconds=240,
    )
    assert set(states.values()) == {"success"}, states
    assert f"```text\n{program(tmp_path, TUTORIAL, 'query.py', env=env)}\n```" in TUTORIAL


def test_what_is_typed_by_hand_is_one_block_each() -> None:
    """Commands that the test replaces, or that are left to the reader, appear once each."""
    for begin in (
        "pip install",
        "airflow eos doctor",
        "airflow dags unpause",
        "pkill -KILL",
        "airflow eos ledger",
    ):
        assert commands(block(TUTORIAL, "console", begin))


def test_the_page_kills_a_task_and_no_worker_of_the_executor() -> None:
    """A killed idle worker would keep the lock of the executor's queue."""
    pattern = shlex.split(block(TUTORIAL, "console", "pkill"))[-1]
    titles = [f"airflow worker -- {uuid.uuid4()}", "airflow worker -- LocalExecutor: <idle>"]
    assert [re.search(pattern, title) is not None for title in titles] == [True, False]
