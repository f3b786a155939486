"""The states of a run and the legal steps between them."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """States in the order of a run that meets no obstacle; each is entered when what it says is true."""

    ASKED = "ASKED"
    """The authority is asked before anything is touched; a yes is final."""
    FENCED = "FENCED"
    """A new producer instance took the epoch: older attempts are fenced, their transaction is aborted."""
    CHECKED = "CHECKED"
    """The authority is asked again: only after the fence may a no be believed."""
    PLANNED = "PLANNED"
    """The offset ranges are pinned and the plan's conditions are checked."""
    SEALED = "SEALED"
    """Output is encoded into batches and materialised on the executors; nothing is written to Kafka."""
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
    """The commit's answer is missing: ended like an abort, then the authority says which it was."""


LEGAL_STEPS: dict[State, frozenset[State]] = {
    State.ASKED: frozenset({State.FENCED}),
    State.FENCED: frozenset({State.CHECKED, State.FENCED}),
    State.CHECKED: frozenset({State.PLANNED, State.FENCED}),
    State.PLANNED: frozenset({State.SEALED, State.OPEN, State.FENCED, State.ABORTED}),
    State.SEALED: frozenset({State.OPEN, State.FENCED, State.ABORTED}),
    State.OPEN: frozenset({State.WRITTEN, State.ABORTED}),
    State.WRITTEN: frozenset({State.STAGED, State.ABORTED}),
    State.STAGED: frozenset({State.PROVEN, State.ABORTED}),
    State.PROVEN: frozenset({State.COMMITTED, State.UNKNOWN, State.ABORTED}),
    State.ABORTED: frozenset({State.FENCED}),
    State.UNKNOWN: frozenset({State.FENCED}),
    State.COMMITTED: frozenset(),
}
"""Where a run may go.

PLANNED to OPEN is a resend of sealed batches, or a run with nothing to read. CHECKED to FENCED is a run found
committed by another, to be reprocessed under an id of its own. FENCED, PLANNED and SEALED to FENCED: what an
earlier transaction left open was ended, which uses up an epoch.
"""
