"""One task for the benchmarks: with Spark inside the task, and on a warm Spark Connect server."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_eos import Cursor, ReadProcessWriteOperator

WAYS: dict[str, dict[str, Any]] = {
    "copy": {"config_kwargs": {"spark.master": "local[2]", "spark.ui.enabled": "false"}},
    "warm": {"conn_id": "spark_warm"},
}

for way, given in WAYS.items():
    with DAG(f"benchmark_{way}", schedule=None, catchup=False):
        ReadProcessWriteOperator(
            task_id="copy",
            process="../jobs.py:transform",
            topics=["src"],
            sink_topic="out",
            group_id=f"benchmark-{way}",
            ranges=Cursor(start="earliest"),
            **given,
        )
