"""Who held a transactional id before a run and after it, as far as run records and epochs prove it.

Taking an epoch fences every lower one of the same producer id. A coordinator gives a higher one to each
producer that initialises the id, and spends another where that ends a transaction which was open; with
transactions of version 2 (KIP-890) the end of each transaction takes one, too. So the usual step from run to
run is learnt from the records around, and only what exceeds it was taken by somebody of whom there is no
record. A new producer id starts at 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.run.states import State

Ended = Literal["committed", "aborted", "not answered", "spent"]
"""How an attempt of a run's own process ended; ``spent``: on ending what an earlier one had left open."""

_NEAR = 10
"""Steps on either side from which the usual one is learnt."""
_ENDS: dict[str, Ended] = {State.ABORTED.value: "aborted", State.UNKNOWN.value: "not answered"}


@dataclass(frozen=True, slots=True)
class Ladder:
    """The epochs around one run.

    :param before: the run that held the id before; None: there is none, or it is not known.
    :param unrecorded: epochs between that and this run, beyond the usual step, that no record names; of a new
        producer id, those from 0 on.
    :param attempts: how those of this run's own process ended, the committed one last. Only that one's epoch
        is in the record.
    :param after: the run that took the id next.
    """

    before: RunRecord | None
    unrecorded: int
    attempts: tuple[Ended, ...]
    after: RunRecord | None


def ladder_of(record: RunRecord, runs: Sequence[RunRecord], *, complete: bool) -> Ladder:
    """Return the epochs around a run.

    :param runs: of its pipeline, in the order of their commits.
    :param complete: there were no runs before these.
    """
    name = record.producer.transactional_id
    same = [one for one in runs if one.producer.transactional_id == name]
    at = next((number for number, one in enumerate(same) if one.run_key == record.run_key), None)
    attempts = _attempts(record)
    if at is None:
        return Ladder(None, 0, attempts, None)
    before = same[at - 1] if at else None
    after = same[at + 1] if at + 1 < len(same) else None
    usual = _usual_step(same[max(0, at - _NEAR) : at + _NEAR + 1])
    epoch, tries = record.producer.producer_epoch, len(attempts)
    if before is not None and is_fenced(before, record):
        unrecorded = 0 if usual is None else epoch - before.producer.producer_epoch - usual * tries
    elif (before is None and complete) or (before is not None and has_another_producer_id(before, record)):
        # The first to take the id is given epoch 0.
        unrecorded = epoch if tries == 1 else 0 if usual is None else epoch - usual * (tries - 1)
    else:
        unrecorded = 0
    return Ladder(before, max(0, unrecorded), attempts, after)


def is_fenced(one: RunRecord, by: RunRecord) -> bool:
    """Return whether nobody can write under a run's epoch any more, since another took a higher one."""
    ours, theirs = one.producer, by.producer
    same = (ours.transactional_id, ours.producer_id) == (theirs.transactional_id, theirs.producer_id)
    return same and ours.producer_epoch < theirs.producer_epoch


def has_another_producer_id(one: RunRecord, other: RunRecord) -> bool:
    """Return whether epochs of two runs cannot be compared."""
    return one.producer.producer_id != other.producer.producer_id


def _usual_step(runs: Sequence[RunRecord]) -> int | None:
    steps = [
        (after.producer.producer_epoch - before.producer.producer_epoch) // len(_attempts(after))
        for before, after in itertools.pairwise(runs)
        if is_fenced(before, after)
    ]
    return max(1, min(steps)) if steps else None


def _attempts(record: RunRecord) -> tuple[Ended, ...]:
    """Return how each epoch ended that the run's own process took under the id, from its states."""
    found: list[Ended] = []
    last = ""
    for state, _ in record.trace:
        if state == State.FENCED.value and last == State.CHECKED.value:
            found.clear()  # found committed, to be reprocessed under an id of its own
        elif state == State.FENCED.value and last not in ("", State.ASKED.value):
            found.append(_ENDS.get(last, "spent"))
        last = state
    return (*found, "committed")
