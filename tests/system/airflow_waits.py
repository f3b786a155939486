"""Waits for what Airflow does a little later than it says."""

from __future__ import annotations

import re

from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually


def deferred(airflow: AirflowStandalone, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> None:
    """Wait until a try is deferred and the scheduler has taken note that its process has ended.

    Airflow 3.3 fails a try whose trigger fires between the two, if it is queued again before the note is
    taken: https://github.com/apache/airflow/issues/72716.
    """
    airflow.wait_for_task(dag_id, run_id, task_id, ["deferred"], try_number=try_number)
    key = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number={try_number},"
    note = re.compile(f"Received executor event with state success for task instance .*{re.escape(key)}")
    eventually(lambda: airflow.logs(lines=10_000), note.search)
