"""Adds to a table the properties of its Airflow connection, which a Dag names by its id.

The documentation of each kind of table lists the connection's fields and extras.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks.iceberg_catalog import catalog_properties
from airflow_eos.hooks.masked_connection import masked_properties
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Connection

_STORAGE = {
    "S3": {
        "host": "aws_endpoint_url",
        "login": "aws_access_key_id",
        "password": "aws_secret_access_key",
    },
    "Azure": {
        "host": "azure_endpoint",
        "login": "azure_storage_account_name",
        "password": "azure_storage_account_key",
    },
}
_OR_OWN_CREDENTIALS = (
    "add one, or give connection=None (a command: --storage none) where driver and executors have "
    "credentials of their own"
)
_OF_THE_PROVIDER = frozenset({"cursor", "enable_log_db_messages", "sqlalchemy_query", "sqlalchemy_scheme"})
"""Extras that Airflow's hook for PostgreSQL uses itself."""
_TOKENS = frozenset({"iam", "azure_conn_id"})


def with_connection(sink: SinkTable | None) -> SinkTable | None:
    """Return a sink with the properties of its connection, which are masked in logs.

    :raises UnknownTable: there is no such connection.
    :raises ConfigurationError: it lacks a property that the table needs, has a field that the store does not
        use, or requires an unsupported kind of login.
    """
    read: Callable[[Connection], dict[str, str]]
    match sink:
        case None:
            return None
        case IcebergTable():
            return replace(sink, properties=catalog_properties(sink.catalog))
        case DeltaTable(connection=None):
            return replace(sink, properties={})
        case DeltaTable(connection=str(conn_id)):
            read = partial(_storage_options, sink)
            advice = _OR_OWN_CREDENTIALS
        case PostgresTable(connection=conn_id):
            read, advice = _libpq_parameters, "add one of type postgres"
        case _:
            raise NotImplementedError(f"{sink}: no connection is known for {sink.KIND!r} tables")
    named_by = f"{type(sink).__name__}(connection={conn_id!r})"
    return replace(sink, properties=masked_properties(conn_id, read, named_by=named_by, advice=advice))


def _storage_options(sink: DeltaTable, connection: Connection) -> dict[str, str]:
    names = _STORAGE.get(sink.store or "", {})
    options: dict[str, str] = {}
    for field in ("host", "login", "password"):
        value = getattr(connection, field)
        if not value:
            continue
        if field not in names:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has a {field}, which says nothing about {sink.uri!r}: "
                "give storage options among its extras"
            )
        options[names[field]] = value
    options.update({name: str(value) for name, value in connection.extra_dejson.items()})
    return options


def _libpq_parameters(connection: Connection) -> dict[str, str]:
    extra = connection.extra_dejson
    if tokens := sorted(name for name in _TOKENS if extra.get(name)):
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has the extra {tokens[0]!r}: logins by short-lived tokens of "
            "a cloud are not supported; give it a role with a password or a client certificate"
        )
    fields = {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": connection.password,
        **{name: value for name, value in extra.items() if name not in _OF_THE_PROVIDER | _TOKENS},
    }
    return {name: str(value) for name, value in fields.items() if value not in (None, "")}
