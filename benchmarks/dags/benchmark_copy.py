"""One task for the benchmarks, with Spark inside."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_eos import Cursor, ReadProcessWriteOperator

with DAG("benchmark_copy", schedule=None, catchup=False) as dag:
    ReadProcessWriteOperator(
        task_id="copy",
        process="../jobs.py:transform",
        topics=["src"],
        sink_topic="out",
        group_id="benchmark-copy",
        ranges=Cursor(start="earliest"),
        config_kwargs={"spark.master": "local[2]", "spark.ui.enabled": "false"},
    )
