"""The flights app as a Spark application of its own; spark-submit in client mode."""

from __future__ import annotations

import datetime as dt

from airflow.sdk import DAG

from airflow_eos import ReadProcessWriteSubmitOperator

GIVEN = {
    "topics": ["flights"],
    "sink_topic": "flights-classified",
    "conn_id": "spark_local",
    "conf": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    "retries": 1,
    "retry_delay": dt.timedelta(seconds=1),
}

with DAG("submitted", schedule=None) as dag:
    ReadProcessWriteSubmitOperator(
        task_id="classify", process="../../../spark_apps/flights.py:process", group_id="submitted", **GIVEN
    )

with DAG("submitted_app", schedule=None) as app_dag:
    ReadProcessWriteSubmitOperator(
        task_id="classify", application="../../../spark_apps/flights_submit.py", group_id="app", **GIVEN
    )
