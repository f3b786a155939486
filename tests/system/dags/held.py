"""Copies a topic by a function in the Dag file; its executors wait while the file ``held.hold`` exists."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset

from airflow_eos import ReadProcessWriteOperator


def wait_here(gate: Path) -> None:
    while gate.exists():
        time.sleep(0.1)


def process(df: Any) -> Any:
    gate = Path(os.environ["EOS_TEST_FOLDER"]) / "held.hold"

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        wait_here(gate)
        yield from batches

    return df.select("key", "value").mapInArrow(pass_on, "key binary, value binary")


with DAG(
    "held",
    schedule=None,
    default_args={"retries": 2, "retry_delay": dt.timedelta(seconds=1)},
    max_active_runs=1,
) as dag:
    ReadProcessWriteOperator(
        task_id="copy",
        process=process,
        topics=["held-in"],
        sink_topic="held-out",
        group_id="held",
        outlets=[Asset("held-out", uri="kafka://broker:9092/held-out")],
        config_kwargs={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )
