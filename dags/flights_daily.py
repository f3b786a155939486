"""The flights of each day, exactly once, whatever is rerun, in parallel or in any order.

A run reads the records whose timestamps fall into its data interval. The sensor waits, without a worker slot,
until every partition of the topic has passed the end of the day. Backfills, clears and reruns of a day find
it in the ledger, or write it: no day is written twice or missed. Other Dags wait for a day with
``RunCommittedSensor``, as the Dag ``flights_daily_report`` does.

Needs the connection ``kafka_default`` and the topics ``flights``, ``flights-daily`` and
``flights-daily-dead-letter``.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_eos import KafkaDataIntervalSensor, ReadProcessWriteOperator

LATENESS = timedelta(minutes=5)

with DAG(
    "flights_daily",
    description="a day of flights -> flights-daily, by data intervals",
    # "@daily" alone gives empty intervals in Airflow 3.
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2001, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:
    over = KafkaDataIntervalSensor(
        task_id="over",
        topics=["flights"],
        allowed_lateness=LATENESS,
        deferrable=True,
        poke_interval=60,
        timeout=timedelta(hours=6),
    )
    classify = ReadProcessWriteOperator(
        task_id="classify",
        process="../spark_apps/flights.py:process",
        op_kwargs={"dead_letter_topic": "flights-daily-dead-letter"},
        topics=["flights"],
        sink_topic="flights-daily",
        group_id="flights-daily",
        ranges="data_interval",
        allowed_lateness=LATENESS,
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    over >> classify
