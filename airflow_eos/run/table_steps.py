"""The additional steps of a run whose sink is a table: INTENT, PUBLISHED, settle.

Each step is one epoch: the small transaction of an INTENT, or of its tombstone, uses it up (law 2).
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import is_pruned
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import REPLACED, TABLE, RunRecord
from airflow_eos.ledger.writer import LedgerTransaction
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.dead_letter import DueLetters
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.spec import RunSpec
from airflow_eos.model.table import EarlierRows, TableReceipt
from airflow_eos.ports import ProducerSession
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.commit_entry import CommitEntry
from airflow_eos.run.endings import Endings
from airflow_eos.run.planner import Planned
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.run.replacing import earlier_rows, file_label, refuse_fewer, replaces_rows
from airflow_eos.run.retention import is_compacted
from airflow_eos.run.states import State
from airflow_eos.run.unit_of_work import UnitOfWork
from airflow_eos.table_ports import TableSink, TableVersion, TableWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry(CommitEntry):
    """A run's commit, from its INTENT: the same for every attempt."""

    intent: Intent
    transactional_id: str
    receipt: TableReceipt

    def messages(self, record: RunRecord) -> list[LedgerMessage]:
        """Return the run record, the cursor's messages, and the tombstone of the INTENT."""
        return [
            LedgerMessage(keys.run_record_key(self.key), record.to_json(), record.pipeline),
            *self.intent.messages,
            tombstone(self.spec, self.transactional_id),
        ]

    def record(
        self,
        receipts: Sequence[PartitionReceipt],
        producer: ProducerIdentity,
        trace: tuple[tuple[str, float], ...],
    ) -> RunRecord:
        """Return the run record of the INTENT, with the table's receipt."""
        table = {"sink": self.intent.sink, "uuid": self.intent.layout.uuid, **self.receipt.to_dict()}
        if self.intent.replaces:
            table[REPLACED] = [rows.snapshot for rows in self.intent.replaces]
        return replace(
            self.intent.record,
            receipts=tuple(receipts),
            producer=producer,
            staged_at=keys.utc_text(self.collaborators.now()),
            trace=trace,
            details={**self.intent.record.details, TABLE: table},
        )


def tombstone(spec: RunSpec, transactional_id: str) -> LedgerMessage:
    """Return the message that takes an INTENT back."""
    return LedgerMessage(keys.intent_key(transactional_id), None, keys.intent_routing(spec))


