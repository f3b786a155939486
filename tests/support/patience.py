"""Waits for delayed effects: brokers, tasks and logs show a change some time after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    look: Callable[[], T], holds: Callable[[T], object], *, seconds: float = 60, pause: float = 0.1
) -> T:
    """Poll until the condition holds; return the last value."""
    deadline = time.monotonic() + seconds
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still {found!r}"
        time.sleep(pause)
    return found


def wait_until(look: Callable[[], T], seconds: float = 60) -> T:
    """Poll until there is a value; return it."""
    return eventually(look, bool, seconds=seconds, pause=0.02)
