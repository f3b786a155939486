"""Delta Lake tables written by Spark's tasks, read again by DuckDB and by deltalake."""

from __future__ import annotations

import pytest

from airflow_eos.engine import read_process_write
from tests.integration.test_table_spark import COLUMNS
from tests.support.lakes import DeltaLake
from tests.support.table_processes import arrow_columns, frame_process, records, spec_of


@pytest.mark.parametrize("process", [frame_process, arrow_columns], ids=["frame", "arrow"])
def test_tasks_write_what_the_process_returns(broker, spark, tmp_path, process):
    """Into the table's partitions, with its columns and types, each record once."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=["partition"])
    source = broker.topic("src", 2)
    broker.produce(source, records(500))

    record = read_process_write(spark, spec_of(broker, lake.sink(), source), process)

    assert (record.records_read, record.records_written) == (500, 500)
    assert record.details["table"]["rows"] == 500
    assert lake.values("value") == sorted(f"v{i}" for i in range(500))
    assert {add["partitionValues"]["partition"] for add in lake.added()} == {"0", "1"}
    rows = lake.scan()
    assert sorted(rows["value"].to_pylist()) == lake.values("value")
    assert rows["at"].null_count == 0
