"""Parses and formats moments and time spans."""

from __future__ import annotations

import datetime as dt

from airflow_eos.ledger.keys import utc_moment
from airflow_eos.ledger.records.run_record import RunRecord


def moment(text: str) -> dt.datetime | None:
    """Parse an aware moment; None for any other text, which another program may have written."""
    try:
        parsed = utc_moment(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def is_since(record: RunRecord, begin: dt.datetime) -> bool:
    """Return whether a run was committed at or after a moment."""
    staged = moment(record.staged_at)
    return staged is not None and staged >= begin


def seconds_of(record: RunRecord) -> float | None:
    """Return the duration of a run, from its start to its record; None if unknown."""
    began, ended = moment(record.started_at), moment(record.staged_at)
    return None if began is None or ended is None else round((ended - began).total_seconds(), 3)


def ago(then: dt.datetime | None, now: dt.datetime) -> str:
    """Return the time since a moment: ``3 min ago``; empty if unknown."""
    return "" if then is None else f"{age_text((now - then).total_seconds())} ago"


def age_text(seconds: float) -> str:
    """Return a time span in one unit: ``3 min``."""
    whole = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
