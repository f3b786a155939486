"""Classify flights when they arrive: an asset with a watcher instead of a schedule.

The watcher polls the topic and announces batches; it neither consumes nor commits. Each event starts a run,
which reads from the group's cursor: duplicate events, and events during a run, cost an empty run, never a
record.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_eos import OffsetRangeTrigger, ReadProcessWriteOperator

GROUP = "flights-on-arrival"

arrived = Asset(
    "flights-arrived",
    uri="kafka://broker:9092/flights",
    watchers=[
        AssetWatcher(
            name="flights-batches",
            trigger=OffsetRangeTrigger(
                topics=["flights"], group_id=GROUP, min_records=1000, max_delay=60.0, poll_interval=10.0
            ),
        )
    ],
)

with DAG(
    "flights_on_arrival",
    description="flights -> flights-on-arrival, when a batch has arrived",
    schedule=[arrived],
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:
    ReadProcessWriteOperator(
        task_id="classify",
        process="../spark_apps/flights.py:process",
        op_kwargs={"dead_letter_topic": "flights-on-arrival-dead-letter"},
        topics=["flights"],
        sink_topic="flights-on-arrival",
        group_id=GROUP,
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
