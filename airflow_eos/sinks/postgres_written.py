"""Finds the rows that a run wrote to a PostgreSQL table, where all of them are as they were written.

PostgreSQL keeps with each row the number of the transaction that wrote it (``xmin``). A run is one
transaction, whose number is its receipt; an update, of whatever column, gives a row another one. Rows have
the lower 32 bits of the number only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg import sql

from airflow_eos.exceptions import TableRewritten

if TYPE_CHECKING:
    import psycopg

    from airflow_eos.model.postgres_table import PostgresTable
    from airflow_eos.model.table import EarlierRows

_NUMBERS = 1 << 32
_NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


def rows_as_written(
    connection: psycopg.Connection[Any], table: PostgresTable, snapshot: int, *, delete: bool = False
) -> int:
    """Return how many rows are there as a transaction wrote them.

    :param snapshot: id of the transaction.
    :param delete: delete them.
    """
    written = sql.SQL("FROM {} WHERE xmin::text::bigint = %s").format(sql.Identifier(*table.schema_and_table))
    if delete:
        return connection.execute(sql.SQL("DELETE {}").format(written), (snapshot % _NUMBERS,)).rowcount
    ((rows,),) = connection.execute(sql.SQL("SELECT count(*) {}").format(written), (snapshot % _NUMBERS,))
    return int(rows)


def refuse_rewritten(
    connection: psycopg.Connection[Any],
    table: PostgresTable,
    replaces: Sequence[EarlierRows],
    *,
    delete: bool = False,
) -> None:
    """Look whether all rows of earlier commits are there as they were written.

    :param delete: delete them; the caller rolls its transaction back where this raises.
    :raises TableRewritten: they are not.
    """
    for earlier in replaces:
        rows = rows_as_written(connection, table, earlier.snapshot, delete=delete)
        ((following,),) = connection.execute(_NEXT)
        if rows != earlier.receipt.rows or following - earlier.snapshot >= _NUMBERS:
            raise TableRewritten(
                f"{table}: of the {earlier.receipt.rows} rows that transaction {earlier.snapshot} wrote, "
                f"{rows} are told as they were (the next transaction is {following}): the others were "
                "updated or deleted, or their numbers were used again. Nothing was replaced; delete the "
                "run's rows by yourself and use PostgresTable(reprocess='append')"
            )
