"""A PostgreSQL table as a sink: staged rows and the note that they are published commit in one transaction.

The transaction locks the pipeline's row of ``airflow_eos.published`` and compares its version with the one
that was read: a compare-and-set. Other writers of the table do not matter.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from airflow_eos.exceptions import SendError, StagedRowsLost, TableRefused
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import secrets_of
from airflow_eos.model.table import EarlierRows, TableCommit, TableReceipt
from airflow_eos.sinks.base_sink import BaseSink
from airflow_eos.sinks.postgres_catalog import (
    PUBLISHED,
    KeyColumn,
    PostgresVersion,
    Target,
    find_target,
    find_version,
    make_control_table,
    note_run,
    refuse_rewritten,
)
from airflow_eos.sinks.postgres_rows import PostgresRows, StagedRows
from airflow_eos.sinks.postgres_session import SCHEMA, refusal, refuse_read_only, transaction
from airflow_eos.table_ports import TableMoved

log = logging.getLogger(__name__)

_NOTE = """UPDATE airflow_eos.published SET version = version + 1, runs = %s, last_run = %s
WHERE target = %s AND pipeline = %s"""
_SETTINGS = """SELECT set_config(name, wanted, true) FROM (VALUES
    ('lock_timeout', (
        SELECT greatest(1, least(60000, 250 * min(extract(epoch FROM bound::interval))))::int::text
        FROM unnest(ARRAY['statement_timeout', 'transaction_timeout']) AS bounded,
            current_setting(bounded, true) AS bound WHERE bound <> '0'
    ), '0'),
    ('idle_in_transaction_session_timeout', '60s', '0'),
    ('synchronous_commit', 'on', 'off')
) AS settings (name, wanted, unless) WHERE current_setting(name) = unless"""
"""Settings of each transaction, unless the role has its own. A driver that stalls, or dies with its host,
loses its locks. A commit that the ledger records next must survive a crash of the server. A lock wait ends
before a time-out of the role, whose error would blame the publication itself."""
_FILE_COLUMN = "airflow_eos_file bigint NOT NULL DEFAULT current_setting('airflow_eos.file')::bigint"
"""The number of the COPY that staged a row, which the staging transaction sets."""
_ROW_COLUMN = "airflow_eos_row bigint GENERATED ALWAYS AS IDENTITY"
"""The order of staged rows within one COPY."""
_KEPT = psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException
"""Errors that leave a staging table to a later attempt."""
_OLD_SECONDS = 7 * 86_400
"""No attempt runs this long: older staging tables of a pipeline are abandoned."""


class PostgresSink(BaseSink):
    """Implements ``airflow_eos.table_ports.TableSink``.

    :param sink: the table and its connection.
    :param pipeline: the name under which the table keeps the published runs of a pipeline.
    """

    SYSTEM = "the database"
    # TransactionRollback covers serialization failures and deadlocks. A final UniqueViolation is refused.
    CONFLICTS = (
        psycopg.errors.TransactionRollback,
        psycopg.errors.LockNotAvailable,
        psycopg.errors.UniqueViolation,
    )
    # No time-out ends a COMMIT that waits for a standby.
    WAIT_ADVICE = (
        ". What it waits for, as the connection's role: SELECT wait_event, query FROM pg_stat_activity WHERE "
        "usename = current_user; SyncRep means that no standby of synchronous_standby_names answers"
    )

    _sink: PostgresTable
    _last_cause: tuple[str | None, str | None] | None = None

    def __init__(self, sink: PostgresTable, pipeline: str) -> None:
        self._sink = sink
        self._pipeline = pipeline
        # Common to all staging tables of the pipeline; then follow run, time and a random number.
        self._prefix = f"rows_{pipeline.removeprefix('eos.')[:10]}_"
        self._staging: set[str] = set()

    def _load(self, *, to_write: bool) -> PostgresVersion:
        with self._transaction() as connection:
            make_control_table(connection, self.name)
            target = find_target(connection, self._sink, to_write=to_write)
            return find_version(connection, target, self._pipeline)

    def writer(self, version: Any, label: str) -> PostgresRows:
        """Create the staging table of an attempt, and return the writer that fills it."""
        columns = [column for column in version.target.columns if not column.computed]
        definitions = [sql.Identifier(column.name) + sql.SQL(f" {column.declared}") for column in columns]
        own = sql.SQL(f"{_FILE_COLUMN}, {_ROW_COLUMN}" if self._sink.key else _FILE_COLUMN)
        try:
            with self._warning_if_slow(), self._transaction() as connection:
                self._drop(connection, self._left_behind(connection, label))
                ((now,),) = connection.execute("SELECT to_hex(extract(epoch FROM now())::bigint)")
                staging = f"{self._prefix}{label}_{now}_{secrets.token_hex(4)}"
                connection.execute(
                    sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(
                        sql.Identifier(SCHEMA, staging), sql.SQL(", ").join([*definitions, own])
                    )
                )
        except psycopg.Error as error:
            raise SendError(
                f"{self.name}: no table for its staged rows can be made: {self._reason(error)}"
            ) from None
        self._staging.add(staging)
        return PostgresRows(self._sink, staging, version.target.columns)

    def _find_earlier_rows(self, version: Any, replaces: Sequence[EarlierRows]) -> None:
        with self._transaction() as connection:
            refuse_rewritten(connection, self._sink, version, replaces)

    def _commit(self, version: Any, change: TableCommit) -> TableReceipt:
        """Publish staged rows, delete those that they replace, and note the run, in one transaction."""
        staged = [StagedRows(*json.loads(file.data)) for file in change.files]
        with self._transaction() as connection:
            self._check_staged(connection, staged)
            try:
                if staged or change.replaces:
                    self._lock_target(connection, version.target)
                self._lock_version(connection, version)
            except psycopg.errors.UndefinedTable as error:
                raise TableMoved(self._reason(error)) from None
            refuse_rewritten(connection, self._sink, version, change.replaces, delete=True)
            rows = self._insert(connection, version.target, staged)
            ((snapshot,),) = connection.execute("SELECT pg_current_xact_id()::text::bigint")
            receipt = TableReceipt(snapshot, len(staged), rows)
            runs, last_run = change.published_with(receipt).to_json(), _jsonb(connection, change.summary)
            connection.execute(_NOTE, (runs, last_run, version.target.oid, self._pipeline))
            if staged or change.replaces:
                note_run(connection, version, EarlierRows(receipt, change.label))
            # Check deferred constraints now: an error of the COMMIT would leave the outcome unknown.
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            connection.execute(_SETTINGS)  # triggers may have changed them until the commit
            self._drop(connection, {rows_of.table for rows_of in staged})
        self._last_cause = None
        return receipt

    def _hidden(self, version: Any) -> Mapping[str, object]:  # noqa: ARG002
        return secrets_of(self._sink.properties)

    def close(self) -> None:
        """Drop the staging tables that this process has not published."""
        staging, self._staging = self._staging, set()
        if not staging:
            return
        try:
            with self._transaction() as connection:
                self._drop(connection, staging)
        except Exception as error:  # noqa: BLE001 - a later attempt drops them
            log.info("%s: staged rows were not dropped: %s", self.name, self._reason(error))

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        """Open a connection for one transaction; translate final refusals of the server."""
        try:
            with transaction(self._sink) as connection:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                refuse_read_only(connection, self._sink)
                connection.execute(_SETTINGS)
                yield connection
                connection.add_notice_handler(self._log_notice)
        except psycopg.Error as error:
            # Not its whole text, which quotes values: those of a sequence differ from try to try.
            cause = error.sqlstate, error.diag.constraint_name or error.diag.message_primary
            refused = refusal(error, self._sink, is_repeated=cause == self._last_cause)
            self._last_cause = cause
            if refused is None:
                raise
            raise refused from None

    def _log_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        log.warning(
            "%s, at the COMMIT: %s %s", self.name, notice.message_primary, notice.message_detail or ""
        )

    # -- parts of a commit --

    def _lock_target(self, connection: psycopg.Connection, looked_at: Target) -> None:
        table = sql.Identifier(*self._sink.schema_and_table)
        connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(table))
        if find_target(connection, self._sink) != looked_at:
            raise TableMoved("the table is another one, or its columns have changed")

    def _lock_version(self, connection: psycopg.Connection, version: PostgresVersion) -> None:
        row = connection.execute(f"{PUBLISHED} FOR UPDATE", (version.target.oid, self._pipeline)).fetchone()
        if row is None or row[:2] != (version.layout.uuid, version.number):
            raise TableMoved(f"version {version.number} was looked at, now it is {row}")

    def _check_staged(self, connection: psycopg.Connection, staged: Sequence[StagedRows]) -> None:
        """Compare staged rows with the counts that tasks reported: staging tables do not survive a crash."""
        counts: dict[int, int] = {}
        for table in {rows.table for rows in staged}:
            if connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.{table}",)).fetchone() != (None,):
                counted = sql.SQL("SELECT airflow_eos_file, count(*) FROM {} GROUP BY 1")
                files = connection.execute(counted.format(sql.Identifier(SCHEMA, table)))
                counts.update(files.fetchall())
        for rows in staged:
            if counts.get(rows.file) != rows.rows:
                raise StagedRowsLost(
                    f"{self.name}: a task staged {rows.rows} rows in {SCHEMA}.{rows.table}, and "
                    f"{counts.get(rows.file, 0)} are there: the database was restarted after a crash, or "
                    "somebody has dropped them. Nothing was published; the next try stages them again"
                )

    def _insert(self, connection: psycopg.Connection, target: Target, staged: Sequence[StagedRows]) -> int:
        """Insert staged rows, by the columns that they have; return how many the table took."""
        groups: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
        for rows in staged:
            groups[rows.table, tuple(rows.columns)].append(rows.file)
        if self._sink.key and len(groups) > 1:
            raise TableRefused(
                f"{self.name}: process returned different columns for different records "
                f"({'; '.join(', '.join(columns) for _, columns in groups)}); with mode='upsert' all rows "
                "must have the same ones"
            )
        return sum(
            connection.execute(self._statement(target.orders, *group, numbers)).rowcount
            for group, numbers in groups.items()
        )

    def _statement(
        self, orders: tuple[tuple[KeyColumn, ...], ...], table: str, names: tuple[str, ...], files: list[int]
    ) -> sql.Composed:
        """Return a statement without parameters: with them a percent sign in a name is a placeholder."""
        parts = {
            "target": sql.Identifier(*self._sink.schema_and_table),
            "staging": sql.Identifier(SCHEMA, table),
            "columns": sql.SQL(", ").join(map(sql.Identifier, names)),
            "files": sql.Literal(files),
            "key": sql.SQL(", ").join(map(sql.Identifier, self._sink.key)),
        }
        if not self._sink.key:
            return sql.SQL(
                "INSERT INTO {target} ({columns}) SELECT {columns} FROM {staging} "
                "WHERE airflow_eos_file = ANY ({files}::bigint[])"
            ).format(**parts)
        rows = sql.SQL(
            "SELECT staged.*, files.airflow_eos_position FROM {staging} AS staged JOIN "
            "unnest({files}::bigint[]) WITH ORDINALITY AS files (airflow_eos_file, airflow_eos_position) "
            "USING (airflow_eos_file)"
        ).format(**parts)
        for order in orders:
            rows = _last_of_key(rows, order)
        changed = [sql.Identifier(name) for name in names if name not in self._sink.key]
        assigned = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(name) for name in changed)
        action = sql.SQL("DO UPDATE SET {}" if changed else "DO NOTHING").format(assigned)
        # With an alias, as a table may be called "excluded".
        return sql.SQL(
            "INSERT INTO {target} AS airflow_eos_target ({columns}) SELECT {columns} FROM ({rows}) AS staged "
            "ON CONFLICT ({key}) {action}"
        ).format(**parts, rows=rows, action=action)

    # -- staging tables --

    def _left_behind(self, connection: psycopg.Connection, label: str) -> set[str]:
        """Return abandoned staging tables: of earlier attempts at this run, or old ones of the pipeline.

        The caller has fenced earlier attempts at this run, so they cannot publish any more.
        """
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND starts_with(relname, %s) "
            "AND (split_part(relname, '_', 3) = %s OR "
            "split_part(relname, '_', 4) < to_hex(extract(epoch FROM now())::bigint - %s))",
            (SCHEMA, self._prefix, label, _OLD_SECONDS),
        )
        return {name for (name,) in tables}

    def _drop(self, connection: psycopg.Connection, tables: set[str]) -> None:
        """Drop staging tables, except those that a stray task is writing to, or an event trigger keeps."""
        for table in sorted(tables):
            drop = sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, table))
            with suppress(*_KEPT):
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '1s'")
                    connection.execute(drop)
                self._staging.discard(table)


def _last_of_key(rows: sql.Composable, order: Sequence[KeyColumn]) -> sql.Composed:
    """Return a query for the last of the rows that an index treats as equal."""
    compared = [sql.Identifier(name) + sql.SQL(collation) for name, collation, _ in order]
    sorted_by = [column + sql.SQL(using) for column, (*_, using) in zip(compared, order, strict=True)]
    return sql.SQL(
        "SELECT DISTINCT ON ({}) * FROM ({}) AS staged "
        "ORDER BY {}, airflow_eos_position DESC, airflow_eos_row DESC"
    ).format(sql.SQL(", ").join(compared), rows, sql.SQL(", ").join(sorted_by))


def _jsonb(connection: psycopg.Connection, summary: Mapping[str, str]) -> str:
    """Return a summary as JSON, with escapes for characters that ``jsonb`` or the database encoding lacks."""
    encoding = "utf-8" if connection.info.parameter_status("server_encoding") == "UTF8" else "ascii"
    escaped = {
        name: value.encode(encoding, "backslashreplace").decode(encoding).replace("\0", r"\x00")
        for name, value in summary.items()
    }
    return json.dumps(escaped)
