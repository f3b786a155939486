"""Load the orders of each day into a table, exactly once: the Dag of the tutorial on tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_eos import IcebergTable, ReadProcessWriteOperator


def process(orders: Any) -> Any:
    """Return the columns of the table, by their names."""
    from pyspark.sql.functions import col, from_json

    order = from_json(col("value").cast("string"), "item string, price double")
    return orders.select(
        order["item"].alias("item"),
        order["price"].alias("price"),
        col("timestamp").alias("ordered_at"),
        col("partition").alias("source_partition"),
        col("offset").alias("source_offset"),
    )


with DAG(
    "orders_table",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
) as dag:
    ReadProcessWriteOperator(
        task_id="load",
        process=process,
        topics=["orders"],
        sink=IcebergTable("shop.orders", catalog="iceberg_default"),
        group_id="orders-table",
        ranges="data_interval",
    )
