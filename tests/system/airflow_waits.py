"""Waits for actions that Airflow reports before they take effect."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually


def deferred(airflow: AirflowStandalone, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> None:
    """Wait until a try is deferred and the scheduler has processed the end of its process.

    Airflow 3.3 fails a try whose trigger fires between the two, if it is queued again before the end is
    processed: https://github.com/apache/airflow/issues/72716.
    """
    airflow.wait_for_task(dag_id, run_id, task_id, ["deferred"], try_number=try_number)
    key = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number={try_number},"
    note = re.compile(f"Received executor event with state success for task instance .*{re.escape(key)}")
    eventually(lambda: airflow.logs(lines=10_000), note.search)


@contextmanager
def another_triggerer(airflow: AirflowStandalone, dag_id: str, run_id: str) -> Iterator[None]:
    """Assign the triggers of a Dag run to another triggerer in Airflow's database, for the block."""
    clause = "id IN (SELECT trigger_id FROM task_instance WHERE dag_id = ? AND run_id = ?)"
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=60)) as database:
        with database:
            job = database.execute(
                "INSERT INTO job (state, job_type, start_date, latest_heartbeat) "
                "VALUES ('running', 'TriggererJob', '2001-01-01 00:00:00', '2999-01-01 00:00:00')"
            ).lastrowid
            database.execute(f"UPDATE trigger SET triggerer_id = {job} WHERE {clause}", (dag_id, run_id))
        try:
            yield
        finally:
            with database:
                database.execute("DELETE FROM job WHERE id = ?", (job,))
                database.execute(f"UPDATE trigger SET triggerer_id = NULL WHERE {clause}", (dag_id, run_id))
