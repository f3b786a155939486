"""Waits for what comes a little later: brokers, tasks and logs tell of a thing after it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    look: Callable[[], T], holds: Callable[[T], object], *, seconds: float = 60, pause: float = 0.1
) -> T:
    """Look until it holds; return what was seen."""
    deadline = time.monotonic() + seconds
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still {found!r}"
        time.sleep(pause)
    return found


def wait_until(look: Callable[[], T], seconds: float = 60) -> T:
    """Look until something is there; return it."""
    return eventually(look, bool, seconds=seconds, pause=0.02)
