"""A run whose driver is on a cluster: the task waits for it in the triggerer. The cluster is the test's."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG

from airflow_eos import ReadProcessWriteSubmitOperator


class Submits(ReadProcessWriteSubmitOperator):
    """Names the driver after Dag run and try, as a cluster would name it."""

    def submit_job(self, context: Any) -> str:
        return f"driver-{context['run_id']}-{context['ti'].try_number}"


class Limited(Submits):
    """Has a minute on the worker, and a second in the triggerer."""

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        self.execution_timeout = dt.timedelta(seconds=1)
        super().poll_until_complete(external_id, context)


WORK: dict[str, Any] = {
    "task_id": "copy",
    "process": "held.py:process",
    "topics": ["driver-in"],
    "sink_topic": "driver-out",
    "group_id": "driver",
    "conn_id": "spark_rest",
    "deferrable": True,
    "status_poll_interval": 1,
}

with DAG("driver", schedule=None) as dag:
    Submits(**WORK, retries=1, retry_delay=dt.timedelta(seconds=1))

with DAG("driver_limited", schedule=None) as limited:
    Limited(**WORK, execution_timeout=dt.timedelta(minutes=1))
