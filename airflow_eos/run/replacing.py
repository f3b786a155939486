"""The rows that a reprocessing replaces in a table: those of the run's earlier commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from airflow_eos.exceptions import TableRewritten
from airflow_eos.ledger.records.run import TABLE, RunRecord
from airflow_eos.model.table import TableReceipt
from airflow_eos.ports import ReplacingSink, TableSink

REPLACED = "replaced"
"""Part of the detail of a table: the snapshots whose rows the run's own took the place of."""


def earlier_rows(records: Sequence[RunRecord], sink: str, uuid: str) -> tuple[TableReceipt, ...]:
    """Return the rows of a run's committed rounds and reprocessings that are not replaced yet.

    :param records: all records of the run.
    :param sink: name of the table; rows in other sinks stay.
    :param uuid: of the table as it is now.
    :raises TableRewritten: the rows are in an earlier table of that name.
    """
    tables = [record.details[TABLE] for record in records if TABLE in record.details]
    tables = [table for table in tables if table["sink"] == sink]
    for table in tables:
        if table["uuid"] != uuid:
            raise TableRewritten(
                f"{sink} had the id {table['uuid']} when snapshot {table['snapshot']} was written, and has "
                f"{uuid} now: it was made again, so the earlier rows cannot be told. Use "
                "IcebergTable(reprocess='append') if they are not in it"
            )
    replaced = {snapshot for table in tables for snapshot in table.get(REPLACED, ())}
    receipts = (TableReceipt.from_dict(table) for table in tables)
    return tuple(receipt for receipt in receipts if receipt.files and receipt.snapshot not in replaced)


def replacing(table: TableSink) -> ReplacingSink:
    """Return a table that can replace rows; only these have the option."""
    return cast("ReplacingSink", table)
