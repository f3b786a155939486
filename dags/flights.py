"""Classify flights by their delay, exactly once.

Every hour the new records of ``flights`` are read, classified and written to ``flights-classified``;
malformed ones go to ``flights-dead-letter``. Both, and the consumed offsets, become visible in one Kafka
transaction: kill the task at any point, clear it, start it twice; readers with
``isolation.level=read_committed`` see every flight once.

Needs the connection ``kafka_default`` and the three topics. Spark runs inside the task; give ``conn_id`` to
use a cluster.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from airflow_eos import Cursor, ReadProcessWriteOperator

with DAG(
    "flights",
    description="flights -> flights-classified + flights-dead-letter, exactly once",
    schedule=CronTriggerTimetable("7 * * * *", timezone="UTC"),
    # No start date: the first run is the next scheduled one, not one for an hour before the Dag existed.
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:
    ReadProcessWriteOperator(
        task_id="classify",
        # A path, not an import: the Dag file does not load what the app imports.
        process="../spark_apps/flights.py:process",
        topics=["flights"],
        sink_topic="flights-classified",
        group_id="flights-classifier",
        # The first run reads the topic from its beginning, every other one from the end of the last one.
        ranges=Cursor(start="earliest"),
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
