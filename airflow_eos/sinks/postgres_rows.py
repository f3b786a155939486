"""Stages rows for a PostgreSQL table in Spark tasks: one COPY, which is one transaction, for each flush."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import EnvironmentMismatch, RecordRefused, SendError, TableRefused
from airflow_eos.model.table import DataFileMade
from airflow_eos.sinks.columns import check_types
from airflow_eos.sinks.postgres_columns import TargetColumn, csv_chunks, rows_of, wanted_schema
from airflow_eos.sinks.postgres_session import (
    FILE_SETTING,
    SCHEMA,
    final_error,
    is_final,
    reason,
    transaction,
)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What one COPY staged.

    :param file: number of the COPY, never used twice.
    :param columns: that the rows have.
    """

    table: str
    file: int
    columns: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Return the form that :class:`~airflow_eos.model.table.DataFileMade` carries."""
        return json.dumps([self.table, self.file, self.columns]).encode()

    @classmethod
    def of(cls, file: DataFileMade) -> StagedRows:
        """Read it."""
        table, number, columns = json.loads(file.data)
        return cls(table, number, tuple(columns))


@dataclass(frozen=True, slots=True)
class PostgresRows:
    """Implements ``airflow_eos.ports.TableWriter``; pickled into tasks, with the connection's password.

    A COPY that is repeated, or whose answer is lost, leaves rows under a number that nobody names: the driver
    counts and publishes rows by number.

    :param name: the table, in words.
    :param properties: of the connection, in libpq's names.
    :param staging: table that takes the rows.
    :param target: columns of the table that they are for.
    :param key: columns that need a value.
    :param flush_bytes: bytes of rows that one COPY takes, about.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    staging: str
    target: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    flush_bytes: int = 64 << 20

    def columns(self, result: Any) -> pa.Table | None:
        """Return the rows of an Arrow process in the table's columns; what is left out takes its default."""
        return rows_of(result, self.target, self.key, self.name)

    def check(self, given: pa.Schema) -> None:
        """Compare columns and types before anything is read."""
        check_types(given, wanted_schema(self.target, given, self.key, self.name), self.name)

    def write(self, table: pa.Table) -> Sequence[DataFileMade]:
        """Stage rows.

        :raises RecordRefused: a value is none of its column's type.
        """
        try:
            import psycopg
            from psycopg import sql
        except ImportError as error:
            raise EnvironmentMismatch(
                f"{self.name} is written by Spark's tasks, and psycopg is missing there ({error}): install "
                "airflow-eos[postgres] on the executors"
            ) from None
        staged = StagedRows(self.staging, secrets.randbits(63), tuple(table.column_names))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            sql.Identifier(SCHEMA, self.staging), sql.SQL(", ").join(map(sql.Identifier, staged.columns))
        )
        size = 0
        try:
            with transaction(self.properties, self.name) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT set_config(%s, %s, true)", (FILE_SETTING, str(staged.file)))
                with cursor.copy(statement) as copy:
                    for chunk in csv_chunks(table):
                        copy.write(chunk)
                        size += len(chunk)
        except psycopg.errors.UndefinedTable:
            raise SendError(
                f"{self.name}: the staging table {SCHEMA}.{self.staging} was dropped, by a newer attempt "
                "at the run or by somebody"
            ) from None
        except psycopg.Error as error:
            if not is_final(error):
                raise SendError(
                    f"{self.name}: rows cannot be staged: {reason(error, self.properties)}"
                ) from None
            refused = final_error(error, self.name, self.properties)
            if isinstance(refused, TableRefused):
                place = error.diag.context
                raise RecordRefused(refused.message + (f" ({place})" if place else "")) from None
            raise refused from None
        return [DataFileMade(staged.to_bytes(), table.num_rows, size)]
