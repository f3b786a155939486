"""Ends the failed transaction of an attempt and decides how the attempt goes on.

A failure proves nothing about the outcome. The attempt sends EndTxn(abort) under its own identity; the answer
shows whether the identity is still its own (law 2), and the ledger shows what was committed.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    EosError,
    OutcomeUnknown,
    PlanError,
    ProcessFailed,
    RecordRefused,
    RunFailed,
    RunFenced,
    SealedBlockLost,
    SessionLost,
)
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster, ProducerSession, SealAndSend, Transactions
from airflow_eos.run import laws
from airflow_eos.run.kill import Kill
from airflow_eos.run.states import State, Trace
from airflow_eos.run.unit_of_work import UnitOfWork

log = logging.getLogger(__name__)

MAX_ENDED_OLDER = 4
"""Maximum number of epochs to spend on ending transactions that earlier attempts left open.

A commit and an abort may each have left one open in two places (topics, ledger and offsets)."""

# An attempt that failed for one of these would fail again under a new epoch.
_NOT_WORTH_RESENDING = (AuthorizationFailed, ConfigurationError, PlanError, ProcessFailed, RecordRefused)


@dataclass(frozen=True, slots=True)
class Endings:
    """Ends failed attempts. Each method returns the run's record, or None: try again under a new epoch.

    :param data: holds the sealed batches.
    :param answer: looks the work up in the ledger without a fence; returns a record that readers see.
    """

    spec: RunSpec
    transactions: Transactions
    data: SealAndSend
    trace: Trace
    kill: Kill
    answer: Callable[[UnitOfWork], RunRecord | None]

    def aborted(self, work: UnitOfWork, session: ProducerSession, failure: Exception) -> RunRecord | None:
        """Abort a transaction that failed before its commit.

        :raises RunFailed: after the last attempt.
        :raises OutcomeUnknown: the coordinator did not answer.
        """
        self.trace.enter(State.ABORTED)
        log.warning(
            "%s: attempt %d failed: %s; aborting its transaction", work.key, work.attempts + 1, failure
        )
        answer = self._end(session, failure)
        if not laws.may_take_epoch(answer):
            return self.superseded(work, failure)
        work.count(failure)
        if isinstance(failure, SealedBlockLost):
            work.release(self.data)  # free what is left; the same ranges are sealed again
        if isinstance(failure, _NOT_WORTH_RESENDING):
            raise failure
        ends = isinstance(failure, SessionLost) or work.attempts >= self.spec.max_send_attempts
        if ends or self.kill.requested:
            raise failed(work)
        return None

    def unknown(self, work: UnitOfWork, session: ProducerSession, failure: Exception) -> RunRecord | None:
        """Determine the outcome of a commit that was not answered.

        :raises OutcomeUnknown: the run was killed, or the coordinator did not answer.
        """
        self.trace.enter(State.UNKNOWN)
        log.warning("%s: the commit was not answered (%s); determining its outcome", work.key, failure)
        answer = self._end(session, failure)
        if not laws.may_take_epoch(answer):
            return self.superseded(work, failure)
        work.count(failure)
        if self.kill.requested:
            raise OutcomeUnknown(
                f"{work.key} was killed while it committed; a retry asks the ledger"
            ) from failure
        return None

    def superseded(self, work: UnitOfWork, failure: Exception) -> RunRecord:
        """Look the work up once, without taking another epoch; raises RunFenced if there is no record."""
        record = self.answer(work)
        if record is not None:
            return record
        raise RunFenced(
            f"{work.key}: transactional id {work.transactional_id} was taken by a newer attempt, timed out, "
            "or was forgotten by the brokers (transactional.id.expiration.ms shorter than the run: "
            "`airflow eos doctor` tells), and the ledger does not hold the run; a retry asks again. "
            f"First error: {failure}"
        ) from failure

    def overtaken(self, work: UnitOfWork, session: ProducerSession, refusal: Exception) -> RunRecord | None:
        """Drop a plan that no longer holds; the next epoch settles its INTENT, if any, and plans again."""
        log.info("%s: the plan no longer holds (%s); planning again", work.key, refusal)
        work.forget(self.data)
        work.count(refusal)
        return self.used_up(work, session)

    def used_up(self, work: UnitOfWork, session: ProducerSession) -> RunRecord | None:
        """Prove that a used-up epoch is still ours, after a small transaction or none (law 2)."""
        session.close()
        if laws.may_take_epoch(self.transactions.abort(session.identity)):
            return None
        return self.superseded(work, RunFenced(f"{work.key}: a newer attempt has taken the epoch"))

    def ended_older(
        self, work: UnitOfWork, session: ProducerSession, answer: EndTxnAnswer
    ) -> RunRecord | None:
        """Count an epoch that was used up to end a transaction of an earlier attempt.

        :raises RunFenced: a newer attempt exists.
        :raises OutcomeUnknown: the transaction stays open.
        """
        session.close()
        if not laws.may_take_epoch(answer):
            raise RunFenced(
                f"{work.key}: transactional id {work.transactional_id} was taken by a newer attempt; "
                "a retry asks again"
            )
        work.ended_older += 1
        if work.ended_older > MAX_ENDED_OLDER:
            raise OutcomeUnknown(
                f"{work.key}: an earlier transaction of {work.transactional_id} stays open although its "
                f"markers were written {MAX_ENDED_OLDER} times; see `airflow eos repair`"
            )
        return None

    def abort_quietly(self, producer: ProducerIdentity) -> None:
        """Abort after an error that matters more; if this fails, the transaction's time-out aborts it."""
        try:
            self.transactions.abort(producer)
        except Exception as failure:  # noqa: BLE001 - see above
            log.warning("%s could not be aborted: %s", producer.transactional_id, failure)

    def _end(self, session: ProducerSession, failure: Exception) -> EndTxnAnswer:
        session.close()
        _clear_frames(failure)
        try:
            return self.transactions.abort(session.identity)
        except Exception as unreachable:  # noqa: BLE001 - the outcome is unknown
            raise OutcomeUnknown(
                f"{session.identity.transactional_id}: {failure}; the coordinator could not be asked "
                f"to abort ({unreachable}). A retry will fence this attempt and ask the ledger"
            ) from failure


def failed(work: UnitOfWork) -> EosError:
    """Return the error of a run that has no attempt left."""
    visible = (
        "its rows are in the table, and a retry commits its record and offsets"
        if work.published
        else "nothing of it is visible"
    )
    error = RunFailed(
        f"{work.key} was aborted after {work.attempts} attempt(s); {visible}. Last error: {work.last_failure}"
    )
    error.__cause__ = work.last_failure
    return error


def is_ours(cluster: Cluster, producer: ProducerIdentity) -> bool:
    """Return whether the coordinator accepts an identity; True if it does not answer."""
    try:
        seen = cluster.describe_transaction(producer.transactional_id)
    except Exception as failure:  # noqa: BLE001 - the error that made us ask matters more
        log.warning("%s could not be described: %s", producer.transactional_id, failure)
        return True
    current = (producer.producer_id, producer.producer_epoch)
    return seen is None or (seen.producer_id, seen.producer_epoch) == current


def _clear_frames(failure: BaseException) -> None:
    """Clear the frames of a failure and of its causes; its line numbers stay.

    The failure outlives its attempt. Its frames would keep the failed producer alive, unpolled, while its
    events fill the memory.
    """
    chain: list[BaseException | None] = [failure]
    seen: set[int] = set()
    while chain:
        error = chain.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        chain += [error.__cause__, error.__context__]
