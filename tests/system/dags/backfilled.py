"""The flights of each day for backfills, with a cursor over the same topic in the same pipeline."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_eos import ReadProcessWriteOperator
from airflow_eos.compat import AIRFLOW_VERSION

DAYS: dict[str, Any] = {
    "start_date": dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc),
    "end_date": dt.datetime(2001, 3, 31, tzinfo=dt.timezone.utc),
    "catchup": False,
    "is_paused_upon_creation": True,
}


def common(name: str) -> dict[str, Any]:
    """Return the common parameters of a pipeline's tasks; its topics begin with its name."""
    return {
        "process": "../spark_apps/flights.py:process",
        "topics": [f"{name}-in"],
        "group_id": name,
        "pipeline": name,
        "conn_id": "spark_shared",
        "op_kwargs": {"dead_letter_topic": f"{name}-dead"},
        "retries": 2,
        "retry_delay": dt.timedelta(seconds=2),
    }


# The last two are for the Airflows on PostgreSQL.
for name in ("four", "ninety", "shared", "restored"):
    with DAG(name, schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), **DAYS):
        ReadProcessWriteOperator(
            task_id="classify",
            sink_topic=f"{name}-out",
            ranges="data_interval",
            allowed_lateness=dt.timedelta(0),
            **common(name),
        )

    with DAG(f"{name}_cursor", schedule=None):
        ReadProcessWriteOperator(task_id="classify", sink_topic=f"{name}-cursor-out", **common(name))

if AIRFLOW_VERSION >= (3, 3):  # in earlier versions tasks do not get their partition's date
    from airflow.timetables.trigger import CronPartitionTimetable

    with DAG(
        "partitioned",
        # The scheduled run of a day is for the day before; a backfill's dates are those of the partitions.
        schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1),
        **DAYS,
    ):
        ReadProcessWriteOperator(
            task_id="classify",
            sink_topic="partitioned-out",
            ranges="data_interval",
            partition_duration=dt.timedelta(days=1),
            allowed_lateness=dt.timedelta(0),
            **common("partitioned"),
        )
