"""Load flights into an Iceberg table: one row per record, malformed ones included.

Input: JSON flights as in ``flights.py``. ``delay`` is in minutes, negative when early; a flight without one
was cancelled.

A run does not create its table. This command does, in a catalog in SQLite::

    python spark_apps/flights_table.py sqlite:////srv/lake/catalog.db file:///srv/lake
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

TABLE = "lake.flights"

_SCHEMA = "date string, delay int, distance int, origin string, destination string, corrupt string"


def process(df: DataFrame) -> DataFrame:
    """Return one row of the table per input row, with the table's column names.

    :param df: rows of the source topic, with the columns of Spark's Kafka source.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = df.withColumn("parsed", F.from_json(F.col("value").cast("string"), _SCHEMA, options))
    required = [F.col(f"parsed.{name}").isNotNull() for name in ("date", "origin", "destination")]
    is_flight = F.col("parsed.corrupt").isNull() & required[0] & required[1] & required[2]
    rows = parsed.withColumn("flight", F.when(is_flight, F.col("parsed")))
    return rows.select(
        F.col("timestamp").alias("departure"),
        "flight.origin",
        "flight.destination",
        "flight.delay",
        "flight.distance",
        F.when(F.col("flight").isNull(), F.col("value")).alias("malformed"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )


def create_table(catalog: Catalog) -> Table:
    """Create the table and its namespace, if they do not exist."""
    import pyarrow as pa

    columns = pa.schema(
        [
            pa.field("departure", pa.timestamp("us", "UTC")),
            pa.field("origin", pa.string()),
            pa.field("destination", pa.string()),
            pa.field("delay", pa.int32()),
            pa.field("distance", pa.int32()),
            # The value of a record that is not a flight.
            pa.field("malformed", pa.binary()),
            # The row's source record. These two columns show that no record is in the table twice.
            pa.field("source_partition", pa.int32(), nullable=False),
            pa.field("source_offset", pa.int64(), nullable=False),
        ]
    )
    catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
    return catalog.create_table_if_not_exists(TABLE, schema=columns)


def main() -> None:
    """Create the table in the catalog that the command line names."""
    from pyiceberg.catalog import load_catalog

    parser = argparse.ArgumentParser(description=f"Create the table {TABLE} in a catalog in a database.")
    parser.add_argument("uri", help="database of the catalog, as SQLAlchemy has it")
    parser.add_argument("warehouse", help="where data files go")
    parser.add_argument("--catalog", default="iceberg_default", help="id of the connection of the Dag")
    given = parser.parse_args()
    # A SQL catalog's tables belong to the catalog's name, which is the connection's id.
    catalog = load_catalog(given.catalog, type="sql", uri=given.uri, warehouse=given.warehouse)
    print(create_table(catalog).schema())  # noqa: T201


if __name__ == "__main__":
    main()
