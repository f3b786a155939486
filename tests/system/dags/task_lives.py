"""A task that records the numbers Airflow gives to each of its executions, and waits if the test asks."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator

from airflow_eos.operators.task_identity import clear_number


class Life(BaseOperator):
    """Return the numbers of this execution, once the file ``<task_id>.hold`` does not exist."""

    def execute(self, context: Any) -> dict[str, int]:
        life = {
            "try_number": context["ti"].try_number,
            "dag_run": context["dag_run"].clear_number,
            "task": clear_number(context),
        }
        folder = Path(os.environ["EOS_TEST_FOLDER"])
        with (folder / f"{self.task_id}.jsonl").open("a") as lives:
            lives.write(json.dumps(life) + "\n")
        while (folder / f"{self.task_id}.hold").exists():
            time.sleep(0.1)
        return life


with DAG(
    "lives",
    schedule=None,
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
    default_args={"retries": 2, "retry_delay": dt.timedelta(seconds=1)},
) as dag:
    Life(task_id="work")
    Life(task_id="neighbour")
