"""Compares the rows that a run has in its table with the receipt in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import MAIN
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable, secrets_of
from airflow_eos.model.table import EarlierRows, TableReceipt
from airflow_eos.operations.table_inspection import HeldRows
from airflow_eos.redaction import redacted
from airflow_eos.run.replacing import file_label
from airflow_eos.sinks.opening import load_table, table_named
from airflow_eos.wording import counted

Outcome = Literal["ok", "mismatch", "unavailable", "compacted", "expired", "table"]
Comparison = tuple[Outcome, int, str]
"""The outcome, the number of rows that are there, and what is wrong."""
Table = TypeVar("Table", bound=SinkTable)


class Connected(Protocol):
    """Adds the properties of its connection to a table."""

    def __call__(self, table: Table, /) -> Table:
        """Return the table with the properties."""


def compared_rows(record: RunRecord, connected: Connected | None, in_time: Callable[[], None]) -> Comparison:
    """Compare the rows of a run: the footers of the snapshot's data files, or the rows of its transaction.

    :param connected: None: tables are not read here.
    """
    recorded = record.details[TABLE]
    receipt = TableReceipt.from_dict(recorded)
    table = None if connected is None else table_named(str(recorded["sink"]))
    if connected is None or table is None:
        return _not_compared(f"read the table's snapshot {receipt.snapshot}")
    if isinstance(table, PostgresTable):
        run = EarlierRows(receipt, file_label(record.run_key))
        return _rows_in_database(connected, table, str(recorded["uuid"]), run)
    return _rows_in_files(connected, table, record, receipt, in_time)


def _not_compared(reason: object) -> Comparison:
    return "table", 0, f"not compared: {reason}"


def _rows_in_files(
    connected: Connected,
    table: SinkTable,
    record: RunRecord,
    receipt: TableReceipt,
    in_time: Callable[[], None],
) -> Comparison:
    before = record.details[TABLE]["uuid"]
    try:
        table = connected(table)
        version: Any = load_table(table)
    except EosError as error:
        return _not_compared(error)
    if (now := version.layout.uuid) != before:
        return "mismatch", 0, f"the table had the id {before}, and has {now} now: it was made again"
    held = _held_rows(table, version, receipt, record.run_key, in_time)
    if held is None:
        detail = (
            f"the table's snapshot {receipt.snapshot} was expired: its rows may be there, nothing names them"
        )
        return "expired", 0, detail
    return _compared(held, receipt)


def _compared(held: HeldRows, receipt: TableReceipt) -> Comparison:
    problems = []
    if held.missing:
        problems.append(f"{counted(len(held.missing), 'data file')} missing, as {held.missing[0]}")
    if held.undone:
        problems.append("the table was set back behind the snapshot: reprocess the run, with 'append'")
    if held.files != receipt.files:
        problems.append(f"the snapshot added {counted(held.files, 'data file')}, not {receipt.files}")
    if held.removed and not problems:
        removal = f"{counted(held.removed, 'data file')} taken out by later commits, and deleted"
        return "expired", held.rows, removal
    if held.rows != receipt.rows and not problems:
        problems.append(f"its data files hold {counted(held.rows, 'row')}")
    return "mismatch" if problems else "ok", held.rows, "; ".join(problems)


def _held_rows(
    table: SinkTable, version: Any, receipt: TableReceipt, run_key: str, in_time: Callable[[], None]
) -> HeldRows | None:
    if isinstance(table, DeltaTable):
        from airflow_eos.operations.delta_inspection import DeltaInspection

        return DeltaInspection(version, table.uri, table.properties).rows_of(receipt, run_key, in_time)
    from airflow_eos.operations.iceberg_inspection import IcebergInspection

    return IcebergInspection(version, table.properties).rows_of(receipt, table.branch_name or MAIN, in_time)


def _rows_in_database(
    connected: Connected, table: PostgresTable, identity: str, run: EarlierRows
) -> Comparison:
    try:
        from airflow_eos.operations.postgres_checks import rows_of_run

        table = connected(table)
        held = rows_of_run(table, identity, run)
    except Exception as error:  # noqa: BLE001 - of psycopg, which may be missing
        return _not_compared(redacted(str(error), secrets_of(table.properties)))
    if held.lost:
        return "mismatch", 0, held.lost
    if held.rows == run.receipt.rows:
        return "ok", held.rows, ""
    if held.rows > run.receipt.rows:
        return "table", held.rows, "the run's transaction wrote more rows: by a trigger or rule of the table"
    changed = f"{counted(held.rows, 'row')} as written; the others were changed or deleted since"
    return "table", held.rows, changed
