"""Connects driver and executors to PostgreSQL, and tells final errors from transient ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    EosError,
    OutcomeUnknown,
    TableRefused,
)
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import secrets_of
from airflow_eos.redaction import redacted
from airflow_eos.sinks.refused_login import is_refused_login

if TYPE_CHECKING:
    import psycopg

SCHEMA = "airflow_eos"
"""The schema of published runs and of staging tables."""

_DEFAULTS: dict[str, Any] = {
    "application_name": "airflow-eos",
    "connect_timeout": 10,
    # A dead host is detected after a minute, not after the system's default of two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_INSUFFICIENT_PRIVILEGE = "42501"
_FULL = ("530", "531", "532", "533")  # not 53400, such as temp_file_limit: another try would need as much
_PASSING = ("08", "250", "25P03", "40", *_FULL, "55006", "55P03", "57P", "58", "XX")
"""SQLSTATE prefixes of transient errors, independent of the rows: connection, transaction, lock, server."""
_INTERNAL = "XX000"
"""Of the server, after a concurrent change; also of extensions that give no code, such as PostGIS."""
_DUPLICATE = "23505"
"""Also of an upsert beside REINDEX CONCURRENTLY, if another writer inserts the same key at that moment."""
TIMED_OUT = ("57014", "25P04")
"""A statement or a transaction was cancelled after a time-out: another try may take as long."""
_SETTING = re.compile(r"(?:-c\s*|--)([\w.-]+)")
"""A setting in libpq's ``options``."""
_OF_POOLER = "unsupported startup parameter"
"""PgBouncer's error for options that it does not pass on."""
_POOLS_STATEMENTS = "statement pooling mode"
"""PgBouncer's error for a transaction of several statements in statement pooling mode."""
_READ_ONLY = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool"


@contextmanager
def transaction(sink: PostgresTable) -> Iterator[psycopg.Connection]:
    """Open a connection for one transaction, commit at the end of the block, and close it.

    The properties of the table's connection take precedence over the defaults of this package.

    :raises ConfigurationError: a property is unknown or invalid, or the login is refused.
    :raises psycopg.Error: the server does not answer, or refuses a statement.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    try:
        parameters = make_conninfo(**{**_DEFAULTS, **(sink.properties or {}), "client_encoding": "utf8"})
        # No prepared statements: a pooler may run each transaction in another server process.
        connection = psycopg.connect(parameters, prepare_threshold=None)
    except (psycopg.ProgrammingError, psycopg.OperationalError) as error:
        if isinstance(error, psycopg.OperationalError) and _may_connect_later(parameters, str(error)):
            raise
        raise ConfigurationError(
            f"{sink}: the connection's properties are not valid: {reason(error, sink)}"
        ) from None
    with closing(connection), connection:  # a commit that fails leaves it open
        yield connection


def refuse_read_only(connection: psycopg.Connection, sink: PostgresTable) -> None:
    """Raise OutcomeUnknown if a server is read-only: it may be a standby that is about to be promoted."""
    if connection.execute(_READ_ONLY).fetchone() == (True,):
        raise OutcomeUnknown(
            f"{sink}: the server takes no rows: it is a standby, or default_transaction_read_only is on. "
            "Name the primary, or all hosts with target_session_attrs=read-write; a retry asks again"
        )


def _may_connect_later(parameters: str, refused: str) -> bool:
    """Return whether a retry may connect: neither libpq nor the server rejects the parameters themselves.

    :param refused: text of the error, in which servers quote settings of ``options`` in any language.
    """
    from psycopg import pq

    if is_refused_login(refused) or _OF_POOLER in refused:
        return False
    begun = pq.PGconn.connect_start(parameters.encode())
    is_waiting = begun.status != pq.ConnStatus.BAD
    settings = _SETTING.findall(begun.options.decode())
    begun.finish()
    if any(f'"{name}"' in refused for name in settings):
        return False
    # An immediate failure means invalid values, an unknown host name, or a port where nobody listens.
    return is_waiting or pq.PGconn.ping(parameters.encode()) != pq.Ping.NO_ATTEMPT


def reason(error: Exception, sink: PostgresTable) -> str:
    """Return the text of an error without the secrets of the connection.

    libpq quotes values that it cannot parse, and poolers quote parameters. Host, port and user stay.
    Callers raise an error with this text ``from None``: a traceback would show the original text.
    """
    return redacted(str(error), secrets_of(sink.properties))


def refusal(error: psycopg.Error, sink: PostgresTable, *, is_repeated: bool = False) -> EosError | None:
    """Return the error of this package for a statement that server or driver would always refuse.

    :param is_repeated: an error that may be transient is not: it names a row, or was the last one, too.
    :returns: None if the error says nothing about the statement: a retry may succeed.
    """
    import psycopg

    if error.sqlstate is None:
        if isinstance(error, psycopg.ProgrammingError):  # the driver has not sent it
            return TableRefused(f"{sink} refused the run: {reason(error, sink)}")
        return None
    if _POOLS_STATEMENTS in str(error):
        return ConfigurationError(
            f"{sink}: a run needs transactions, and the pooler gives none ({reason(error, sink)}): connect "
            "to the database itself, or set pool_mode=transaction or session in PgBouncer"
        )
    diagnosis = error.diag
    is_of_upsert = bool(sink.key) and error.sqlstate == _DUPLICATE
    # FATAL: a pooler has no connection.
    if is_of_upsert or (error.sqlstate, diagnosis.severity_nonlocalized) == (_INTERNAL, "ERROR"):
        if not is_repeated:
            return None
    elif error.sqlstate.startswith(_PASSING):
        return None
    lines = (diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint)
    text = "; ".join(line for line in lines if line) or str(error)
    text = redacted(text, secrets_of(sink.properties))
    if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
        return AuthorizationFailed(
            f"{sink}: {text}. docs/postgres-tables.md lists the GRANTs and policies that a run needs"
        )
    constraint = diagnosis.constraint_name
    named = f" (constraint {constraint!r})" if constraint else ""
    return TableRefused(f"{sink} refused the run{named}: {text} [SQLSTATE {error.sqlstate}]")
