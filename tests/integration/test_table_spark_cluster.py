"""Tables that executors of a cluster write: if one dies during its tasks, it costs only time."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_eos import arrow_process
from airflow_eos.engine import Run
from airflow_eos.run.states import State
from airflow_eos.sinks.postgres_sink import PostgresSink
from tests.integration.test_spark_cluster import cluster, executors, run_spec, spark
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.patience import wait_until
from tests.support.postgres_tables import Database

__all__ = ["cluster", "spark"]

pytestmark = pytest.mark.chaos

COLUMNS = pa.schema([("value", pa.string())])
FLUSH_BYTES = 4000
"""Most of a slice: its rows are written together, before the task's next slice is processed."""
PARTITIONS, RECORDS = 16, 500
"""More slices than the tasks of two executors: each task has two."""


class IcebergFiles:
    """An Iceberg table, and the data files in its folder."""

    def __init__(self, folder, postgres_server, monkeypatch):
        del postgres_server, monkeypatch
        self.folder = folder
        self.lake = IcebergLake(folder, COLUMNS)
        with self.lake.table.transaction() as transaction:
            transaction.set_properties({"write.target-file-size-bytes": str(FLUSH_BYTES)})

    def rows_written(self):
        """How many rows tasks have written, published or not."""
        return sum(pq.read_metadata(path).num_rows for path in self.folder.rglob("*.parquet"))

    def sink(self):
        return self.lake.sink()

    def values(self):
        return self.lake.values("value")


class DeltaFiles(IcebergFiles):
    """A Delta Lake table, and the data files in its folder."""

    def __init__(self, folder, postgres_server, monkeypatch):
        del postgres_server, monkeypatch
        self.folder = folder
        self.lake = DeltaLake(folder, COLUMNS, configuration={"delta.targetFileSize": str(FLUSH_BYTES)})


class StagedRows:
    """A PostgreSQL table, and the rows that are staged for it."""

    def __init__(self, folder, postgres_server, monkeypatch):
        del folder
        self.database = Database(postgres_server)
        self.database.create("value text")
        writer = PostgresSink.writer
        monkeypatch.setattr(
            PostgresSink, "writer", lambda *given: replace(writer(*given), flush_bytes=FLUSH_BYTES)
        )

    def rows_written(self):
        (table,) = self.database.staging()
        return int(self.database.sql(f"SELECT count(*) FROM airflow_eos.{table}")[0][0])

    def sink(self):
        return self.database.sink()

    def values(self):
        return self.database.values("value")


def waits_at_its_second_slice(begun, go):
    """Return a process that records its executor, and waits before the second slice of a task."""

    @arrow_process
    def process(batch):
        import time as clock

        from pyspark import TaskContext

        jvm = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        attempt = TaskContext.get().taskAttemptId()
        first = Path(begun) / f"first-{attempt}"
        if first.exists():
            (Path(begun) / f"waits-{jvm}").touch()
            while not Path(go).exists():
                clock.sleep(0.05)
        first.touch()
        return pa.table({"value": pc.cast(batch["value"], pa.string())})

    return process


# With speculation a waiting task gets a copy, which writes its rows, too.
@pytest.mark.parametrize("spark", [{"spark.speculation": "false"}], ids=["no speculation"], indirect=True)
@pytest.mark.parametrize("kind", [IcebergFiles, DeltaFiles, StagedRows], ids=["iceberg", "delta", "postgres"])
def test_an_executor_lost_while_its_tasks_write_a_table_leaves_each_row_once(
    spark, broker, postgres_server, tmp_path, monkeypatch, kind
):
    """Spark runs its tasks again; what the dead ones had written is in no snapshot."""
    table = kind(tmp_path, postgres_server, monkeypatch)
    begun, go = tmp_path / "begun", tmp_path / "go"
    begun.mkdir()
    source = broker.numbered("src", PARTITIONS, RECORDS)
    spec = replace(run_spec(broker, source, f"table-{source}"), sink_topic=None, sink=table.sink())
    executors(spark)
    written, records = [], []

    def count(state):
        if state is State.SEALED:
            written.append(table.rows_written())

    run = Run(spark, spec, waits_at_its_second_slice(str(begun), str(go)), on_state=count)
    thread = threading.Thread(target=lambda: records.append(run.execute()))
    thread.start()
    both = wait_until(lambda: len(list(begun.glob("waits-*"))) == 2 and list(begun.glob("waits-*")), 120)
    assert table.rows_written() == 2 * RECORDS
    os.kill(int(both[0].name.removeprefix("waits-")), signal.SIGKILL)
    go.touch()
    thread.join(180)
    assert not thread.is_alive()

    total = PARTITIONS * RECORDS
    assert table.values() == sorted(f"{p}:{i}" for p in range(PARTITIONS) for i in range(RECORDS))
    assert (records[0].records_read, records[0].details["table"]["rows"]) == (total, total)
    # Its Python worker may survive for a moment, and write another slice.
    assert written[0] >= total + RECORDS, "what the dead task had written is there, beside what is published"
