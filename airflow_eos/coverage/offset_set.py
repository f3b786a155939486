"""A set of offsets, or of moments, as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

At = TypeVar("At", int, str)


class Spans(Generic[At]):
    """A set of offsets, or of texts of moments, as sorted, disjoint ranges; adjacent ranges are joined."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[At] = []
        self._ends: list[At] = []

    def __iter__(self) -> Iterator[tuple[At, At]]:
        return zip(self._starts, self._ends, strict=True)

    def within(self, start: At, end: At) -> list[tuple[At, At]]:
        """Return the parts of ``[start, end)`` that are in the set."""
        parts = []
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            parts.append((max(start, self._starts[at]), min(end, self._ends[at])))
        return parts

    def outside(self, start: At, end: At) -> list[tuple[At, At]]:
        """Return the parts of ``[start, end)`` that are not in the set."""
        parts: list[tuple[At, At]] = []
        at = start
        for inner, after in self.within(start, end):
            if at < inner:
                parts.append((at, inner))
            at = after
        if at < end:
            parts.append((at, end))
        return parts

    def add(self, start: At, end: At) -> None:
        """Add a range."""
        if start >= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
