"""Compares the rows that a run has in its table with the receipt in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable, secrets_of
from airflow_eos.model.table import EarlierRows, TableReceipt
from airflow_eos.operations.table_checks import inspection_of
from airflow_eos.operations.table_inspection import HeldRows
from airflow_eos.redaction import redacted
from airflow_eos.run.replacing import file_label
from airflow_eos.sinks.opening import load_table, table_named
from airflow_eos.wording import counted

Outcome = Literal["ok", "mismatch", "unavailable", "compacted", "expired", "table"]
Comparison = tuple[Outcome, int, str]
"""The outcome, the current number of rows, and a description of the problem."""
Table = TypeVar("Table", bound=SinkTable)


class Connected(Protocol):
    """Adds the properties of its connection to a table."""

    def __call__(self, table: Table, /) -> Table:
        """Return the table with the properties."""


def compared_rows(record: RunRecord, connected: Connected | None, in_time: Callable[[], None]) -> Comparison:
    """Compare the rows of a run: the footers of the snapshot's data files, or the rows of its transaction.

    :param connected: None if tables are not to be read.
    """
    recorded = record.details[TABLE]
    receipt, identity = TableReceipt.from_dict(recorded), str(recorded["uuid"])
    table = None if connected is None else table_named(str(recorded["sink"]))
    if connected is None or table is None:
        return _not_compared(f"read the table's snapshot {receipt.snapshot}")
    if isinstance(table, PostgresTable):
        return _rows_in_database(connected, table, identity, EarlierRows(receipt, file_label(record.run_key)))
    try:
        table = connected(table)
        version = load_table(table)
    except EosError as error:
        return _not_compared(error)
    if (now := version.layout.uuid) != identity:
        finding = f"the table had the id {identity}, and has {now} now"
        return "mismatch", 0, f"{finding}: it was recreated, or the connection leads to another"
    held = inspection_of(table, version).rows_of(receipt, record.run_key, in_time)
    if held is None:
        detail = (
            f"the table's snapshot {receipt.snapshot} was expired: its rows may be there, nothing names them"
        )
        return "expired", 0, detail
    return _compared(held, receipt)


def _not_compared(reason: object) -> Comparison:
    return "table", 0, f"not compared: {reason}"


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


def _rows_in_database(
    connected: Connected, table: PostgresTable, identity: str, run: EarlierRows
) -> Comparison:
    try:
        from airflow_eos.operations.postgres_checks import rows_of_run

        table = connected(table)
        rows, lost = rows_of_run(table, identity, run)
    except Exception as error:  # noqa: BLE001 - of psycopg, which may be missing
        return _not_compared(redacted(str(error), secrets_of(table.properties)))
    if lost:
        return "mismatch", 0, lost
    if rows == run.receipt.rows:
        return "ok", rows, ""
    if rows > run.receipt.rows:
        return "table", rows, "the run's transaction wrote more rows: by a trigger or rule of the table"
    return "table", rows, f"{counted(rows, 'row')} as written; the others were changed or deleted since"
