"""The rows that a reprocessing replaces in a table: those of the run's earlier commits."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.exceptions import TableRewritten
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import REPLACED, TABLE, RunRecord
from airflow_eos.model.table import EarlierRows, TableReceipt


def earlier_rows(records: Sequence[RunRecord], sink: str, uuid: str) -> tuple[EarlierRows, ...]:
    """Return the rows of a run's committed rounds and reprocessings that are not replaced yet.

    :param records: all records of the run.
    :param sink: name of the table; rows in other sinks stay.
    :param uuid: of the table as it is now.
    :raises TableRewritten: the rows are in an earlier table of that name.
    """
    tables = [(record.run_key, record.details[TABLE]) for record in records if TABLE in record.details]
    tables = [(key, table) for key, table in tables if table["sink"] == sink]
    for _, table in tables:
        if table["uuid"] != uuid:
            raise TableRewritten(
                f"{sink} had the id {table['uuid']} when snapshot {table['snapshot']} was written, and has "
                f"{uuid} now: it was made again, so the earlier rows cannot be told. Use "
                "reprocess='append' if they are not in it"
            )
    replaced = {snapshot for _, table in tables for snapshot in table.get(REPLACED, ())}
    earlier = (EarlierRows(TableReceipt.from_dict(table), file_label(key)) for key, table in tables)
    return tuple(rows for rows in earlier if rows.receipt.files and rows.snapshot not in replaced)


def file_label(run_key: str) -> str:
    """Return the first part of the names of a run's data files."""
    return keys.pruned_digest(run_key)
