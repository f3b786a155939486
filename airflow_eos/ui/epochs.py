"""The producer epochs around a run: of the run before it, of its own attempts, of the run after it.

The only source is run records: an attempt of another process that committed nothing has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.run.states import State

_COMMITTED = "committed"
_ABORTED = "aborted by this run itself, which took the next epoch"
_NOT_ANSWERED = "its commit was not answered; not committed"
_SPENT = "spent on ending what an earlier attempt had left open"
_ENDS = {State.ABORTED.value: _ABORTED, State.UNKNOWN.value: _NOT_ANSWERED}


def epoch_rows(
    record: RunRecord, runs: Sequence[RunRecord], may_see: Callable[[RunRecord], bool]
) -> list[dict[str, Any]]:
    """Return a row for each known epoch of a run's transactional id, the lowest first.

    :param runs: runs of its pipeline, in commit order.
    :param may_see: runs that the user may not see are shown without a name.
    """
    before, after = _neighbours(record, runs)
    rows = []
    if before is not None:
        effect = _effect(before, record, "; fenced by this run")
        rows.append(_row("run before", before, f"{_COMMITTED}{effect}", shown=may_see(before)))
    ends = attempt_ends(record)
    for number, end in enumerate(ends, 1):
        last = number == len(ends)
        fenced = last and after is not None and is_fenced(record, after)
        part = f", epoch {number} of {len(ends)}" if len(ends) > 1 else ""
        row = _row(f"this run{part}", record, f"{end}{'; fenced by the next run' if fenced else ''}")
        # The record has only the epoch of the attempt that committed.
        rows.append(row if last else {**row, "epoch": f"below {row['epoch']}"})
    if after is not None:
        effect = _effect(record, after, "; it fenced this run")
        rows.append(_row("next run", after, f"{_COMMITTED}{effect}", shown=may_see(after)))
    return rows


def is_fenced(run: RunRecord, successor: RunRecord) -> bool:
    """Return whether a run's epoch is fenced, because its successor took a higher one."""
    old, new = run.producer, successor.producer
    same = (old.transactional_id, old.producer_id) == (new.transactional_id, new.producer_id)
    return same and old.producer_epoch < new.producer_epoch


def attempt_ends(record: RunRecord) -> tuple[str, ...]:
    """Return how each epoch ended that the run's own process took; the committed one is the last."""
    ends: list[str] = []
    previous = ""
    for state, _ in record.trace:
        if state == State.FENCED.value and previous == State.CHECKED.value:
            ends.clear()  # it was already committed, and is reprocessed under another transactional id
        elif state == State.FENCED.value and previous not in ("", State.ASKED.value):
            ends.append(_ENDS.get(previous, _SPENT))
        previous = state
    return (*ends, _COMMITTED)


def _neighbours(record: RunRecord, runs: Sequence[RunRecord]) -> tuple[RunRecord | None, RunRecord | None]:
    """Return the runs with the same transactional id before and after; None for an unknown run."""
    name = record.producer.transactional_id
    same = [run for run in runs if run.producer.transactional_id == name]
    at = next((number for number, run in enumerate(same) if run.run_key == record.run_key), None)
    if at is None:
        return None, None
    return (same[at - 1] if at else None), (same[at + 1] if at + 1 < len(same) else None)


def _effect(run: RunRecord, following: RunRecord, fenced: str) -> str:
    """Return the text that follows from the epochs of two consecutive runs; empty if there is none."""
    if is_fenced(run, following):
        return fenced
    renamed = run.producer.producer_id != following.producer.producer_id
    return "; the id has another producer id since" if renamed else ""


def _row(whose: str, run: RunRecord, outcome: str, *, shown: bool = False) -> dict[str, Any]:
    return {
        "whose": whose,
        "producer_id": run.producer.producer_id,
        "epoch": str(run.producer.producer_epoch),
        "outcome": outcome,
        "run_key": run.run_key if shown else "",
        "run_id": run.run_id if shown else "",
    }
