"""The run protocol: one attempt at one unit of work, as an explicit state machine.

Guarantee: whatever happens to this process, or to another that attempts the same work at the same time, the output,
the consumed offsets and the run record become visible together, once, or not at all.

The order is what makes it true: ask, fence, ask again, plan, seal, open, write, stage, prove, commit. Where an answer
is lost nothing is believed: our own transaction is ended under our own identity, and the ledger says what happened.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    EosError,
    OutcomeUnknown,
    PlanError,
    ProcessFailed,
    RecordTooLarge,
    RunAlreadyCommitted,
    RunFailed,
    RunFenced,
)
from airflow_eos.model.broker import CommittedOffset, EndTxnAnswer, TransactionState
from airflow_eos.model.identity import ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.manifest import SealedManifest
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.receipts import PartitionReceipt
from airflow_eos.model.record import RunRecord
from airflow_eos.model.spec import RunSpec
from airflow_eos.run import cursor, identity, laws
from airflow_eos.run.authority import Authority
from airflow_eos.run.ports import (
    Cluster,
    Ledger,
    ProducerSession,
    SealAndSend,
    Sealed,
    SealedBlockLost,
    Transactions,
)
from airflow_eos.run.ranges import Planned, Planner
from airflow_eos.run.states import State
from airflow_eos.run.trace import Trace

log = logging.getLogger(__name__)

COMPLETION_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.05

# An attempt that failed for one of these would fail again under a new epoch.
_NOT_WORTH_RESENDING = (AuthorizationFailed, ConfigurationError, PlanError, ProcessFailed, RecordTooLarge)


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the protocol, as ports."""

    cluster: Cluster
    transactions: Transactions
    ledger: Ledger
    authority: Authority
    planner: Planner
    data: SealAndSend
    ledger_identity: tuple[str, int]
    now: Callable[[], dt.datetime]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class _Work:
    """What this process knows of the work it does; it survives a resend, not the process."""

    key: str
    transactional_id: str
    recorded: tuple[OffsetRange, ...] | None = None
    planned: Planned | None = None
    sealed: Sealed | None = None
    attempts: int = 0
    last_answer: EndTxnAnswer | None = None
    last_failure: BaseException | None = None
    versions: dict[str, object] = field(default_factory=dict)


