"""Waits for what comes a little later: a task tells of itself after its state is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], holds: Callable[[T], object], *, seconds: float = 60) -> T:
    """Look until it holds; return what was seen."""
    deadline = time.monotonic() + seconds
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still {found!r}"
        time.sleep(0.1)
    return found
