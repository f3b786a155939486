"""The epochs around a run, in words: who held its transactional id, and who fenced whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_eos.ui.ladder import Ladder, has_another_producer_id, is_fenced
from airflow_eos.wording import counted

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run import RunRecord

_ENDED = {
    "committed": "committed",
    "aborted": "aborted by this run itself, which took the next epoch",
    "not answered": "its commit was not answered; not committed",
    "spent": "spent on ending what an earlier attempt had left open",
}


def rungs_of(record: RunRecord, ladder: Ladder, may_see: Callable[[RunRecord], bool]) -> list[dict[str, Any]]:
    """Return the epochs around a run, the lowest first; a run that may not be seen has no name."""
    producer, before, after = record.producer, ladder.before, ladder.after
    found = []

    def rung(whose: str, producer_id: int, epoch: str, said: str, run: RunRecord | None = None) -> None:
        seen = run if run is not None and may_see(run) else None
        found.append(
            {
                "whose": whose,
                "producer_id": producer_id,
                "epoch": epoch,
                "said": said,
                "run_key": seen.run_key if seen is not None else "",
                "run_id": seen.run_id if seen is not None else "",
            }
        )

    if before is not None:
        its = before.producer
        said = _beside(before, record, "; fenced by this run", "; the id has another producer id since")
        rung("run before", its.producer_id, str(its.producer_epoch), f"committed{said}", before)
    if ladder.unrecorded:
        number = ladder.unrecorded
        said = (
            f"{counted(number, 'epoch')} that no run record names: taken by "
            "attempts that committed nothing, or spent on ending what one had left open; fenced by this run"
        )
        rung("no record", producer.producer_id, f"below {producer.producer_epoch}", said)
    for number, ended in enumerate(ladder.attempts, 1):
        last = number == len(ladder.attempts)
        epoch = str(producer.producer_epoch) if last else f"below {producer.producer_epoch}"
        fenced = "; fenced by the next run" if last and after is not None and is_fenced(record, after) else ""
        part = f", epoch {number} of {len(ladder.attempts)}" if len(ladder.attempts) > 1 else ""
        rung(f"this run{part}", producer.producer_id, epoch, f"{_ENDED[ended]}{fenced}")
    if after is not None:
        its = after.producer
        said = _beside(record, after, "; it fenced this run", "; the id has another producer id since")
        rung("next run", its.producer_id, str(its.producer_epoch), f"committed{said}", after)
    return found


def _beside(one: RunRecord, other: RunRecord, fenced: str, renamed: str) -> str:
    """Return what the epochs of two runs prove of the first one; nothing, perhaps."""
    if is_fenced(one, other):
        return fenced
    return renamed if has_another_producer_id(one, other) else ""
