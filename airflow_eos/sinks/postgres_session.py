"""Connections to PostgreSQL on driver and executors, and which of its errors are final."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, EosError, TableRefused
from airflow_eos.model.sink_table import secrets_of
from airflow_eos.sinks.redaction import redacted

if TYPE_CHECKING:
    import psycopg

SCHEMA = "airflow_eos"
"""Holds what runs have published, and the staged rows of runs that have not."""
FILE = "airflow_eos_file"
"""Column of staged rows, and setting of the transaction that stages them: the number of their COPY."""
FILE_SETTING = "airflow_eos.file"
ROW = "airflow_eos_row"
"""Column of staged rows: their order within one COPY."""

_DEFAULTS: dict[str, Any] = {
    "application_name": "airflow-eos",
    "connect_timeout": 10,
    # A host that vanishes is noticed after a minute, and not after the system's two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_INSUFFICIENT_PRIVILEGE = "42501"
_PASSING = ("08", "25", "40", "53", "55", "57P", "58", "XX")
"""Classes of SQLSTATE that say nothing about the rows: connection, state of the transaction or the server."""


@contextmanager
def transaction(properties: Mapping[str, str], name: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection for one transaction, committed at the end of the block, and close it.

    :param properties: in libpq's names; they win over the defaults of this package.
    :param name: the table, in words.
    :raises ConfigurationError: a property is unknown, or has an impossible value.
    :raises psycopg.Error: the server does not answer, or refuses something.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    try:
        parameters = make_conninfo(**{**_DEFAULTS, **properties, "client_encoding": "utf8"})
        # Nothing is prepared: a pooler may give each transaction another server process.
        connection = psycopg.connect(parameters, prepare_threshold=None)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            f"{name}: the connection's properties are not valid: {reason(error, properties)}"
        ) from None
    with closing(connection), connection:  # a commit that fails leaves it open
        yield connection


def reason(error: Exception, properties: Mapping[str, str] | None) -> str:
    """Return the text of an error without the secrets of the connection.

    libpq repeats values that it cannot read, and poolers what they were given. Host, port and user stay.
    Whoever raises another error with this text does so ``from None``: a traceback shows the cause.
    """
    return redacted(str(error), secrets_of(properties))


def is_final(error: psycopg.Error) -> bool:
    """Return whether the server has refused a statement for what it says: it would do so again."""
    state = error.sqlstate
    return state is not None and not state.startswith(_PASSING)


def final_error(error: psycopg.Error, name: str, properties: Mapping[str, str] | None) -> EosError:
    """Return the error of this package for a statement that was refused; see :func:`is_final`.

    :param properties: of the connection; none of its secrets is in the error.
    """
    diagnosis = error.diag
    lines = (diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint)
    text = "; ".join(line for line in lines if line) or str(error)
    text = redacted(text, secrets_of(properties))
    if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
        return AuthorizationFailed(
            f"{name}: {text}. docs/postgres-tables.md lists the GRANTs that a run needs"
        )
    constraint = diagnosis.constraint_name
    named = f" (constraint {constraint!r})" if constraint else ""
    return TableRefused(f"{name} refused the run{named}: {text} [SQLSTATE {error.sqlstate}]")
