"""The flights app as a separate Spark application: in one process, and on a standalone cluster."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG

from airflow_eos import ReadProcessWriteSubmitOperator

GIVEN: dict[str, Any] = {
    "topics": ["flights"],
    "sink_topic": "flights-classified",
    "conf": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    "retries": 1,
    "retry_delay": dt.timedelta(seconds=1),
}

with DAG("submitted", schedule=None) as dag:
    ReadProcessWriteSubmitOperator(
        task_id="classify",
        process="../../../spark_apps/flights.py:process",
        group_id="submitted",
        conn_id="spark_local",
        **GIVEN,
    )

with DAG("submitted_app", schedule=None) as app_dag:
    ReadProcessWriteSubmitOperator(
        task_id="classify",
        application="../../../spark_apps/flights_submit.py",
        group_id="app",
        conn_id="spark_cluster",
        **GIVEN,
    )

with DAG("submitted_held", schedule=None) as held_dag:
    ReadProcessWriteSubmitOperator(
        task_id="copy",
        process="waiting_app.py:process",
        conn_id="spark_local",
        **{**GIVEN, "topics": ["submitted-in"], "sink_topic": "submitted-out", "group_id": "submitted"},
    )
