"""The run protocol: one attempt at one unit of work, as an explicit state machine.

Guarantee: whatever happens to this process, or to another one that attempts the same work at the same time,
the output, the consumed offsets and the run record become visible together, once, or not at all.

The order ensures it: ask, fence, ask again, plan, seal, open, write, stage, prove, commit. If an answer is
lost, the attempt ends its own transaction under its own identity, and the ledger shows the outcome. The
commit of a table is not part of the transaction: the INTENT in the ledger comes before it, the transaction
with offsets and record after it, and an attempt settles an open INTENT first
(:mod:`airflow_eos.run.table_steps`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_eos.exceptions import (
    AuthorizationFailed,
    DifferentWork,
    OffsetsOutOfRange,
    PlanError,
    RunFailed,
    RunFenced,
    TopicRecreated,
    UnknownTopic,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ledger.topic_check import refuse_unsigned, replaced_ledger
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.ranges import Cursor
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import ProducerSession
from airflow_eos.run import laws, rounds
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.commit_entry import CommitEntry, check_with_brokers
from airflow_eos.run.endings import Endings, failed, is_ours
from airflow_eos.run.kill import KILL_SECONDS, Kill, KillBudget
from airflow_eos.run.lookup import CommittedRuns
from airflow_eos.run.planner import Planned
from airflow_eos.run.states import State, Trace
from airflow_eos.run.table_steps import TableSteps
from airflow_eos.run.topics import Targets, TopicsNow, refuse_targets
from airflow_eos.run.unfinished import UnfinishedEnds
from airflow_eos.run.unit_of_work import UnitOfWork
from airflow_eos.run.visibility import Visibility

log = logging.getLogger(__name__)


class RunProtocol:
    """Runs one spec to its end: a committed record, or an error that leaves nothing visible.

    :param on_state: called at each state.
    :param kill: tells the run to end; shared with the other rounds of the run.
    :ivar producer: the last identity of this attempt; None before the first epoch.
    """

    def __init__(
        self,
        spec: RunSpec,
        collaborators: Collaborators,
        on_state: Callable[[State], None] | None = None,
        kill: Kill | None = None,
    ) -> None:
        self._spec = spec
        self._collaborators = collaborators
        self._kill = kill or Kill()
        self._trace = Trace(collaborators.clock, on_state, self._kill.check)
        self._started_at = collaborators.now()
        self._committed = CommittedRuns(spec, collaborators.authority)
        cluster, transactions = collaborators.cluster, collaborators.transactions
        self._unfinished = UnfinishedEnds(
            spec, cluster, transactions, collaborators.ledger, collaborators.authority
        )
        self._visibility = Visibility(cluster, transactions, collaborators.clock, collaborators.sleep)
        # Another transaction may block readers for that long.
        self._visible_seconds = spec.transaction_timeout.total_seconds()
        self._targets = Targets(cluster)
        self._endings = Endings(spec, transactions, collaborators.data, self._trace, self._kill, self._answer)
        self._table: TableSteps | None = None
        if collaborators.table is not None:
            self._table = TableSteps(
                spec, collaborators, collaborators.table, self._started_at, self._endings
            )
        self.producer: ProducerIdentity | None = None

    def execute(self) -> RunRecord:
        """Run, or return the record that the ledger already has.

        :raises PlanError: nothing was read or written.
        :raises LedgerMissing: the ledger was deleted.
        :raises RunFenced: a newer attempt owns the work.
        :raises RunFailed: aborted after all attempts.
        :raises OutcomeUnknown: the ledger could not be asked; a retry finds out.
        :raises OutputLost: committed, and a topic that was written is gone.
        """
        work = UnitOfWork(keys.run_key(self._spec), keys.transactional_id(self._spec))
        record = self._ask(work, fenced=False)
        self._trace.enter(State.ASKED)
        if record is not None:
            return self._visible(record)
        try:
            while True:
                record = self._one_epoch(work)
                if record is not None:
                    return record
        except UnknownTopic:
            self._collaborators.ledger.describe()  # raises LedgerMissing if it is the ledger that is unknown
            raise
        except AuthorizationFailed as refused:
            named = work.sealed.manifest.topics if work.sealed is not None else frozenset[str]()
            # Permissions on topics that only rows name, and those of a catalog, are not checked in advance.
            if work.planned is None or self._table is not None or named - set(self._spec.output_topics):
                raise
            raise RunFailed(
                f"{refused.message}; this run was planned with the permission, so it was taken since: a "
                "retry checks all permissions first"
            ) from refused
        finally:
            work.release(self._collaborators.data)

    def kill(self, timeout: float = KILL_SECONDS) -> None:
        """End our own transaction, if any, and never take another epoch. Safe in a signal handler.

        Afterwards a commit under way is decided: the coordinator says which came first. If it does not
        answer, this waits for the commit's own answer.

        :param timeout: seconds; the transaction's time-out aborts what could not be aborted in time.
        :raises Exception: the coordinator did not answer.
        """
        budget = KillBudget(timeout, self._collaborators.clock)
        self._kill.ask()
        if self.producer is None:
            return
        try:
            answer = self._collaborators.transactions.abort(self.producer, timeout=budget.left())
        except Exception:
            self._kill.await_commit(budget.left())
            raise
        log.info("killed: the transaction of %r: %s", self.producer.transactional_id, answer.value)

    def _ask(self, work: UnitOfWork, *, fenced: bool) -> RunRecord | None:
        """Look the run up; return its record, or None: do the work (again)."""
        answer = self._committed.ask(fenced=fenced)
        if isinstance(answer, RunRecord):
            return answer
        if answer is not None:
            work.key, work.transactional_id = answer.key, answer.transactional_id
            work.recorded, work.earlier = answer.recorded, answer.earlier
        return None

    def _answer(self, work: UnitOfWork) -> RunRecord | None:
        """Return a record of the ledger for an attempt that may not fence any more."""
        record = self._ask(work, fenced=False)
        return None if record is None else self._visible(record)

    # -- one attempt under one epoch --

    def _one_epoch(self, work: UnitOfWork) -> RunRecord | None:
        self._kill.check()
        self._unfinished.before_fence(work.transactional_id)
        session = self._collaborators.transactions.fence(work.transactional_id)
        try:
            self.producer = session.identity
            self._trace.enter(State.FENCED)
            topics = TopicsNow.of(self._collaborators.cluster, self._spec)
            ledger, ledger_id = topics.visible.get(self._spec.ledger.topic), self._collaborators.ledger_id
            if ledger is not None and ledger.topic_id != ledger_id.topic_id:
                raise replaced_ledger(ledger, ledger_id)
            ended = self._unfinished.end_in_ledger(session.identity, topics)
            if ended is not None:
                return self._endings.ended_older(work, session, ended)
            return self._under_fence(work, session, topics)
        finally:
            session.close()

    def _under_fence(self, work: UnitOfWork, session: ProducerSession, topics: TopicsNow) -> RunRecord | None:
        fenced_id, asked_key = work.transactional_id, work.key
        # Only here is *not committed* final, and another attempt may have committed meanwhile (law 3).
        record = self._ask(work, fenced=True)
        if record is not None:
            return self._visible(record)
        self._trace.enter(State.CHECKED)
        if work.transactional_id != fenced_id:
            # Another run has committed it since the first look-up: reprocess it, under the id for that.
            work.forget(self._collaborators.data)
            return None
        if work.key != asked_key:
            # Another run has reprocessed it meanwhile: the sealed headers may name the old run key.
            work.forget(self._collaborators.data)
        if self._table is not None:
            intent = self._table.intent_of_others(work)
            if intent is not None:
                return self._settle(work, intent, self._table, session)
        if work.attempts >= self._spec.max_send_attempts:
            raise failed(work)
        was_planned = work.planned is not None
        try:
            planned = self._plan(work, topics)
        except (PlanError, DifferentWork) as refusal:
            # Another run may have committed while we read, or between two of our epochs.
            if not is_ours(self._collaborators.cluster, session.identity):
                return self._endings.superseded(work, refusal)
            # In a topic that was created again, the offsets are those of other records.
            if was_planned and not isinstance(refusal, TopicRecreated):
                return self._endings.overtaken(work, session, refusal)
            raise
        self._trace.enter(State.PLANNED)
        return self._write(work, planned, session)

    def _write(self, work: UnitOfWork, planned: Planned, session: ProducerSession) -> RunRecord | None:
        """Seal, write the sealed batches, and commit; with a table, this takes two epochs."""
        try:
            self._seal(work, planned)
        except OffsetsOutOfRange as deleted:
            # Deleted since the plan: a new plan reads what is left, or its error says how to accept the loss.
            # A cursor that starts at the earliest record would silently start behind the loss.
            if isinstance(self._spec.ranges, Cursor):
                raise
            sources = self._collaborators.cluster.describe_topics(self._spec.source_topics)
            self._collaborators.planner.recheck(planned.plan, sources)
            return self._endings.overtaken(work, session, deleted)
        manifest = work.sealed.manifest if work.sealed is not None else SealedManifest(())
        # In each of them an attempt at this work may have left a transaction open.
        written = sorted(manifest.topics.union(self._spec.output_topics))
        topics = self._collaborators.cluster.describe_topics(written)
        self._targets.fit(manifest, topics)
        partitions = [tp for topic in topics.values() for tp in topic.topic_partitions]
        ended = self._unfinished.end(session.identity, partitions)
        if ended is not None:
            return self._endings.ended_older(work, session, ended)
        entry = CommitEntry(
            self._spec,
            self._collaborators,
            self._started_at,
            work.key,
            planned,
            manifest,
            work.verification,
        )
        if self._table is not None and self._table.changes_table(work):
            if work.intent is None:
                return self._table.pin(work, entry, session)
            try:
                entry = self._table.publish(work)
            except RunFenced as fenced:
                return self._endings.superseded(work, fenced)
        elif self._table is not None:
            entry = self._table.without_rows(entry)
        if entry.letters is not None:
            self._targets.fit(entry.manifest, topics)
        return self._commit(work, entry, session)

    def _settle(
        self, work: UnitOfWork, intent: Intent, steps: TableSteps, session: ProducerSession
    ) -> RunRecord | None:
        """End an earlier attempt's INTENT: commit its run if it was published. Then begin again."""
        self._check_conditions(work)
        entry = steps.settle(work, intent)
        if entry is None:
            return steps.take_back(work, session)
        topics = self._collaborators.cluster.describe_topics(sorted(entry.manifest.topics))
        self._targets.fit(entry.manifest, topics)
        partitions = [tp for topic in topics.values() for tp in topic.topic_partitions]
        ended = self._unfinished.end(session.identity, partitions)
        if ended is not None:
            return self._endings.ended_older(work, session, ended)
        if self._commit(work, entry, session, is_own=False) is None:
            return None
        work.forget(self._collaborators.data)
        return self._endings.used_up(work, session)

    def _plan(self, work: UnitOfWork, topics: TopicsNow) -> Planned:
        if work.planned is not None:
            self._collaborators.planner.recheck(work.planned.plan, topics.described())
            return work.planned
        self._check_conditions(work)
        described = topics.described(output=True)
        if self._table is not None:
            self._table.look(work)
        group = topics.permitted()
        if work.recorded is None and keys.moves_cursor(self._spec):
            laws.group_is_empty(group.group, group.members)
        planned = self._collaborators.planner.plan(described, work.recorded)
        plan = planned.plan
        if self._spec.round is not None and work.recorded is None and rounds.is_last(self._spec, plan):
            work.key = keys.final_key(self._spec)
            plan = rounds.last_of(self._spec, plan)
        if self._spec.mark_output != "never":
            plan = replace(plan, headers=_headers(self._spec, work.key))
        work.planned = replace(planned, plan=plan)
        for note in plan.notes:
            log.warning("%s", note)
        log.info(
            "planned %s: %d partitions, %d offsets: %s",
            work.key,
            len(plan.ranges),
            plan.offsets,
            ", ".join(f"{r.topic_partition} [{r.start}, {r.end})" for r in plan.ranges if r.span)
            or "nothing to read",
        )
        return work.planned

    def _check_conditions(self, work: UnitOfWork) -> None:
        """Check the conditions of brokers and ledger for any transaction of a run."""
        features = self._collaborators.cluster.features()
        work.verification = features.partition_verification
        laws.broker_verifies(work.verification)
        laws.timeouts_fit(
            self._spec.delivery_timeout,
            self._spec.transaction_timeout,
            features.transaction_max_timeout_ms,
        )
        refuse_unsigned(self._collaborators.ledger_id.is_signed, self._spec.ledger)

    def _seal(self, work: UnitOfWork, planned: Planned) -> None:
        if work.sealed is not None or not planned.plan.offsets:
            return
        if self._table is None:
            work.sealed = self._collaborators.data.seal(planned.plan)
        else:
            work.sealed = self._collaborators.data.seal(planned.plan, self._table.writer(work.key))
            files = work.sealed.files
            rows, size = sum(file.rows for file in files), sum(file.size for file in files)
            log.info("sealed %d data files, %d rows, %d bytes", len(files), rows, size)
        self._trace.enter(State.SEALED)
        manifest = work.sealed.manifest
        laws.ledger_is_no_target(manifest, self._spec.ledger.topic)
        refuse_targets(self._spec, manifest)
        if self._table is None or manifest.records:
            size = sum(target.size for target in manifest.targets)
            counts = (manifest.records, size, len(manifest.targets))
            log.info("sealed %d records, %d bytes, for %d partitions", *counts)

    def _commit(
        self, work: UnitOfWork, entry: CommitEntry, session: ProducerSession, *, is_own: bool = True
    ) -> RunRecord | None:
        """Write, prove and commit this run, or with ``is_own=False`` an earlier attempt's."""
        plan = entry.planned.plan
        try:
            record, messages = self._write_and_prove(work, entry, session)
        except Exception as failure:  # noqa: BLE001 - every failure in OPEN..PROVEN means: abort our own
            return self._endings.aborted(work, session, failure)
        except BaseException:
            self._endings.abort_quietly(session.identity)
            raise
        try:
            with self._kill.turn_taken():
                session.commit()
        except Exception as failure:  # noqa: BLE001 - the exception says nothing about the outcome
            return self._endings.unknown(work, session, failure)
        self._targets.are_kept(record.run_key)
        self._visibility.wait(
            record,
            entry.ledger_partitions(messages),
            plan.ends,
            plan.offsets_group,
            seconds=self._visible_seconds,
        )
        if is_own:
            self._trace.enter(State.COMMITTED)
        return replace(record, trace=self._trace.steps)

    def _write_and_prove(
        self, work: UnitOfWork, entry: CommitEntry, session: ProducerSession
    ) -> tuple[RunRecord, Sequence[LedgerMessage]]:
        manifest = entry.manifest
        opened = self._collaborators.clock()
        session.begin()
        if manifest.targets:
            session.add_partitions(manifest.partitions)
        self._trace.enter(State.OPEN)
        receipts: Sequence[PartitionReceipt] = ()
        sealed = work.sealed if entry.letters is None else entry.letters
        if sealed is not None and manifest.targets:
            timeout = laws.send_timeout(self._spec.transaction_timeout, self._collaborators.clock() - opened)
            receipts = self._collaborators.data.send(sealed, session.identity, timeout)
        laws.exactly_one_receipt(receipts)
        laws.receipts_match(manifest, receipts)
        self._trace.enter(State.WRITTEN)

        record = entry.record(receipts, session.identity, self._trace.steps)
        messages = entry.messages(record)
        session.stage(entry.planned.plan.offsets_group, entry.offsets(), messages)
        self._trace.enter(State.STAGED)

        self._targets.proven = check_with_brokers(self._collaborators, entry, record, messages)
        self._trace.enter(State.PROVEN)
        self._kill.take_turn()
        return record, messages

    def _visible(self, record: RunRecord) -> RunRecord:
        """Return a record of the ledger once every leader shows its transaction."""
        self._visibility.wait(record, seconds=self._visible_seconds)
        return record


def _headers(spec: RunSpec, key: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of every record of a run, by which consumers can recognise repetitions."""
    number = keys.reprocessing_number(key)
    if number is not None:
        return (("eos.run", key), ("eos.reprocessing", str(number)))
    return (("eos.run", key),) if spec.mark_output == "always" else ()
