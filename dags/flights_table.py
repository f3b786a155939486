"""Load the flights of each day into an Iceberg table, each record once.

It differs from the Dag ``flights_daily`` in ``sink=`` instead of ``sink_topic=``. Kill the task at any point,
clear it, backfill the days in any order: the table holds each record once. Rows become visible in the table
first, then offsets and run record in Kafka; a retry adopts the rows that an earlier try has committed to the
table.

Needs ``airflow-eos[iceberg]``, the connections ``kafka_default`` and ``iceberg_default``, the topic
``flights`` and the table ``lake.flights``, which ``spark_apps/flights_table.py`` creates.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable

from airflow_eos import IcebergTable, KafkaDataIntervalSensor, ReadProcessWriteOperator

TOPIC = "flights"
LATENESS = timedelta(minutes=5)

with DAG(
    "flights_table",
    description="a day of flights -> table lake.flights, by data intervals",
    # "@daily" alone gives empty intervals in Airflow 3.
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2001, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "iceberg", "exactly-once"],
) as dag:
    over = KafkaDataIntervalSensor(
        task_id="over",
        topics=[TOPIC],
        allowed_lateness=LATENESS,
        deferrable=True,
        poke_interval=60,
        timeout=timedelta(hours=6),
    )
    load = ReadProcessWriteOperator(
        task_id="load",
        process="../spark_apps/flights_table.py:process",
        topics=[TOPIC],
        sink=IcebergTable("lake.flights", catalog="iceberg_default"),
        group_id="flights-table",
        ranges="data_interval",
        allowed_lateness=LATENESS,
        # Dags scheduled on this asset get the run's snapshot from its events.
        outlets=[Asset("lake-flights", uri="iceberg://iceberg_default/lake/flights")],
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    over >> load
