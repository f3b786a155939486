"""Copy ``customers`` without their e-mail addresses to ``customers-masked``, exactly once and on Arrow.

``process`` is an ``@arrow_process``: reading, transform and writing run in one Python stage, and no record
enters the JVM. Needs the connection ``kafka_default`` and both topics.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from airflow_eos import Cursor, ReadProcessWriteOperator

with DAG(
    "customers_masked",
    description="customers -> customers-masked, exactly once",
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once", "arrow"],
) as dag:
    ReadProcessWriteOperator(
        task_id="mask",
        # A path, not an import: the Dag file loads no Arrow when it is parsed.
        process="../spark_apps/customers.py:process",
        topics=["customers"],
        sink_topic="customers-masked",
        group_id="customers-masked",
        ranges=Cursor(start="earliest"),
        config_kwargs={"spark.ui.enabled": "false"},
    )
