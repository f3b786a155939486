"""The state of a unit of work in one process: it survives a resend, not the process."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ports import SealAndSend, Sealed
from airflow_eos.run.planner import Planned


@dataclass(slots=True)
class UnitOfWork:
    """The state of one run.

    :param key: the run key; a reprocessing has its own.
    :param recorded: the run to be done again, if any.
    :param earlier: all records of the run to be done again: its rounds, and its reprocessings.
    :param intent: the INTENT that this process has pinned, if the sink is a table.
    :param published: whether the run's rows are in the table, as far as this process knows.
    :param attempts: epochs whose transaction failed, or whose plan no longer held.
    :param ended_older: epochs spent on transactions that earlier attempts left open.
    :param verification: the brokers' partition verification; None if unknown.
    """

    key: str
    transactional_id: str
    recorded: RunRecord | None = None
    earlier: tuple[RunRecord, ...] = ()
    planned: Planned | None = None
    sealed: Sealed | None = None
    intent: Intent | None = None
    published: bool = False
    attempts: int = 0
    ended_older: int = 0
    last_failure: BaseException | None = None
    verification: bool | None = None

    def count(self, failure: BaseException) -> None:
        """Count an attempt that failed."""
        self.attempts += 1
        self.last_failure = failure

    def release(self, data: SealAndSend) -> None:
        """Free the sealed batches."""
        if self.sealed is not None:
            sealed, self.sealed = self.sealed, None
            data.release(sealed)

    def forget(self, data: SealAndSend) -> None:
        """Drop the plan, its sealed batches and its INTENT."""
        self.release(data)
        self.planned = self.intent = None
