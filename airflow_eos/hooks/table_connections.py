"""Adds the properties of its Airflow connection, which a Dag names by its id, to a table."""

from __future__ import annotations

from dataclasses import replace

from airflow_eos.hooks.delta_storage import storage_options
from airflow_eos.hooks.iceberg_catalog import catalog_properties
from airflow_eos.hooks.postgres_connection import connection_properties
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable


def with_connection(sink: SinkTable | None) -> SinkTable | None:
    """Return a sink with the properties of its connection, which are masked in logs.

    :raises UnknownTable: there is no such connection.
    :raises ConfigurationError: it lacks a property that the table needs.
    """
    match sink:
        case None:
            return None
        case IcebergTable():
            return replace(sink, properties=catalog_properties(sink.catalog))
        case DeltaTable():
            return replace(sink, properties=storage_options(sink))
        case PostgresTable():
            return replace(sink, properties=connection_properties(sink.connection))
        case _:
            raise NotImplementedError(f"{sink}: no connection is known for {sink.KIND!r} tables")
