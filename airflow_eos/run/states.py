"""The states of a run, the legal steps between them, and the trace of when each was entered."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass


class State(str, enum.Enum):
    """The states of a run, in the order without failures; each is entered once its description is true."""

    ASKED = "ASKED"
    """The ledger was asked before anything was changed; *committed* is final."""
    FENCED = "FENCED"
    """A new producer instance took the epoch: older attempts are fenced, their transaction is aborted."""
    CHECKED = "CHECKED"
    """The ledger was asked again: only after the fence may *not committed* be believed."""
    PLANNED = "PLANNED"
    """The offset ranges are pinned and the plan's conditions are checked."""
    SEALED = "SEALED"
    """Output is encoded into batches and materialised on the executors; nothing is written to Kafka.

    Of a table: its data files are written, and no reader sees them."""
    INTENT = "INTENT"
    """The ledger says what is about to be published in a table: a small transaction of its own."""
    PUBLISHED = "PUBLISHED"
    """The table has the rows; the ledger does not have the run yet."""
    OPEN = "OPEN"
    """The transaction is open and holds every target partition."""
    WRITTEN = "WRITTEN"
    """All executors have sent their batches and returned receipts."""
    STAGED = "STAGED"
    """Consumed offsets, the cursor and the run record are in the transaction."""
    PROVEN = "PROVEN"
    """The broker's own view confirms what the receipts claim."""
    COMMITTED = "COMMITTED"
    """The transaction is committed, and every leader shows it."""
    ABORTED = "ABORTED"
    """Our own transaction was ended by EndTxn(abort) with our own identity."""
    UNKNOWN = "UNKNOWN"
    """The commit was not answered: the transaction is ended as by an abort, the ledger has the outcome."""


HOLDS_OPEN: frozenset[State] = frozenset({State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN})
"""The transaction is open from the moment such a state is entered until the next one is."""

# A killed run enters these, too: they report the ledger's answer, or how an attempt ended.
_ENTERED_WHEN_KILLED = frozenset({State.ASKED, State.COMMITTED, State.ABORTED, State.UNKNOWN})

IN_WORDS: dict[State, str] = {
    State.ASKED: "the ledger is asked whether the run is committed",
    State.FENCED: "no older attempt can write any more",
    State.CHECKED: "the ledger was asked again, now that nobody else can commit the run",
    State.PLANNED: "what to read is fixed",
    State.SEALED: "Spark has read and transformed it; nothing is written to Kafka yet",
    State.INTENT: "the ledger says what is about to be published in the table",
    State.PUBLISHED: "the table has the output; offsets and run record follow",
    State.OPEN: "the transaction is open",
    State.WRITTEN: "the output is in the transaction",
    State.STAGED: "offsets and run record are in the transaction",
    State.PROVEN: "the brokers confirm what was written",
    State.COMMITTED: "readers see the output",
    State.ABORTED: "the transaction was aborted, readers see none of it",
    State.UNKNOWN: "the commit was not answered; the ledger will show the outcome",
}
"""Descriptions of the states, for the task log and the page."""

LEGAL_STEPS: dict[State, frozenset[State]] = {
    State.ASKED: frozenset({State.FENCED}),
    State.FENCED: frozenset({State.CHECKED, State.FENCED}),
    State.CHECKED: frozenset({State.PLANNED, State.PUBLISHED, State.FENCED, State.ABORTED}),
    State.PLANNED: frozenset(
        {State.SEALED, State.INTENT, State.PUBLISHED, State.OPEN, State.FENCED, State.ABORTED}
    ),
    State.SEALED: frozenset({State.INTENT, State.OPEN, State.FENCED, State.ABORTED}),
    State.INTENT: frozenset({State.FENCED}),
    State.PUBLISHED: frozenset({State.OPEN, State.ABORTED}),
    State.OPEN: frozenset({State.WRITTEN, State.ABORTED}),
    State.WRITTEN: frozenset({State.STAGED, State.ABORTED}),
    State.STAGED: frozenset({State.PROVEN, State.ABORTED}),
    State.PROVEN: frozenset({State.COMMITTED, State.UNKNOWN, State.ABORTED, State.FENCED}),
    State.ABORTED: frozenset({State.FENCED}),
    State.UNKNOWN: frozenset({State.FENCED}),
    State.COMMITTED: frozenset(),
}
"""The legal next states of each state.

PLANNED to OPEN is a resend of sealed batches, or a run with nothing to read. CHECKED to FENCED is a run found
committed by another, to be reprocessed under an id of its own. FENCED, PLANNED and SEALED to FENCED: what an
earlier transaction left open was ended, which uses up an epoch. So does an INTENT. CHECKED to PUBLISHED: the
table has the output of an earlier attempt, whose record is committed; PROVEN to FENCED, this run then begins
anew. CHECKED to FENCED is also an earlier INTENT that was taken back, PLANNED to FENCED a plan whose records
were deleted before they were read.
"""


log = logging.getLogger(__name__)


@dataclass(eq=False)
class Trace:
    """Records the states of one run and refuses an illegal step.

    :param clock: monotonic seconds.
    :param on_state: called at each state entered.
    :param check: called after it at each state that a killed run must not enter; raises if it was killed.
    :ivar steps: ``(state, seconds since the start)``, in order.
    """

    clock: Callable[[], float]
    on_state: Callable[[State], None] | None = None
    check: Callable[[], None] | None = None
    steps: tuple[tuple[str, float], ...] = ()
    _current: State | None = None

    def __post_init__(self) -> None:
        self._start = self.clock()

    def enter(self, state: State) -> None:
        """Enter a state.

        :raises RunFailed: the run was killed.
        """
        if self._current is not None and state not in LEGAL_STEPS[self._current]:
            raise AssertionError(f"illegal step from {self._current.value} to {state.value}")
        elapsed = round(self.clock() - self._start, 3)
        self._current = state
        self.steps = (*self.steps, (state.value, elapsed))
        log.info("state %s after %.3f s: %s", state.value, elapsed, IN_WORDS[state])
        if self.on_state is not None:
            self.on_state(state)
        if self.check is not None and state not in _ENTERED_WHEN_KILLED:
            self.check()
