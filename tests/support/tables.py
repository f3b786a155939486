"""Pipelines whose sink is a table, on a real broker without Spark, and readers that share no code with us."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.output import SealedManifest
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.table import DataFileMade
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing.faults.held_catalog import HeldCatalog
from tests.support.local_runs import LocalDataPlane, Pipeline
from tests.support.wire_requests import fetch_range

SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False), pa.field("offset", pa.int64())])


def new_catalog(folder: Path) -> dict[str, str]:
    """Return the properties of a new catalog in SQLite, which holds the empty namespace ``db``."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=30",
        "warehouse": f"file://{folder}",
    }
    catalog = load_catalog("c", **properties)
    catalog.create_namespace("db")
    catalog.close()
    return properties


@dataclass(frozen=True)
class LocalFiles:
    manifest: SealedManifest
    files: Sequence[DataFileMade]


class LocalTablePlane(LocalDataPlane):
    """Copies records into a table's columns ``value`` and ``offset``."""

    def seal(self, plan: Any, writer: Any = None) -> LocalFiles:
        assert writer is not None
        values, offsets = [], []
        failing: list[FailingRecord] = []
        counts: dict[TopicPartition, int] = {}
        with BrokerConnections(ClientConfig.of(self._spec.kafka)) as connections:
            for r in plan.ranges:
                counts.setdefault(r.topic_partition, 0)
                for batch in fetch_range(connections, r.topic, r.partition, r.start, r.end):
                    for offset, value in zip(batch.offset, batch.value.to_pylist(), strict=True):
                        try:
                            values += self.rows([value.decode()])
                        except ValueError as error:
                            failing.append(FailingRecord(r.topic, r.partition, int(offset), str(error)))
                        else:
                            offsets.append(int(offset))
                    counts[r.topic_partition] += len(batch)
        table = writer.columns(pa.table({"value": values, "offset": pa.array(offsets, pa.int64())}))
        manifest = SealedManifest((), counts, dead_letters=len(failing), letters_due=tuple(failing))
        return LocalFiles(manifest, [] if table is None else writer.write(table))

    def rows(self, values: list[str]) -> list[str]:
        """Return the column ``value`` of some records; tests may override it.

        :raises ValueError: they are dead letters.
        """
        return values

    def release(self, sealed: LocalFiles) -> None:
        """Do nothing: the files are kept."""


class TablePipeline(Pipeline):
    """A pipeline that appends to a table of its own.

    :param folder: folder for a new catalog.
    :param properties: properties of an existing catalog for the runs.
    :param look: properties of the catalog for the test's own reads; None: the same.
    """

    def __init__(
        self,
        kafka: Any,
        folder: Path | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        look: Mapping[str, str] | None = None,
        partitions: int = 2,
        source_config: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        super().__init__(kafka, partitions=partitions, source_config=source_config)
        if properties is None:
            assert folder is not None
            properties = new_catalog(folder)
        self.properties = dict(properties)
        self.catalog = load_catalog("c", **(look or properties))
        weakref.finalize(self, self.catalog.close)  # Python 3.13 warns of unclosed SQLite connections
        self.catalog.create_namespace_if_not_exists("db")
        self.name = "db.t" if folder is not None else f"db.{self.source.replace('-', '_')}"
        self.catalog.create_table(self.name, schema=SCHEMA)
        sink = IcebergTable(self.name, catalog="c", properties=self.properties)
        self.spec = replace(self.spec, **{"sink_topic": None, "sink": sink, **changes})

    def run(self, run_id: str = "r1", **changes: Any) -> Any:
        return super().run(run_id, **{"data": LocalTablePlane, **changes})

    @property
    def table(self) -> Any:
        return self.catalog.load_table(self.name)

    def make_again(self) -> None:
        """Drop the table, and create one with the same name."""
        self.catalog.drop_table(self.name)
        self.catalog.create_table(self.name, schema=SCHEMA)

    def raise_format(self) -> None:
        """Set a format version that runs do not write; pyiceberg reads it but does not upgrade to it."""
        location = Path(self.table.metadata_location.removeprefix("file://"))
        metadata = json.loads(location.read_text())
        location.write_text(json.dumps({**metadata, "format-version": 3, "next-row-id": 0}))

    def renamed(self, sink: IcebergTable) -> IcebergTable:
        """Return the table of a sink through another connection."""
        return replace(sink, catalog="other", properties={**self.properties, "catalog_name": "c"})

    def values(self) -> list[str]:
        """Return the rows that DuckDB reads from the files of the table's current snapshot."""
        return values_of(self.table)


def values_of(table: Any) -> list[str]:
    """Return the column ``value``, sorted, read by DuckDB."""
    return [value for (value,) in rows_of(table, "select value from rows order by value")]


def rows_of(table: Any, query: str) -> list[tuple[Any, ...]]:
    """Return DuckDB's answer to a query of the view ``rows`` over the files of a table's snapshot."""
    files = [file["file_path"].removeprefix("file://") for file in table.inspect.files().to_pylist()]
    with duckdb.connect() as connection:
        source = connection.from_arrow(table.schema().as_arrow().empty_table())
        if files:
            source = connection.read_parquet(files)
        source.create_view("rows")
        return connection.execute(query).fetchall()


def held_catalog(properties: Mapping[str, str], table: Any) -> HeldCatalog:
    """Return a context manager that holds the commits to a table of an SQLite catalog."""
    database = properties["uri"].removeprefix("sqlite:///").partition("?")[0]
    return HeldCatalog(Path(database), Path(table.metadata_location.removeprefix("file://")).parent)
