"""Opens the table that a run writes to; only this module maps kinds of tables to their implementations."""

from __future__ import annotations

from contextlib import closing

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.table_ports import TableSink, TableVersion


def open_table(sink: SinkTable, property_name: str) -> TableSink:
    """Return the implementation for a kind of table, whose libraries are imported only here.

    :param property_name: the name under which the table keeps the published runs of a pipeline.
    :raises ConfigurationError: the extra of that kind of table is not installed.
    """
    try:
        match sink:
            case IcebergTable():
                from airflow_eos.sinks.iceberg import IcebergSink

                return IcebergSink(sink, property_name)
            case DeltaTable():
                from airflow_eos.sinks.delta import DeltaSink

                return DeltaSink(sink, property_name)
            case PostgresTable():
                from airflow_eos.sinks.postgres_sink import PostgresSink

                return PostgresSink(sink, property_name)
    except ImportError as error:
        raise ConfigurationError(
            f"{sink} needs a package that is not installed ({error}): pip install 'airflow-eos[{sink.KIND}]'"
        ) from error
    raise NotImplementedError(f"{sink}: no module of airflow_eos.sinks writes {sink.KIND!r} tables")


def table_named(name: str) -> IcebergTable | DeltaTable | PostgresTable | None:
    """Return the table with a name as in run records and INTENTs; None for an unknown kind of table."""
    return IcebergTable.named(name) or DeltaTable.named(name) or PostgresTable.named(name)


def load_table(sink: SinkTable) -> TableVersion:
    """Return the current version of a table and close the connections to its catalog; raises UnknownTable."""
    with closing(open_table(sink, property_name="")) as opened:
        return opened.load(to_write=False)
