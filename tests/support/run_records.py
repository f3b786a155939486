"""Hand-made run records: fields default to those of a cursor run's first try."""

from __future__ import annotations

from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity


def run_record(**changes: Any) -> RunRecord:
    """Return a committed run of the pipeline ``p`` that read and wrote nothing, with the given changes."""
    fields: dict[str, Any] = {
        "run_key": "run/p/r",
        "pipeline": "p",
        "mode": "cursor",
        "run_id": "r",
        "clear_number": 0,
        "try_number": 1,
        "group_id": "g",
        "ranges": (),
        "records_read_by_partition": {},
        "receipts": (),
        "producer": ProducerIdentity("airflow-eos.cursor.g", 1, 0),
        "started_at": "2026-01-01T00:00:00.000Z",
        "staged_at": "2026-01-01T00:00:01.000Z",
    }
    return RunRecord(**{**fields, **changes})
