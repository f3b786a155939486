"""A run whose driver is on a cluster, faked by the test: the task waits for it in the triggerer."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG

from airflow_eos import ReadProcessWriteSubmitOperator


class Submits(ReadProcessWriteSubmitOperator):
    """Returns a driver id made of Dag run and try, in place of the cluster's."""

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
