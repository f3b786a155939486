"""The parameters of a PostgreSQL connection, from an Airflow connection of type ``postgres``.

========================  ==============================================================================
connection                parameter, as libpq has it
========================  ==============================================================================
host, port                ``host``, ``port``
schema                    ``dbname``
login, password           ``user``, ``password``
extra                     as it is: ``sslmode``, ``sslrootcert``, ``target_session_attrs``, ``options``
========================  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks.masked_connection import masked_properties

if TYPE_CHECKING:
    from airflow.sdk import Connection

_OF_THE_PROVIDER = frozenset({"cursor", "enable_log_db_messages", "sqlalchemy_query", "sqlalchemy_scheme"})
"""Extras that Airflow's hook for PostgreSQL takes for itself."""
_TOKENS = frozenset({"iam", "azure_conn_id"})


def connection_properties(conn_id: str) -> dict[str, str]:
    """Return libpq's parameters from a connection; see the module. Secrets are masked in logs.

    :raises UnknownTable: there is no such connection.
    :raises ConfigurationError: it wants a login that is not supported.
    """
    named_by = f"PostgresTable(connection={conn_id!r})"
    return masked_properties(conn_id, _properties, named_by=named_by, advice="add one of type postgres")


def _properties(connection: Connection) -> dict[str, str]:
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
