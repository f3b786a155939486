"""Keep large orders, with one task per source partition: a slow partition does not delay others.

Each task has a cursor of its own in the group. The decorated function needs no parameter for the partition.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, task

with DAG(
    "orders_by_partition",
    description="orders -> orders-large, a task per partition",
    schedule=CronTriggerTimetable("@hourly", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
    tags=["kafka", "exactly-once"],
) as dag:

    @task.kafka_eos(
        topics=["orders"],
        sink_topic="orders-large",
        group_id="orders-by-partition",
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    def large(df: Any, threshold: float = 100.0) -> Any:
        """Return the orders of at least this price."""
        from pyspark.sql.functions import col, from_json

        order = from_json(col("value").cast("string"), "item string, price double")
        return df.where(order["price"] >= threshold).select("key", "value")

    large.partial(threshold=150.0).expand(source_partition=[0, 1])
