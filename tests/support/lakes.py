"""File-based tables of each kind that a run can append to: created, changed and read without this package."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.sink_table import SinkTable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


class IcebergLake:
    """An SQLite catalog of pyiceberg, without a server, with an empty table ``db.t``."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        self._schema = schema
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }
        self._catalog = load_catalog("c", **self.properties)
        weakref.finalize(self, self._catalog.close)
        self._catalog.create_namespace("db")
        self.create()

    def create(self) -> None:
        self._catalog.create_table("db.t", schema=self._schema)

    def drop(self) -> None:
        self._catalog.drop_table("db.t")

    def rename(self, name: str) -> None:
        self._catalog.rename_table("db.t", name)

    def close(self) -> None:
        self._catalog.close()

    def sink(self, branch: str | None = None) -> SinkTable:
        return IcebergTable("db.t", catalog="c", branch=branch, properties=self.properties)

    @property
    def table(self) -> Any:
        return self._catalog.load_table("db.t")

    def append(self, rows: dict[str, Any]) -> None:
        """Append as a foreign writer."""
        self.table.append(pa.table(rows, schema=self._schema))

    def compact(self) -> None:
        """Rewrite all rows into one new file."""
        table = self.table
        table.overwrite(table.scan().to_arrow())

    def values(self, column: str, branch: str | None = None) -> list[Any]:
        """Return a column's values, sorted."""
        scan = self.table.scan() if branch is None else self.table.scan().use_ref(branch)
        return sorted(scan.to_arrow().column(column).to_pylist())

    def commits(self) -> int:
        """Return the number of the table's commits."""
        return len(self.table.snapshots())


class DeltaLake:
    """An empty table in a folder."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA, **options: Any) -> None:
        self._schema, self._options = schema, options
        self.folder = folder / "t"
        self.create()

    @classmethod
    def at(cls, folder: Path) -> DeltaLake:
        """Return the table that another process has created in a folder."""
        lake = cls.__new__(cls)
        lake.folder, lake._schema, lake._options = folder, SCHEMA, {}
        return lake

    def create(self) -> None:
        deltalake.DeltaTable.create(
            str(self.folder), deltalake.Schema.from_arrow(self._schema), **self._options
        )

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Do nothing: the files are kept."""

    def sink(self) -> SinkTable:
        return DeltaTable(str(self.folder))

    @property
    def table(self) -> Any:
        return deltalake.DeltaTable(str(self.folder))

    def append(self, rows: dict[str, Any]) -> None:
        """Append as a foreign writer."""
        deltalake.write_deltalake(str(self.folder), pa.table(rows, schema=self._schema), mode="append")

    def compact(self) -> None:
        """Rewrite all rows into one new file."""
        self.table.optimize.compact()

    def values(self, column: str) -> list[Any]:
        """Return a column's sorted values: replays the log here, and reads the files with DuckDB."""
        files = [str(self.folder / add["path"]) for add in self.added()]
        if not files:
            return []
        query = f'select "{column}" from read_parquet(?) order by 1'
        return [value for (value,) in duckdb.connect().execute(query, [files]).fetchall()]

    def commits(self) -> int:
        """Return the number of the table's commits."""
        return int(self.table.version()) + 1

    def scan(self) -> pa.Table:
        """Return the rows as deltalake reads them, even after a log clean-up."""
        return pa.table(self.table.scan().read_all())

    def added(self) -> list[dict[str, Any]]:
        """Return the log's ``add`` actions that no later action removed."""
        live: dict[str, dict[str, Any]] = {}
        for version in sorted((self.folder / "_delta_log").glob("*.json")):
            for action in map(json.loads, version.read_text().splitlines()):
                if "add" in action:
                    assert action["add"]["path"] not in live, "a file is in the table twice"
                    live[action["add"]["path"]] = action["add"]
                elif "remove" in action:
                    del live[action["remove"]["path"]]
        return list(live.values())
