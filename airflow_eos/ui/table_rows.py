"""The tables of pipelines, from the ledger without the catalogs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.ui.viewer import Viewer


def table_of(records: Iterable[RunRecord]) -> dict[str, Any] | None:
    """Return a pipeline's table with the last snapshot; None if no run wrote to one.

    :param records: of the pipeline, the newest last.
    """
    rows = [row for record in records if (row := table_row(record)) is not None]
    return rows[-1] if rows else None


def table_row(record: RunRecord) -> dict[str, Any] | None:
    """Return the rows that a run put into a table; None if none."""
    table = record.details.get(TABLE)
    if table is None:
        return None
    named = {name: table.get(name) for name in ("sink", "snapshot", "files", "rows")}
    return {**named, "run_id": record.run_id, "run_key": record.run_key}


def intent_rows(intents: Iterable[Intent], viewer: Viewer, pipeline: str) -> list[dict[str, Any]]:
    """Return the open INTENTs of a pipeline whose Dag a user may see."""
    return [
        {"run_id": intent.record.run_id, "table": intent.sink, "since": intent.record.staged_at}
        for intent in intents
        if intent.record.pipeline == pipeline and viewer.may_see(intent.record)
    ]
