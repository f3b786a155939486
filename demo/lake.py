"""The demo's table: a catalog in SQLite, its rows as DuckDB reads them, and how to query it afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.tally import Tally, must_become
from spark_apps.flights_table import TABLE, create_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from airflow_eos_testing import Record

CATALOG = "iceberg_default"
_QUERY = "select origin, count(*) as flights, avg(delay) as delay from flights group by all order by all"


class Lake:
    """A new table in a new catalog; removes the folder's content of an earlier demo.

    :param folder: folder of catalog and files; it is kept at the end.
    """

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog import load_catalog

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.database = folder / "catalog.db"
        # A commit waits up to two minutes for others' commits.
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{self.database}?timeout=120",
            "warehouse": f"file://{folder}",
        }
        # A SQL catalog's tables belong to the catalog's name, which is the connection's id.
        self._catalog = load_catalog(CATALOG, **self.properties)
        self.metadata = Path(create_table(self._catalog).metadata_location.removeprefix("file://")).parent

    @property
    def table(self) -> Table:
        """The table, freshly loaded."""
        return self._catalog.load_table(TABLE)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return DuckDB's answer to a query of the current snapshot's files, as the view ``flights``."""
        import duckdb

        table = self.table
        files = [file["file_path"].removeprefix("file://") for file in table.inspect.files().to_pylist()]
        with duckdb.connect() as connection:
            source = connection.from_arrow(table.schema().as_arrow().empty_table())
            if files:
                source = connection.read_parquet(files)
            source.create_view("flights")
            return connection.execute(query).fetchall()

    def compare(self, inputs: Sequence[Record]) -> Tally:
        """Compare the rows with their source records, by partition and offset."""
        expected = {(record.partition, record.offset): _row_of(record) for record in inputs}
        rows = self.rows(
            "select source_partition, source_offset, origin, destination, delay, distance, malformed "
            "from flights"
        )
        places = [(partition, offset) for partition, offset, *_ in rows]
        wrong = [
            f"{place}: {row[2:]} should be {expected.get(place)}"
            for place, row in zip(places, rows, strict=True)
            if row[2:] != expected.get(place)
        ]
        return Tally(
            records_in=len(expected),
            records_out=len(rows),
            lost=len(expected.keys() - set(places)),
            duplicated=len(places) - len(set(places)),
            wrong=tuple(wrong),
        )

    @property
    def how_to_query(self) -> str:
        """A program that queries the table, whose folder is kept."""
        return "\n".join(
            (
                "from pyiceberg.catalog import load_catalog",
                f"catalog = load_catalog('{CATALOG}', **{self.properties})",
                f"flights = catalog.load_table('{TABLE}').scan().to_duckdb('flights')",
                f"flights.sql('{_QUERY}').show()",
            )
        )


def _row_of(record: Record) -> tuple[Any, ...]:
    """Return the expected row of one record, computed by the same plain Python as for topics."""
    output = must_become(record)
    if not isinstance(output.value, dict):
        return (None, None, None, None, output.value)
    return (*(output.value.get(name) for name in ("origin", "destination", "delay", "distance")), None)
