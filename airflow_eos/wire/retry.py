"""Jittered exponential pauses with a deadline, for every retry of the wire layer."""

from __future__ import annotations

import random
import time

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class Backoff:
    """Pauses that grow from 20 ms to 1 s, each shortened by chance so that many writers do not meet again.

    :param timeout: seconds until :attr:`expired`, from now.
    :param first: longest first pause in seconds.
    :param longest: longest pause in seconds.
    """

    def __init__(self, timeout: float, *, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self._first = first
        self._longest = longest
        self._tries = 0

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def extend(self) -> None:
        """Give the whole time again, from now."""
        self.deadline = time.monotonic() + self.timeout

    def next_pause(self) -> float:
        """Return the next pause in seconds; it never reaches beyond the deadline."""
        pause = pause_after(self._tries, first=self._first, longest=self._longest)
        self._tries += 1
        return min(pause, self.left)


def pause_after(tries: int, *, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> float:
    """Return the pause after ``tries`` failures: 20 ms at first, doubling, half of it left to chance."""
    full = min(longest, first * 2.0 ** min(tries, 30))
    return float(full * random.uniform(0.5, 1.0))
