"""The clock of this machine."""

from __future__ import annotations

import datetime as dt


def utc_now() -> dt.datetime:
    """Return the current time, aware."""
    return dt.datetime.now(dt.timezone.utc)
