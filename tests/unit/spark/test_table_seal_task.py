"""The answers of a table's seal tasks: each file in its place, whichever task ends first."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pyarrow as pa
import pytest

from airflow_eos.model.output import SealedManifest, SealedTarget
from airflow_eos.model.table import DataFileMade
from airflow_eos.spark.data_plane import _files_of
from airflow_eos.spark.sealed_blocks import InconsistentSeal
from airflow_eos.spark.table_seal_task import TableSealTask
from airflow_eos.wire.client_config import ClientConfig


@dataclass
class Writer:
    """Records what it wrote."""

    flush_bytes: int = 1 << 30
    written: list[pa.Table] = field(default_factory=list)
    name: str = "table"

    def write(self, table):
        self.written.append(table)
        return [DataFileMade(str(table.to_pydict()).encode(), table.num_rows, 1)]


def sealed_by(task, batches, partition):
    rows = pa.Table.from_batches(task.seal(iter(batches), partition, 7)).to_pylist()
    return [row["batch"] for row in rows if row["topic"] is not None and row["batch"] is not None]


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def blocks_of(batches, rows):
    manifest = SealedManifest((SealedTarget("table", 0, rows, len(batches), 1),))
    return SimpleNamespace(
        manifest=manifest, blocks=SimpleNamespace(batches=lambda: batches, free=lambda: None)
    )


def test_files_come_in_the_order_of_their_tasks():
    """Blocks arrive in the order of shuffles; an upsert has to know which row is the last."""
    task = TableSealTask(ClientConfig.of({"bootstrap.servers": "b:1"}), Writer(flush_bytes=1))
    second = sealed_by(task, [batch(v=[3])], 1)
    first = sealed_by(task, [batch(v=[1]), batch(v=[2])], 0)
    files = _files_of(blocks_of([*second, *reversed(first)], 3)).files
    assert [file.data for file in files] == [b"{'v': [1]}", b"{'v': [2]}", b"{'v': [3]}"]
    with pytest.raises(InconsistentSeal, match="the blocks name 2 files"):
        _files_of(blocks_of([*second, first[0]], 3))


def test_a_trial_writes_nothing():
    """The search for a record processes parts of a range many times, and leaves no files."""
    writer = Writer(flush_bytes=1)
    task = TableSealTask(ClientConfig.of({"bootstrap.servers": "b:1"}), writer, writes=False)
    assert sealed_by(task, [batch(v=[1]), batch(v=[2])], 0) == []
    assert writer.written == []


def test_rows_of_different_columns_go_to_different_files():
    """A missing column gets the table's default in its rows."""
    writer = Writer()
    task = TableSealTask(ClientConfig.of({"bootstrap.servers": "b:1"}), writer)
    sealed_by(task, [batch(v=[1]), batch(v=[2]), batch(v=[3], w=[3]), batch(v=[4])], 0)
    assert [table.to_pydict() for table in writer.written] == [
        {"v": [1, 2]},
        {"v": [3], "w": [3]},
        {"v": [4]},
    ]
