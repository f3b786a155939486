"""Compares the rows that a run appended to a table with the receipt in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.records.run import TABLE
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.table import TableReceipt
from airflow_eos.operations.findings import Finding, Outcome
from airflow_eos.wording import counted

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run import RunRecord

Table = TypeVar("Table", bound=SinkTable)


class Connected(Protocol):
    """Adds to a table the properties of its connection."""

    def __call__(self, table: Table, /) -> Table:
        """Return the table with them."""


def table_finding(record: RunRecord, connected: Connected | None, in_time: Callable[[], None]) -> Finding:
    """Return what became of the rows of a run.

    Counted by the footers of the snapshot's data files, or by the transaction that a row is of.

    :param connected: None: tables are not read here.
    """
    recorded = record.details[TABLE]
    sink, receipt = str(recorded["sink"]), TableReceipt.from_dict(recorded)

    def finding(outcome: Outcome, rows: int, detail: str = "") -> Finding:
        return Finding(record.run_key, sink, 0, outcome, receipt.rows, rows, detail)

    database_table = PostgresTable.named(sink)
    if connected is not None and database_table is not None:
        return finding(*_rows_in_database(connected, database_table, str(recorded["uuid"]), receipt))
    table = IcebergTable.named(sink)
    if connected is None or table is None:
        return finding("table", 0, f"not compared: read the table's snapshot {receipt.snapshot}")
    from airflow_eos.operations.iceberg_inspection import IcebergInspection
    from airflow_eos.sinks.iceberg import IcebergSink

    try:
        table = connected(table)
        with IcebergSink(table, property_name="") as opened:
            version = opened.load()
    except EosError as error:
        return finding("table", 0, f"not compared: {error}")
    if version.layout.uuid != recorded["uuid"]:
        detail = (
            f"the table had the id {recorded['uuid']}, and has {version.layout.uuid} now: it was made again"
        )
        return finding("mismatch", 0, detail)
    held = IcebergInspection(version, table.properties).rows_of(receipt, in_time)
    if held is None:
        detail = (
            f"the table's snapshot {receipt.snapshot} was expired: its rows may be there, nothing names them"
        )
        return finding("expired", 0, detail)
    problems = []
    if held.missing:
        problems.append(f"{counted(len(held.missing), 'data file')} missing, as {held.missing[0]}")
    if held.files != receipt.files:
        problems.append(f"the snapshot added {counted(held.files, 'data file')}, not {receipt.files}")
    if held.rows != receipt.rows and not problems:
        problems.append(f"its data files hold {counted(held.rows, 'row')}")
    return finding("mismatch" if problems else "ok", held.rows, "; ".join(problems))


def _rows_in_database(
    connected: Connected, table: PostgresTable, identity: str, receipt: TableReceipt
) -> tuple[Outcome, int, str]:
    try:
        from airflow_eos.operations.postgres_checks import rows_as_written

        rows = rows_as_written(connected(table), identity, receipt.snapshot)
    except Exception as error:  # noqa: BLE001 - of psycopg, which may be missing
        return "table", 0, f"not compared: {error}"
    if rows is None:
        return "mismatch", 0, f"the table had the id {identity}, and has another one now: it was made again"
    if rows == receipt.rows:
        return "ok", rows, ""
    detail = f"{counted(rows, 'row')} as written; the others were changed or deleted since"
    return "table", rows, detail
