"""Classify flights in batches that are worth a Spark job.

Every ten minutes the sensor waits for 10,000 unread flights, or for any after half an hour: small batches
are held back, and a run without input never starts.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from airflow_eos import KafkaLagSensor, ReadProcessWriteOperator

GROUP = "flights-batched"

with DAG(
    "flights_batched",
    description="flights -> flights-batched, in batches",
    schedule=CronTriggerTimetable("*/10 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:
    enough = KafkaLagSensor(
        task_id="enough",
        topics=["flights"],
        group_id=GROUP,
        min_records=10_000,
        max_delay=timedelta(minutes=30),
        deferrable=True,
        poke_interval=30,
        timeout=timedelta(hours=12),
    )
    classify = ReadProcessWriteOperator(
        task_id="classify",
        process="../spark_apps/flights.py:process",
        op_kwargs={"dead_letter_topic": "flights-batched-dead-letter"},
        topics=["flights"],
        sink_topic="flights-batched",
        group_id=GROUP,
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    enough >> classify
