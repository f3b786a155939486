"""Wait until the ledger has a day of another Dag, and report it.

``RunCommittedSensor`` asks the ledger, not Airflow: it sees a commit made by a task that was killed right
after it, by another deployment, or before the other Dag was cleared.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_eos import RunCommittedSensor

with DAG(
    "flights_daily_report",
    description="counts of a day of flights, once it is committed",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2001, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:
    committed = RunCommittedSensor(
        task_id="committed",
        pipeline="flights_daily.classify",
        ranges="data_interval",
        topics=["flights"],
        deferrable=True,
        poke_interval=30,
        timeout=timedelta(hours=12),
    )

    @task
    def report(record: dict[str, Any]) -> str:
        """Return a summary of the ledger's record."""
        return f"{record['records_read']} flights read, {record['records_written']} records written"

    report(committed.output)
