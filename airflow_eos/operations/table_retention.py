"""The doctor's checks of what maintenance may remove from a table, and what runs need of that."""

from __future__ import annotations

import datetime as dt
import re

from airflow_eos.operations.checks import Check
from airflow_eos.wording import span_text

SHORT = dt.timedelta(days=1)
"""Within it a task is usually retried, and a failed one cleared."""
_MOST_SECONDS = 86_399_999_999_999
"""What a ``timedelta`` holds: 9223372036854775807 ms, the largest number of Java, means for ever."""
_PART = re.compile(r"(\d+)\s*(week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?\b")
_SECONDS = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}


def retention_check(subject: str, kept: str, span: dt.timedelta | None, source: str, need: str) -> Check:
    """Check that maintenance keeps something for longer than retries reach.

    :param kept: what it keeps, in words.
    :param span: None: a value that cannot be read.
    :param source: property, or recorded command, that says so.
    :param need: what runs lose where it is removed too early.
    """
    if span is None:
        return Check(subject, "unknown", f"{source} is not a span of time")
    finding = f"{kept} are kept for {span_text(span)} ({source})"
    if span >= SHORT:
        return Check(subject, "ok", finding)
    return Check(subject, "warn", finding, f"raise it to more than {span_text(SHORT)}: {need}")


def interval(text: str) -> dt.timedelta | None:
    """Return a span as Delta Lake's properties have it, as ``interval 1 day``; None if it is not one."""
    parts = _PART.findall(text.lower())
    if not parts or _PART.sub("", text.lower().removeprefix("interval")).strip():
        return None
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    return dt.timedelta(seconds=min(seconds, _MOST_SECONDS))


def milliseconds(text: str) -> dt.timedelta | None:
    """Return a span as Iceberg's properties have it: a number of ms; None if it is not one."""
    return dt.timedelta(milliseconds=min(int(text), 1000 * _MOST_SECONDS)) if text.isdecimal() else None
