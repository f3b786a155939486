"""Process functions of tests with a table as the sink, the same for each kind of table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos import arrow_process
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import RunSpec
from tests.support.spark_sessions import Broker


def frame_process(df: Any) -> Any:
    """Return value, partition and time of each record."""
    return df.selectExpr("cast(value as string) value", "partition", "timestamp at")


@arrow_process
def arrow_columns(batch: pa.RecordBatch) -> pa.Table:
    """Return the same columns, in another order."""
    return pa.table(
        {
            "at": batch["timestamp"],
            "partition": batch["partition"],
            "value": pc.cast(batch["value"], pa.string()),
        }
    )


def spec_of(broker: Broker, sink: SinkTable, source: str) -> RunSpec:
    """Return the spec of a run with a cursor of its own."""
    return replace(broker.spec(source, None), sink=sink, pipeline=f"of-{source}", group_id=f"group-{source}")


def records(count: int) -> list[dict[str, Any]]:
    """Return records with the values v0, v1, ... for two partitions in turn."""
    return [{"key": None, "value": b"v%d" % i, "partition": i % 2} for i in range(count)]
