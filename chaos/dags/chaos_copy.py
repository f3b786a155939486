"""The campaign's pipeline as an Airflow task; executors wait while the file ``hold`` exists."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_eos import LedgerSettings, ReadProcessWriteOperator

GATE = Path(os.environ.get("EOS_CHAOS_FOLDER", "/nonexistent")) / "hold"


def process(df: Any) -> Any:
    """Copy key and value, as every other run of the campaign does."""
    gate = GATE

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        while gate.exists():
            time.sleep(0.05)
        yield from batches

    return df.select("key", "value").mapInArrow(pass_on, "key binary, value binary")


with DAG(
    "chaos_copy",
    schedule=None,
    default_args={"retries": 3, "retry_delay": dt.timedelta(seconds=1)},
    max_active_runs=1,
) as dag:
    ReadProcessWriteOperator(
        task_id="copy",
        process=process,
        topics=["chaos-in"],
        sink_topic="chaos-out",
        group_id="chaos",
        pipeline="chaos",
        prefix="chaos",
        ledger=LedgerSettings("chaos-ledger", partitions=3),
        config_kwargs={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.master": "local[2]",
        },
    )
