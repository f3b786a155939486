"""Stages rows for a PostgreSQL table in Spark tasks: one COPY, which is one transaction, for each flush."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_eos.exceptions import ConfigurationError, RecordRefused, SendError, TableRefused
from airflow_eos.model.arrow_result import returned_table
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import DataFileMade
from airflow_eos.sinks.columns import check_types, table_columns
from airflow_eos.sinks.executor_extra import executor_extra
from airflow_eos.sinks.postgres_columns import TargetColumn, check_values, csv_chunks, wanted_schema
from airflow_eos.sinks.postgres_session import SCHEMA, TIMED_OUT, reason, refusal, transaction


class StagedRows(NamedTuple):
    """The rows that one COPY staged; its JSON is the data of a ``DataFileMade``.

    :param file: random number of the COPY, never used twice.
    """

    table: str
    file: int
    columns: Sequence[str]
    rows: int


@dataclass(frozen=True, slots=True)
class PostgresRows:
    """Implements ``airflow_eos.table_ports.TableWriter``; pickled into tasks, with the connection's password.

    A COPY that is repeated, or whose answer is lost, leaves rows under a number that no task reports: the
    driver counts and publishes rows by number.

    :param target: columns of the target table.
    :param flush_bytes: approximate bytes of rows per COPY.
    """

    sink: PostgresTable
    staging: str
    target: tuple[TargetColumn, ...]
    flush_bytes: int = 64 << 20

    @property
    def name(self) -> str:
        """The table, for messages."""
        return str(self.sink)

    def columns(self, result: Any) -> pa.Table | None:
        """Return the rows of an Arrow process in the table's columns; missing columns take their defaults."""
        table = returned_table(result)
        if table is None:
            return None
        rows = table_columns(table, wanted_schema(self.target, table.schema, self.sink), self.name)
        for column in self.target:
            if rows is not None and column.name in rows.column_names:
                check_values(rows.column(column.name), column, self.sink)
        return rows

    def check(self, given: pa.Schema) -> None:
        """Compare columns and types before anything is read."""
        check_types(given, wanted_schema(self.target, given, self.sink), self.name)

    def write(self, table: pa.Table) -> Sequence[DataFileMade]:
        """Stage rows; raises RecordRefused for a value that is not of its column's type."""
        with executor_extra(self.name, "psycopg", "postgres"):
            import psycopg
            from psycopg import sql
        staged = StagedRows(self.staging, secrets.randbits(63), table.column_names, table.num_rows)
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            sql.Identifier(SCHEMA, self.staging), sql.SQL(", ").join(map(sql.Identifier, staged.columns))
        )
        size = 0
        try:
            with transaction(self.sink) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT set_config('airflow_eos.file', %s, true)", (str(staged.file),))
                with cursor.copy(statement) as copy:
                    for chunk in csv_chunks(table):
                        copy.write(chunk)
                        size += len(chunk)
        except ConfigurationError as error:  # the driver has logged in: a password was changed since
            raise SendError(f"{self.name}: rows cannot be staged: {error.message}") from None
        except psycopg.Error as error:
            place = error.diag.context  # of a row, which a function of its column's type may refuse
            if isinstance(error, psycopg.errors.UndefinedTable) and not place:
                raise SendError(
                    f"{self.name}: the staging table {SCHEMA}.{self.staging} was dropped, by a newer attempt "
                    "at the run or by somebody"
                ) from None
            # Cancelled by a time-out or a person: PostgreSQL names the current row, which is not at fault.
            is_cancelled = error.sqlstate in TIMED_OUT
            refused = None if is_cancelled else refusal(error, self.sink, is_repeated=bool(place))
            if isinstance(refused, TableRefused):
                raise RecordRefused(refused.message + (f" ({place})" if place else "")) from None
            cannot = SendError(f"{self.name}: rows cannot be staged: {reason(error, self.sink)}")
            raise (refused or cannot) from None
        return [DataFileMade(json.dumps(staged).encode(), staged.rows, size)]
