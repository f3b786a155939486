"""The trace: which state was entered when, in the log and in the run record."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_eos.run.states import LEGAL_STEPS, State

log = logging.getLogger(__name__)


class Trace:
    """Records the states of one run and refuses an illegal step.

    :param clock: monotonic seconds.
    :param on_state: called at each state entered.
    """

    def __init__(self, clock: Callable[[], float], on_state: Callable[[State], None] | None = None) -> None:
        self._clock = clock
        self._on_state = on_state
        self._start = clock()
        self._steps: list[tuple[str, float]] = []
        self._current: State | None = None

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """``(state, seconds since the start)``, in order."""
        return tuple(self._steps)

    def enter(self, state: State) -> None:
        """Enter a state."""
        if self._current is not None and state not in LEGAL_STEPS[self._current]:
            raise AssertionError(f"illegal step from {self._current.value} to {state.value}")
        elapsed = round(self._clock() - self._start, 3)
        self._current = state
        self._steps.append((state.value, elapsed))
        log.info("state %s after %.3f s", state.value, elapsed)
        if self._on_state is not None:
            self._on_state(state)
