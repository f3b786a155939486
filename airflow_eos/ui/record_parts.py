"""Parts of run records for the pages; values of an unexpected type are left out or shown as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.run.work import recorded_interval
from airflow_eos.ui.lag_history import Lag
from airflow_eos.ui.moments import seconds_of
from airflow_eos.ui.viewer import Viewer


def run_row(record: RunRecord, lag: Lag) -> dict[str, Any]:
    """Return a run as a row of a table."""
    seconds = seconds_of(record)
    return {
        "pipeline": record.pipeline,
        "run_key": record.run_key,
        "run_id": record.run_id,
        "dag_id": record.dag_id,
        "mode": record.mode,
        "interval": recorded_interval(record),
        "committed": record.staged_at,
        "seconds": seconds,
        "records_per_second": round(record.records_read / seconds, 1)
        if seconds and record.records_read >= 0
        else None,
        "lag_offsets": lag.offsets,
        "lag_seconds": lag.seconds,
        "offsets": sum(range_.span for range_ in record.ranges),
        "partitions": sum(range_.span > 0 for range_ in record.ranges),
        "records_read": record.records_read,
        "records_late": record.records_late,
        "records_written": record.records_written,
        "producer_epoch": record.producer.producer_epoch,
    }


def task_of_record(record: RunRecord) -> dict[str, Any]:
    """Return the key of the record's task instance; drops unexpected values of other programs."""
    index = record.of_task("map_index")
    return {
        "dag_id": record.dag_id,
        "task_id": str(record.of_task("task_id") or ""),
        "run_id": str(record.of_task("run_id") or ""),
        "map_index": index if type(index) is int else -1,
    }


def task_key(record: RunRecord) -> tuple[str, str, int]:
    """Return Dag id, task id and map index of the record's task."""
    task = task_of_record(record)
    return task["dag_id"], task["task_id"], task["map_index"]


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


def flat(value: Mapping[str, Any]) -> dict[str, str]:
    """Return names and values as texts; flattens mappings."""
    flattened: dict[str, str] = {}
    for name, part in value.items():
        if isinstance(part, Mapping):
            flattened |= {f"{name}, {inner}": text for inner, text in flat(part).items()}
        else:
            flattened[str(name)] = str(part)
    return flattened
