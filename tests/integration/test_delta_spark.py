"""Delta Lake tables written by Spark's tasks, read again by DuckDB and by deltalake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.engine import read_process_write
from airflow_eos.exceptions import RecordRefused
from tests.integration.test_table_spark import (
    COLUMNS,
    arrow_columns,
    frame_process,
    nullable,
    records,
    spec_of,
)
from tests.support.lakes import DeltaLake


@pytest.mark.parametrize("process", [frame_process, arrow_columns], ids=["frame", "arrow"])
def test_tasks_write_what_the_process_returns(broker, spark, tmp_path, process):
    """Into the partitions of the table, each record once; the next run reads on."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=["partition"])
    source = broker.topic("src", 2)
    broker.produce(source, records(500))
    spec = spec_of(broker, lake.sink(), source)
    record = read_process_write(spark, spec, process)
    broker.produce(source, records(10))
    again = read_process_write(spark, replace(spec, run_id="next"), process)

    expected = sorted([f"v{i}" for i in range(500)] + [f"v{i}" for i in range(10)])
    assert lake.values("value") == expected
    assert (record.records_read, record.records_written, again.records_written) == (500, 500, 10)
    assert record.details["table"]["rows"] == 500
    rows = lake.scan()
    assert rows["value"].sort().to_pylist() == expected
    assert rows["at"].null_count == 0
    assert {add["partitionValues"]["partition"] for add in lake.added()} == {"0", "1"}


def test_a_missing_required_value_is_named_with_its_record(broker, spark, tmp_path):
    """The table says which columns need one."""
    lake = DeltaLake(tmp_path, COLUMNS)
    source = broker.topic("src", 1)
    broker.produce(source, [{"key": None, "value": b"v%d" % i, "partition": 0} for i in range(6)])
    with pytest.raises(RecordRefused, match=rf"'value', which delta:.* requires.*{source}-0, offset 3"):
        read_process_write(spark, spec_of(broker, lake.sink(), source), nullable)
    assert lake.values("value") == []
