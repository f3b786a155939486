"""Rows of tables, and names, that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.cli.outcome import Row, WrongUsage
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.run.work import recorded_interval

if TYPE_CHECKING:
    from airflow_eos.operations.queries import LedgerRecord


def runs_named(text: str) -> list[tuple[str, str]]:
    """Return pipeline and run id of an option's run; a slash in either is ``%2F``, as in run keys.

    The others are what it may mean if a slash in the pipeline's name is not quoted.

    :raises WrongUsage: the text names no run.
    """
    first, *others = keys.named_runs(text)
    if not all(first):
        raise WrongUsage(f"--run {text!r} must be PIPELINE/RUN_ID, for example demo/2026-11-21T05")
    return [first, *(name for name in others if all(name))]


def run_row(run: Mapping[str, Any]) -> Row:
    """Return the columns of a run's summary."""
    counts = ("records_read", "records_late", "records_written")
    return {name: run.get(name) for name in ("run_key", "state", "mode", "run_id", "try_number", *counts)}


def record_row(record: LedgerRecord) -> Row:
    """Return the columns of a ledger record of any kind."""
    if keys.is_run_record(record.key):
        try:
            run = RunRecord.from_json(record.value, record.key)
        except LedgerUnreadable as error:
            place = f"partition {record.partition}, offset {record.offset}"
            return {"key": record.key, "at": "", "what": f"unreadable, {place}: {error}"}
        interval = recorded_interval(run)
        of_interval = "" if interval is None else f"[{interval[0]}, {interval[1]}): "
        summary = f"{of_interval}{run.counts} by {run.run_id}, try {run.try_number}"
        return {"key": record.key, "at": run.staged_at, "what": summary}
    return {"key": record.key, "at": "", "what": _short(record.value)}


def _short(value: Any) -> str:
    text = str(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={field}" for name, field in value.items() if name != "v")
    limit = 100
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
