"""The doctor's checks that table maintenance does not remove what runs still need."""

from __future__ import annotations

import datetime as dt
import re

from airflow_eos.operations.checks import Check
from airflow_eos.wording import span_text

SHORT = dt.timedelta(days=1)
"""Time within which a task is usually retried, or cleared after a failure."""
_MOST_SECONDS = 86_399_999_999_999
"""The most that a ``timedelta`` holds: 9223372036854775807 ms, Java's largest long, means forever."""
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

    :param kept: what maintenance keeps, for messages.
    :param span: None for an unreadable value.
    :param source: the property, or recorded command, that sets the span.
    :param need: what runs lose if it is removed too early.
    """
    if span is None:
        return Check(subject, "unknown", f"{source} is not a span of time")
    finding = f"{kept} are kept for {span_text(span)} ({source})"
    if span >= SHORT:
        return Check(subject, "ok", finding)
    return Check(subject, "warn", finding, f"raise it to more than {span_text(SHORT)}: {need}")


def interval(text: str) -> dt.timedelta | None:
    """Parse a span of time in a Delta Lake property, such as ``interval 1 day``; None if it is not one."""
    parts = _PART.findall(text.lower())
    if not parts or _PART.sub("", text.lower().removeprefix("interval")).strip():
        return None
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    return dt.timedelta(seconds=min(seconds, _MOST_SECONDS))


def milliseconds(text: str) -> dt.timedelta | None:
    """Parse a span of time in an Iceberg property, a number of ms; None if it is not one."""
    return dt.timedelta(milliseconds=min(int(text), 1000 * _MOST_SECONDS)) if text.isdecimal() else None
