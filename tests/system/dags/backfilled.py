"""The flights of each day for backfills, and a cursor over the same topic in the same pipeline."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, CronPartitionTimetable

from airflow_eos import ReadProcessWriteOperator

COMMON: dict[str, Any] = {
    "process": "../spark_apps/flights.py:process",
    "topics": ["backfill-in"],
    "group_id": "backfill",
    "pipeline": "backfill",
    "conn_id": "spark_shared",
    "op_kwargs": {"dead_letter_topic": "backfill-dead"},
    "retries": 2,
    "retry_delay": dt.timedelta(seconds=2),
}

with DAG(
    "backfilled",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc),
    end_date=dt.datetime(2001, 3, 31, tzinfo=dt.timezone.utc),
    catchup=False,
    is_paused_upon_creation=True,
) as dag:
    ReadProcessWriteOperator(
        task_id="classify",
        sink_topic="backfill-out",
        ranges="data_interval",
        allowed_lateness=dt.timedelta(0),
        **COMMON,
    )

with DAG(
    "partitioned",
    # The scheduled run of a day is for the day before; a backfill's dates are those of the partitions.
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1),
    start_date=dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc),
    end_date=dt.datetime(2001, 3, 31, tzinfo=dt.timezone.utc),
    catchup=False,
    is_paused_upon_creation=True,
) as partitioned_dag:
    ReadProcessWriteOperator(
        task_id="classify",
        sink_topic="partitioned-out",
        ranges="data_interval",
        partition_duration=dt.timedelta(days=1),
        allowed_lateness=dt.timedelta(0),
        **{
            **COMMON,
            "topics": ["partitioned-in"],
            "group_id": "partitioned",
            "pipeline": "partitioned",
            "op_kwargs": {"dead_letter_topic": "partitioned-dead"},
        },
    )

with DAG("backfilled_cursor", schedule=None) as cursor_dag:
    ReadProcessWriteOperator(task_id="classify", sink_topic="backfill-cursor-out", **COMMON)
