"""The flights of each day, by data intervals: backfills and reruns in any order write each day once."""

from __future__ import annotations

import datetime as dt

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_eos import ReadProcessWriteOperator

with DAG(
    "daily_flights",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc),
    end_date=dt.datetime(2001, 3, 31, tzinfo=dt.timezone.utc),
    catchup=False,
    is_paused_upon_creation=True,
) as dag:
    ReadProcessWriteOperator(
        task_id="classify",
        process="../../../spark_apps/flights.py:process",
        topics=["flights"],
        sink_topic="flights-classified",
        group_id="daily-flights",
        ranges="data_interval",
        allowed_lateness=dt.timedelta(0),
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
