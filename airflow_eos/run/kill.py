"""A kill of a run: checked at every state, decided against the commit, within a time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import RunFailed

log = logging.getLogger(__name__)

KILL_SECONDS = 4.5
"""Seconds for all steps of a kill together: Airflow sends SIGKILL 5 s after SIGTERM."""


class KillBudget:
    """The seconds of one kill, shared by its steps.

    :param seconds: for all steps together.
    """

    def __init__(self, seconds: float = KILL_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + seconds

    def left(self, keep: float = 0.0) -> float:
        """Return the seconds that are left, never negative.

        :param keep: seconds that later steps need.
        """
        return max(self._deadline - self._clock() - keep, 0.0)

    def spend(self, *steps: Callable[[float], object]) -> None:
        """Run steps in parallel, each with the seconds that are left; return when these have passed.

        Never raises, and does not wait for a step that hangs: its thread ends with the process.
        """
        wait(
            [in_daemon_thread("airflow-eos-kill", partial(self._quietly, step)) for step in steps],
            self.left(),
        )

    def _quietly(self, step: Callable[[float], object]) -> None:
        try:
            step(self.left())
        except Exception:
            log.warning("a step of the kill failed; an open transaction ends by its time-out", exc_info=True)


class Kill:
    """The request to end a run; shared by its rounds, attempts and Spark jobs.

    Guarantee: once :meth:`ask` has returned, no commit is sent, except one that had taken the turn before.
    The first of kill and commit to take the turn wins. Neither waits for it: a signal handler runs in the
    thread that it interrupts, so nothing here may block on what that thread holds.

    :ivar requested: whether the run should end.
    """

    def __init__(self) -> None:
        self.requested = False
        self._turn = threading.Lock()
        self._kept = False

    def ask(self) -> None:
        """Tell the run to end."""
        self.requested = True
        if self._turn.acquire(blocking=False):
            self._kept = True  # never released: a later commit finds it taken

    def check(self) -> None:
        """Raise RunFailed if the run was killed."""
        if self.requested:
            raise RunFailed("the run was killed; what it had not committed by then is not committed")

    def take_turn(self) -> None:
        """Take the turn right before the commit; :meth:`turn_taken` releases it. RunFailed if killed."""
        if self._turn.acquire(blocking=False) and self.requested:
            self._turn.release()
        self.check()

    @contextmanager
    def turn_taken(self) -> Iterator[None]:
        """Return a context for the commit that releases the turn before the answer is evaluated."""
        try:
            yield
        finally:
            self._turn.release()

    def await_commit(self, timeout: float) -> None:
        """Wait until no commit is in progress; for a kill that the coordinator has not answered.

        :param timeout: seconds. Waiting in the committing thread itself does not help.
        """
        if not self._kept and self._turn.acquire(timeout=max(timeout, 0.0)):
            self._kept = True