class RunProtocol:
    """Runs one spec to its end: a committed record, or an error that leaves nothing visible.

    :param spec: the run.
    :param world: the ports.
    :param on_state: called at each state entered.
    """

    def __init__(self, spec: RunSpec, world: World, on_state: Callable[[State], None] | None = None) -> None:
        self._spec = spec
        self._world = world
        self._trace = Trace(world.clock, on_state)
        self._started_at = world.now()
        self._identity: ProducerIdentity | None = None
        self._killed = False

    def execute(self) -> RunRecord:
        """Run, or answer from the ledger.

        :raises PlanError: nothing was read or written.
        :raises RunFenced: a newer attempt owns the work.
        :raises RunFailed: aborted after all attempts.
        :raises OutcomeUnknown: the ledger could not be asked; a retry finds out.
        """
        work = _Work(identity.run_key(self._spec), identity.transactional_id(self._spec))
        self._trace.enter(State.ASKED)
        found = self._ask(work, fenced=False)
        if found is not None:
            return found
        try:
            while True:
                record = self._attempt(work)
                if record is not None:
                    return record
        finally:
            if work.sealed is not None:
                self._world.data.release(work.sealed)

    def kill(self) -> None:
        """End our own transaction, if there is one, and never take another epoch. Safe from a signal handler."""
        self._killed = True
        if self._identity is not None:
            answer = self._world.transactions.abort(self._identity)
            log.info("killed: EndTxn(abort) of %s: %s", self._identity.transactional_id, answer.value)

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self, work: _Work, *, fenced: bool) -> RunRecord | None:
        """Ask the authority; a record is the answer to give, None means: do the work (again)."""
        base = identity.run_record_key(identity.run_key(self._spec))
        prefix = f"{base}{identity.REPROCESS_MARK}"
        ask = self._world.authority.decide if fenced else self._world.authority.peek
        found = ask([base], routing=self._spec.pipeline, prefixes=(prefix,))
        records = {key: RunRecord.from_json(value) for key, value in found.items()}
        ours = (self._spec.run_id, self._spec.clear_number)
        for record in records.values():
            if (record.run_id, record.clear_number) == ours:
                return self._found(record, "this very work")
        if not records:
            return None
        first = records[base]
        other = f"run {first.run_id!r}, clear {first.clear_number}, try {first.try_number}"
        if self._spec.on_committed == "fail":
            raise RunAlreadyCommitted(
                f"{first.run_key} was committed by {other} at {first.staged_at}; on_committed is "
                "'fail'. Use 'skip' to accept "
                "it or 'reprocess' to write it again"
            )
        if self._spec.on_committed == "skip":
            return self._found(first, other)
        work.key = identity.reprocess_key(first.run_key, len(records))
        work.recorded = first.ranges
        work.transactional_id = identity.reprocess_transactional_id(self._spec, first.ranges)
        return None

    def _found(self, record: RunRecord, by: str) -> RunRecord:
        log.info(
            "already committed by %s: %s, %d records read, %d written, staged %s; nothing to do",
            by,
            record.run_key,
            record.records_read,
            record.records_written,
            record.staged_at,
        )
        return replace(record, found=True)

    # -- one attempt under one epoch ---------------------------------------------------------------------------

    def _attempt(self, work: _Work) -> RunRecord | None:
        """Return the record when the work is done, None when it must be tried under a new epoch."""
        if self._killed:
            raise RunFailed(f"{work.key} was killed; its transaction was aborted")
        self._trace.enter(State.FENCED)
        session = self._world.transactions.fence(work.transactional_id)
        try:
            self._identity = session.identity
            return self._owned(work, session)
        finally:
            session.close()

    def _owned(self, work: _Work, session: ProducerSession) -> RunRecord | None:
        self._trace.enter(State.CHECKED)
        if not laws.no_is_final(fenced=False):
            fenced_id = work.transactional_id
            found = self._ask(work, fenced=True)
            if found is not None:
                return found
            if work.transactional_id != fenced_id:
                # Committed by another run since we asked: it is to be reprocessed, under that work's own id.
                self._forget(work)
                return None
        if work.attempts >= self._spec.max_send_attempts:
            raise self._failed(work)
        planned = self._plan(work)
        self._seal(work, planned)
        return self._transact(work, planned, session)

    def _plan(self, work: _Work) -> Planned:
        self._trace.enter(State.PLANNED)
        if work.planned is not None:
            self._world.planner.recheck(work.planned.plan)
            return work.planned
        laws.broker_verifies(self._world.cluster.partition_verification())
        laws.timeouts_fit(
            self._spec.delivery_timeout,
            self._spec.transaction_timeout,
            self._world.cluster.transaction_max_timeout_ms(),
        )
        work.planned = self._world.planner.plan(work.recorded)
        plan = work.planned.plan
        for note in plan.notes:
            log.warning("%s", note)
        log.info(
            "planned %s: %d partitions, %d offsets: %s",
            work.key,
            len(plan.ranges),
            sum(r.span for r in plan.ranges),
            ", ".join(f"{r.topic_partition} [{r.start}, {r.end})" for r in plan.ranges if r.span)
            or "nothing to read",
        )
        return work.planned

    def _seal(self, work: _Work, planned: Planned) -> None:
        if work.sealed is not None or planned.plan.is_empty:
            return
        if not work.versions:
            work.versions = dict(self._world.data.preflight())
        self._trace.enter(State.SEALED)
        work.sealed = self._world.data.seal(planned.plan)
        manifest = work.sealed.manifest
        log.info(
            "sealed %d records, %d bytes, for %d partitions",
            manifest.records,
            manifest.size,
            len(manifest.targets),
        )

    def _forget(self, work: _Work) -> None:
        """Drop a plan and its sealed batches."""
        if work.sealed is not None:
            self._world.data.release(work.sealed)
        work.planned = work.sealed = None

    def _transact(self, work: _Work, planned: Planned, session: ProducerSession) -> RunRecord | None:
        manifest = work.sealed.manifest if work.sealed is not None else SealedManifest(())
        if not laws.deserves_commit(planned.plan, manifest):
            return self._record(work, planned, manifest, (), session.identity)
        try:
            record = self._open_to_proven(work, planned, manifest, session)
        except Exception as failure:  # noqa: BLE001 - every failure in OPEN..PROVEN means: abort our own
            return self._aborted(work, session, failure)
        except BaseException:
            self._abort_quietly(session.identity)
            raise
        try:
            session.commit()
        except Exception as failure:  # noqa: BLE001 - the exception says nothing about the outcome
            return self._unknown(work, session, failure)
        self._await_completion(session.identity)
        self._trace.enter(State.COMMITTED)
        return replace(record, trace=self._trace.steps)

    def _open_to_proven(
        self, work: _Work, planned: Planned, manifest: SealedManifest, session: ProducerSession
    ) -> RunRecord:
        self._trace.enter(State.OPEN)
        opened = self._world.clock()
        session.begin()
        if manifest.targets:
            session.add_partitions(manifest.partitions)
        receipts: Sequence[PartitionReceipt] = ()
        if work.sealed is not None and manifest.targets:
            timeout = laws.send_timeout(self._spec.transaction_timeout, self._world.clock() - opened)
            receipts = self._world.data.send(work.sealed, session.identity, timeout)
        laws.exactly_one_receipt(receipts)
        laws.receipts_match(manifest, receipts)
        self._trace.enter(State.WRITTEN)

        record = self._record(work, planned, manifest, receipts, session.identity)
        messages = self._messages(work, planned, record)
        session.stage(planned.plan.offsets_group, self._offsets(work, planned), messages)
        self._trace.enter(State.STAGED)

        self._prove(planned, manifest, messages, session.identity)
        self._trace.enter(State.PROVEN)
        return record

    # -- what the transaction says -----------------------------------------------------------------------------

    def _offsets(self, work: _Work, planned: Planned) -> dict[TopicPartition, CommittedOffset]:
        partition = self._world.ledger.partition_for(self._spec.pipeline)
        metadata = identity.offset_metadata(work.key, partition, self._world.ledger_identity[0])
        return {tp: CommittedOffset(end, metadata) for tp, end in planned.plan.ends.items()}

    def _messages(self, work: _Work, planned: Planned, record: RunRecord) -> list[LedgerMessage]:
        messages = [
            identity.message(identity.run_record_key(work.key), record.to_json(), self._spec.pipeline)
        ]
        if planned.plan.advances:
            after = cursor.advanced(
                self._spec,
                planned.plan,
                planned.cursor,
                planned.partition_counts,
                work.key,
                self._world.ledger_identity,
            )
            messages += cursor.messages(self._spec, after, planned.layout_known)
        return messages

    def _record(
        self,
        work: _Work,
        planned: Planned,
        manifest: SealedManifest,
        receipts: Sequence[PartitionReceipt],
        producer: ProducerIdentity,
    ) -> RunRecord:
        read = {str(r.topic_partition): 0 for r in planned.plan.ranges}
        read.update({str(tp): n for tp, n in manifest.records_read.items()})
        return RunRecord(
            run_key=work.key,
            pipeline=self._spec.pipeline,
            mode=planned.plan.mode,
            run_id=self._spec.run_id,
            clear_number=self._spec.clear_number,
            try_number=self._spec.try_number,
            group_id=self._spec.group_id,
            ranges=planned.plan.ranges,
            records_read_by_partition=read,
            records_late=manifest.records_late,
            receipts=tuple(sorted(receipts, key=lambda r: (r.topic, r.partition))),
            producer=producer,
            started_at=identity.utc_text(self._started_at),
            staged_at=identity.utc_text(self._world.now()),
            trace=self._trace.steps,
            details={
                "versions": work.versions,
                "notes": list(planned.plan.notes),
                "partition_verification": self._world.cluster.partition_verification(),
            },
        )

    def _prove(
        self,
        planned: Planned,
        manifest: SealedManifest,
        messages: Sequence[LedgerMessage],
        producer: ProducerIdentity,
    ) -> None:
        cluster, ledger = self._world.cluster, self._world.ledger
        expected = set(manifest.partitions)
        expected.update(
            TopicPartition(self._spec.ledger.topic, ledger.partition_for(m.routing)) for m in messages
        )
        expected.add(cluster.group_offsets_partition(planned.plan.offsets_group))
        sinks = (
            cluster.describe_topics(sorted({t.topic for t in manifest.targets})) if manifest.targets else {}
        )
        everywhere = [TopicPartition(t.topic, p) for t in sinks.values() for p in range(t.partitions)]
        laws.proof_holds(
            producer,
            manifest,
            expected,
            cluster.describe_transaction(producer.transactional_id),
            cluster.describe_producers(everywhere) if everywhere else {},
        )
        self._world.planner.recheck(planned.plan, staged=True)

    # -- when something goes wrong -----------------------------------------------------------------------------

    def _aborted(self, work: _Work, session: ProducerSession, failure: Exception) -> RunRecord | None:
        self._trace.enter(State.ABORTED)
        log.warning(
            "%s: attempt %d failed: %s; aborting its transaction", work.key, work.attempts + 1, failure
        )
        answer = self._end(session, failure)
        if not laws.may_take_epoch(first_act=False, answer=answer):
            return self._superseded(work, failure)
        self._count(work, answer, failure)
        if isinstance(failure, SealedBlockLost):
            work.sealed = None
        if isinstance(failure, _NOT_WORTH_RESENDING):
            raise failure
        if work.attempts >= self._spec.max_send_attempts or self._killed:
            raise self._failed(work)
        return None

    def _unknown(self, work: _Work, session: ProducerSession, failure: Exception) -> RunRecord | None:
        self._trace.enter(State.UNKNOWN)
        log.warning("%s: the answer of the commit is missing (%s); finding out", work.key, failure)
        answer = self._end(session, failure)
        if not laws.may_take_epoch(first_act=False, answer=answer):
            return self._superseded(work, failure)
        self._count(work, answer, failure)
        if self._killed:
            raise OutcomeUnknown(
                f"{work.key} was killed while it committed; a retry asks the ledger"
            ) from failure
        return None

    def _end(self, session: ProducerSession, failure: Exception) -> EndTxnAnswer:
        session.close()
        try:
            return self._world.transactions.abort(session.identity)
        except Exception as unreachable:
            raise OutcomeUnknown(
                f"{session.identity.transactional_id}: {failure}; the coordinator could not be asked "
                "to abort "
                f"({unreachable}). A retry will fence this attempt and ask the ledger"
            ) from failure

    def _abort_quietly(self, producer: ProducerIdentity) -> None:
        try:
            self._world.transactions.abort(producer)
        except Exception as failure:  # noqa: BLE001 - the original error matters more; the time-out ends it
            log.warning("%s could not be aborted: %s", producer.transactional_id, failure)

    @staticmethod
    def _count(work: _Work, answer: EndTxnAnswer, failure: BaseException) -> None:
        work.attempts += 1
        work.last_answer = answer
        work.last_failure = failure

    def _superseded(self, work: _Work, failure: Exception) -> RunRecord | None:
        """Our epoch is gone: ask once, never initialise again."""
        found = self._ask(work, fenced=False)
        if found is not None:
            return found
        raise RunFenced(
            f"{work.key}: transactional id {work.transactional_id} was taken by a newer attempt or "
            "timed out, and the ledger "
            f"does not hold the run; a retry asks again. First error: {failure}"
        ) from failure

    def _failed(self, work: _Work) -> EosError:
        error = RunFailed(
            f"{work.key} was aborted after {work.attempts} attempt(s); nothing of it is visible. Last "
            f"error: {work.last_failure}"
        )
        error.__cause__ = work.last_failure
        return error

    def _await_completion(self, producer: ProducerIdentity) -> None:
        """Wait until all markers are written; a commit returns before that, and a reader could see too little."""
        deadline = self._world.clock() + COMPLETION_WAIT_SECONDS
        while True:
            try:
                seen = self._world.cluster.describe_transaction(producer.transactional_id)
            except Exception as failure:  # noqa: BLE001 - the run is committed; this only orders what follows
                log.warning("the commit is done, its completion could not be checked: %s", failure)
                return
            if seen is not None and (
                seen.state is TransactionState.COMPLETE_COMMIT
                or (seen.producer_id, seen.producer_epoch) != (producer.producer_id, producer.producer_epoch)
            ):
                return
            if self._world.clock() >= deadline:
                log.warning(
                    "the commit is done, but after %.0f s some markers are still missing; a reader "
                    "that starts now may wait",
                    COMPLETION_WAIT_SECONDS,
                )
                return
            self._world.sleep(_POLL_SECONDS)
