"""A task that writes a table buffers the rows of one file, however much it reads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos.spark.table_seal_task import TableSealTask
from airflow_eos.wire.client_config import ClientConfig

MEGABYTES = 1 << 20
ROWS = 4_000


def most_held(iceberg, file_size: int, batches: int) -> int:
    """Return the peak of Arrow's memory in bytes while a task writes this many megabytes."""
    with iceberg.table.transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": str(file_size)})
    sink = IcebergSink(IcebergTable("db.t", catalog="c", properties=iceberg.properties), "eos.p")
    task = TableSealTask(ClientConfig.of({"bootstrap.servers": "none:1"}), sink.writer(sink.load(), "label"))
    sink.close()
    held, before = [0], pa.total_allocated_bytes()

    def rows():
        for number in range(batches):
            held.append(pa.total_allocated_bytes() - before)
            text = [f"{number}-{row}".ljust(250) for row in range(ROWS)]
            yield pa.record_batch({"id": pa.array(range(ROWS), pa.int64()), "name": text})

    files = [row for sealed in task.seal(rows(), 0, 0) for row in sealed.to_pylist()]
    assert len(files) > 2
    return max(held)


@pytest.mark.parametrize("size", [4 * MEGABYTES, 16 * MEGABYTES])
def test_a_task_holds_the_rows_of_one_file(iceberg, size):
    """Twice as many rows make more files, not more memory."""
    some, more = (
        most_held(iceberg, size, batches) for batches in (3 * size // MEGABYTES, 6 * size // MEGABYTES)
    )
    assert size / 2 < some < 1.5 * size
    assert more < 1.5 * size
