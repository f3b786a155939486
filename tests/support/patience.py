"""Polling for conditions: brokers, tasks and logs report an event some time after it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    look: Callable[[], T], holds: Callable[[T], object], *, seconds: float = 60, pause: float = 0.1
) -> T:
    """Poll ``look`` until its value satisfies ``holds``; return the value."""
    deadline = time.monotonic() + seconds
    while not holds(value := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still {value!r}"
        time.sleep(pause)
    return value


def wait_until(look: Callable[[], T], seconds: float = 60) -> T:
    """Poll ``look`` until its value is truthy; return the value."""
    return eventually(look, bool, seconds=seconds, pause=0.02)
