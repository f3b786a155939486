"""A set of offsets, as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Spans:
    """A set of offsets as sorted, disjoint ranges; adjacent ranges are joined."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``[start, end)`` that are in the set."""
        parts = []
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            parts.append((max(start, self._starts[at]), min(end, self._ends[at])))
        return parts

    def outside(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``[start, end)`` that are not in the set."""
        parts, at = [], start
        for inner, after in self.within(start, end):
            if at < inner:
                parts.append((at, inner))
            at = after
        return [*parts, (at, end)] if at < end else parts

    def add(self, start: int, end: int) -> None:
        """Add a range."""
        if start >= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
