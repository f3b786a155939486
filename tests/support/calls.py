"""Counts a function's calls, for tests whose timing would depend on the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def with_calls(function: Callable[[], T]) -> tuple[T, int]:
    """Return the function's result, and the number of Python calls in this thread meanwhile."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return function(), calls
    finally:
        sys.setprofile(before)
