"""Refuses to reprocess a run whose earlier rows are not in the table as they were written."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.exceptions import TableRewritten
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.table import TableReceipt


def rewritten(sink: SinkTable, finding: str, first: str = "delete") -> TableRewritten:
    """Return the error with its advice.

    :param finding: the difference from the rows as they were written.
    :param first: what the user must do before appending the rows again.
    """
    return TableRewritten(
        f"{sink}: {finding}. Nothing was replaced; {first} the run's rows yourself and use "
        f"{type(sink).__name__}(reprocess='append')"
    )


def refuse_other_files(
    sink: SinkTable, receipt: TableReceipt, rows: Sequence[int], commit: str, rewriter: str
) -> None:
    """Compare the live data files of a commit with its receipt.

    :param rows: number of rows of each live data file that the commit added.
    :param commit: the term for a commit in this kind of table.
    :param rewriter: the operation that replaces data files, besides deletes and updates.
    :raises TableRewritten: the files or their rows are not those of the receipt.
    """
    if (len(rows), sum(rows)) != (receipt.files, receipt.rows):
        raise rewritten(
            sink,
            f"of the {receipt.files} data files ({receipt.rows} rows) that {commit} {receipt.snapshot} "
            f"added, {len(rows)} ({sum(rows)} rows) are in the table as they were: {rewriter}, or a delete "
            "or update of rows, has rewritten the others",
        )