@dataclass(eq=False)
class TableSteps:
    """The table steps of one run.

    A method that ends an epoch returns the run's record, or None: continue under a new epoch.
    """

    spec: RunSpec
    collaborators: Collaborators
    table: TableSink
    started_at: dt.datetime
    endings: Endings
    _version: TableVersion | None = None
    _replaces: tuple[EarlierRows, ...] = ()

    def __post_init__(self) -> None:
        self._branch = None if self.spec.sink is None else self.spec.sink.branch_name
        self._publisher = Publisher(self.table, self._committed, self.collaborators.sleep)

    # -- before the run reads --

    def intent_of_others(self, work: UnitOfWork) -> Intent | None:
        """Return the INTENT of this id in the ledger, unless this process has pinned it.

        Call it after the fence, where None is final.

        :raises DifferentWork: it is of another table or group, whose notes alone show its outcome.
        """
        key, routing = keys.intent_key(work.transactional_id), keys.intent_routing(self.spec)
        value = self.collaborators.authority.settle([key], routing=routing).get(key)
        intent = None if value is None else Intent.from_json(value, key)
        own = self.table.name, self.spec.group_id
        if intent is not None and (intent.sink, intent.record.group_id) != own:
            raise DifferentWork(
                f"run {intent.key} of group {intent.record.group_id!r} was about to publish in "
                f"{intent.sink}, and only that table's notes about that group can tell whether its rows are "
                f"there; this run is of group {own[1]!r}, its sink {own[0]}. Run the pipeline once with that "
                "group and sink, which finds out, then go on. Where that table is lost for good: "
                f"{self._dismissal(work.transactional_id)}"
            )
        if intent is not None and intent.is_same(work.intent) and intent.key == work.key:
            return None
        work.intent = None
        return intent

    def look(self, work: UnitOfWork) -> None:
        """Load the table before reading.

        :raises UnknownTable: it does not exist, or cannot be written.
        :raises TableRewritten: the rows to replace are not there as they were written.
        """
        self._version = version = self.table.load()
        self._replaces = ()
        if replaces_rows(self.spec):
            self._replaces = earlier_rows(work.earlier, self.table.name, self._branch, version.layout.uuid)
            self.table.refuse_rewritten(version, self._replaces)

    def writer(self, key: str) -> TableWriter:
        """Return the writer of the run's data files, whose names contain a digest of its key."""
        return self.table.writer(self._known_version(), file_label(key))

    # -- of a sealed run --

    def changes_table(self, work: UnitOfWork) -> bool:
        """Return whether the run adds rows to the table, or removes some."""
        return bool((work.sealed is not None and work.sealed.files) or self._replaces)

    def pin(self, work: UnitOfWork, entry: CommitEntry, session: ProducerSession) -> RunRecord | None:
        """Write the INTENT to the ledger. The next epoch reads it after its fence, and publishes.

        :raises OffsetsOutOfRange: the run replaces rows, and read fewer records than the run that wrote them;
            nothing is written then.
        """
        if work.recorded is not None and self._replaces:
            settings = self.collaborators.cluster.topic_settings(self.spec.source_topics)
            kept_whole = {topic for topic in settings if not is_compacted(settings[topic])}
            ranges, read = entry.planned.plan.ranges, entry.manifest.records_read
            refuse_fewer(work.recorded, ranges, read, kept_whole, self.table.name)
        try:
            work.intent = self.intent(entry, session)
            identity = session.identity
            value = work.intent.to_json((identity.producer_id, identity.producer_epoch))
            self._write(session, replace(tombstone(self.spec, work.transactional_id), value=value))
        except Exception as failure:  # noqa: BLE001 - as in any transaction of ours
            return self.endings.aborted(work, session, failure)
        self.endings.trace.enter(State.INTENT)
        return self.endings.used_up(work, session)

    def intent(self, entry: CommitEntry, session: ProducerSession) -> Intent:
        """Return the INTENT of a sealed run."""
        record = entry.record((), session.identity, self.endings.trace.steps)
        place = self.collaborators.authority.place(keys.intent_routing(self.spec))
        scope = keys.table_scope(session.identity.transactional_id, self._branch)
        version = self._known_version()
        published = version.published.runs.get(scope)
        return Intent(
            sink=self.table.name,
            layout=version.layout,
            token=max(
                self.collaborators.cluster.log_ends([place])[place],
                0 if published is None else published.token + 1,
            ),
            record=record,
            offsets_group=entry.planned.plan.offsets_group,
            messages=tuple(entry.messages(record)[1:]),
            replaces=self._replaces,
            letters=self.letters_due(entry.manifest),
        )

    def letters_due(self, manifest: SealedManifest) -> DueLetters | None:
        """Return the dead letters that belong to the transaction of a sealed run."""
        topic = self.spec.dead_letter_topic
        if topic is None or not manifest.letters_due:
            return None
        return DueLetters.of(topic, manifest.letters_due)

    def publish(self, work: UnitOfWork) -> CommitEntry:
        """Add the rows to the table; return the run's commit.

        :raises RunFenced: a newer attempt owns the work; nothing of this one is in the table.
        """
        assert work.intent is not None
        self.endings.kill.check()
        files = () if work.sealed is None else work.sealed.files
        receipt = self._publisher.publish(self._claim(work, work.intent), files)
        log.info(
            "%s: snapshot %d has %d rows of %s",
            work.intent.sink,
            receipt.snapshot,
            receipt.rows,
            work.intent.key,
        )
        work.published = True
        return self._entry(work, work.intent, receipt)

    def without_rows(self, entry: CommitEntry) -> CommitEntry:
        """Return the commit of a run that does not change the table, with its dead letters, if any."""
        due = self.letters_due(entry.manifest)
        if due is None:
            return entry
        letters = self.collaborators.data.seal_letters(due)
        manifest = replace(entry.manifest, targets=letters.manifest.targets)
        return replace(entry, letters=letters, manifest=manifest)

    # -- of an earlier attempt --

    def settle(self, work: UnitOfWork, intent: Intent) -> CommitEntry | None:
        """Return the commit of an earlier attempt's INTENT; None if it is not published and never can be."""
        receipt = self._publisher.settle(self._claim(work, intent))
        became = "was not published" if receipt is None else f"was published as snapshot {receipt.snapshot}"
        log.info("%s: the output that an earlier attempt sealed for %s %s", intent.sink, intent.key, became)
        return None if receipt is None else self._entry(work, intent, receipt)

    def take_back(self, work: UnitOfWork, session: ProducerSession) -> RunRecord | None:
        """Take back an INTENT that can no longer be published."""
        try:
            self._write(session, tombstone(self.spec, work.transactional_id))
        except Exception as failure:  # noqa: BLE001 - as in any transaction of ours
            return self.endings.aborted(work, session, failure)
        return self.endings.used_up(work, session)

    # -- parts --

    def _entry(self, work: UnitOfWork, intent: Intent, receipt: TableReceipt) -> TableEntry:
        """Return the commit of a published run, the same for every attempt.

        The rows are in the table, so later changes (a moved group, a re-created topic) do not prevent their
        record. The plan was checked before it was published, and the next plan will be.
        """
        self.endings.trace.enter(State.PUBLISHED)
        letters = None if intent.letters is None else self.collaborators.data.seal_letters(intent.letters)
        record = intent.record
        plan = RunPlan(record.mode, record.ranges, {}, intent.offsets_group, advances=False)
        return TableEntry(
            spec=self.spec,
            collaborators=self.collaborators,
            started_at=self.started_at,
            key=intent.key,
            planned=Planned(plan, {}),
            manifest=SealedManifest(()) if letters is None else letters.manifest,
            letters=letters,
            intent=intent,
            transactional_id=work.transactional_id,
            receipt=receipt,
        )

    def _claim(self, work: UnitOfWork, intent: Intent) -> Claim:
        name = work.transactional_id
        return Claim.of(intent, name, self._branch, self._dismissal(name))

    def _dismissal(self, transactional_id: str) -> str:
        """Return the command that dismisses the INTENT of an id."""
        key, routing = keys.intent_key(transactional_id), keys.intent_routing(self.spec)
        return CommandLine().command("dismiss", {"--key": key, "--routing": routing})

    def _known_version(self) -> TableVersion:
        assert self._version is not None, "the table is looked at when the run is planned"
        return self._version

    def _committed(self, run_keys: Sequence[str]) -> frozenset[str]:
        """Return which of the run keys are committed; *committed* needs no fence."""
        pipeline = self.spec.pipeline
        wanted = [keys.run_record_key(key) for key in run_keys]
        pruned = [keys.pruned_key(pipeline, keys.whole_run_key(key)) for key in run_keys]
        values = self.collaborators.authority.peek([*wanted, *pruned], routing=pipeline)
        return frozenset(
            key
            for key in run_keys
            if keys.run_record_key(key) in values or is_pruned(keys.whole_run_key(key), pipeline, values)
        )

    def _write(self, session: ProducerSession, message: LedgerMessage) -> None:
        ports = self.collaborators
        place = ports.authority.place(message.routing)
        LedgerTransaction(
            ports.cluster, ports.transactions, session, [place], ports.sleep, ports.clock
        ).commit([message])
