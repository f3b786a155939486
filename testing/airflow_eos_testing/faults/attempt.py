"""The test's handle of one attempt at a run in a driver process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.exceptions import DriverDied, EmbeddedDriverError
from airflow_eos_testing.faults.points import point_names

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.run.states import State


class Attempt:
    """Follow an attempt, release it at its points, take its result.

    :param points: names of the points at which it stops.
    :param release: tells the process to go on; with True, past all further points.
    :param log_tail: returns the end of the process's log, for errors.
    """

    def __init__(
        self, points: tuple[str, ...], release: Callable[[bool], None], log_tail: Callable[[], str]
    ) -> None:
        self._points = points
        self._release = release
        self._log_tail = log_tail
        self._changed = threading.Condition()
        self._held: str | None = None
        self._trace: list[tuple[str, float]] = []
        self._record: RunRecord | None = None
        self._error: BaseException | None = None

    @property
    def trace(self) -> list[tuple[str, float]]:
        """Points reached so far, with the monotonic time at which the test was notified."""
        with self._changed:
            return list(self._trace)

    @property
    def is_over(self) -> bool:
        """Whether it has a result or an error, or its process is gone."""
        return self._record is not None or self._error is not None

    def wait_for(self, point: State | str, timeout: float = 120.0) -> None:
        """Wait until the run is held at a point it was told to stop at.

        :raises EmbeddedDriverError: it ended without reaching the point, or did not reach it in time.
        """
        (name,) = point_names(point)
        if name not in self._points:
            raise EmbeddedDriverError(f"The run was not told to stop at {name}; it stops at {self._points}")
        with self._changed:
            self._changed.wait_for(lambda: self._held == name or self.is_over, timeout)
            if self._held == name and not self.is_over:
                return
            how = (
                f"after {timeout:.0f} s" if not self.is_over else f"it ended: {self._error or self._record!r}"
            )
            reached = [point for point, _ in self._trace]
        raise EmbeddedDriverError(
            f"The run is not held at {name}: {how}; reached {reached}\n{self._log_tail()}"
        )

    def release(self, *, for_good: bool = False) -> None:
        """Let a held run go on to its next point.

        :param for_good: stop at no further point either.
        """
        with self._changed:
            self._held = None
        self._release(for_good)

    def result(self, timeout: float = 180.0) -> RunRecord:
        """Wait for the end and return the record.

        :raises DriverDied: the process was killed before.
        :raises EmbeddedDriverError: it still runs.
        :raises Exception: the run's own error, with its type.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over, timeout)
            if self._record is not None:
                return self._record
            if self._error is not None:
                raise self._error
            held = f", held at {self._held}" if self._held else ""
        raise EmbeddedDriverError(f"The run has not ended after {timeout:.0f} s{held}\n{self._log_tail()}")

    def take(self, message: tuple[Any, ...]) -> None:
        """Process a message from the driver process."""
        kind, content = message
        with self._changed:
            if kind in ("reached", "held"):
                self._trace.append((content, time.monotonic()))
            if kind == "held":
                self._held = content
            elif kind == "record":
                self._record = content
            elif kind == "error":
                self._error = content
            self._changed.notify_all()

    def lost(self) -> None:
        """Record that the process is gone."""
        with self._changed:
            if not self.is_over:
                reached = [point for point, _ in self._trace]
                self._error = DriverDied(f"The driver process died; its run had reached {reached}")
            self._changed.notify_all()
