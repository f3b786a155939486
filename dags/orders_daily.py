"""The large orders of each day, exactly once: the Dag of the getting-started page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_eos import ReadProcessWriteOperator

LARGE = 100.0


def process(orders: Any) -> Any:
    """Keep large orders: a DataFrame in, a DataFrame out."""
    from pyspark.sql.functions import col, from_json

    order = from_json(col("value").cast("string"), "item string, price double")
    return orders.where(order["price"] >= LARGE).select("key", "value")


with DAG(
    "orders_daily",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
) as dag:
    ReadProcessWriteOperator(
        task_id="large",
        process=process,
        topics=["orders"],
        sink_topic="orders-large",
        group_id="orders-large",
        ranges="data_interval",
    )
