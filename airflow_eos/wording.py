"""Formats numbers and times for messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``1,204 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(texts: Iterable[str], most: int = 5, between: str = "; ") -> str:
    """Return the first texts as one, and how many more there are."""
    every = list(texts)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return f"{between.join(every[:most])}{more}"


def span_text(span: dt.timedelta) -> str:
    """Return a span of time: ``7 days``, ``1 hour 30 minutes``; from ten days on whole days."""
    if span >= dt.timedelta(days=10):
        span = dt.timedelta(days=span.days)
    left, parts = int(span.total_seconds()), []
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        number, left = divmod(left, size)
        parts.append(counted(number, unit) if number else "")
    largest = next((at for at, part in enumerate(parts) if part), None)
    if largest is None:
        return counted(0, "second")
    return " ".join(part for part in parts[largest : largest + 2] if part)


def moment_of(timestamp: int) -> dt.datetime | None:
    """Return a Kafka timestamp, in ms since 1970, as UTC; None where ``datetime`` cannot hold it."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=timestamp)
    except OverflowError:
        return None


def moment_text(timestamp: int) -> str:
    """Return a Kafka timestamp, in ms since 1970, as UTC; as a number where ``datetime`` cannot hold it."""
    moment = moment_of(timestamp)
    if moment is None:
        return f"{timestamp} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
