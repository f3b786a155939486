"""The ledger records of a run whose sink is a table: before it publishes, and when it commits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import is_pruned
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import REPLACED, TABLE, RunRecord
from airflow_eos.ledger.writer import LedgerTransaction
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.dead_letter import DueLetters
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.output import SealedManifest
from airflow_eos.model.plan import RunPlan
from airflow_eos.run.commit_entry import CommitEntry
from airflow_eos.run.planner import Planned
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.run.replacing import earlier_rows, file_label, refuse_fewer, replaces_rows
from airflow_eos.run.retention import is_compacted

if TYPE_CHECKING:
    import datetime as dt

    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.output import PartitionReceipt
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.model.table import DataFileMade, EarlierRows, TableReceipt
    from airflow_eos.ports import ProducerSession, Sealed
    from airflow_eos.run.collaborators import Collaborators
    from airflow_eos.table_ports import TableSink, TableVersion, TableWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry(CommitEntry):
    """A run's commit, from its INTENT: the same for every attempt.

    :param transactional_id: the id of the INTENT.
    :param receipt: of the table's commit.
    """

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


class TableCommits:
    """The table side of one run.

    :param table: the run's sink.
    :param started_at: start of the attempt.
    """

    def __init__(
        self, spec: RunSpec, collaborators: Collaborators, table: TableSink, started_at: dt.datetime
    ) -> None:
        self._spec = spec
        self._collaborators = collaborators
        self._table = table
        self._started_at = started_at
        self._version: TableVersion | None = None
        self._replaces: tuple[EarlierRows, ...] = ()
        self._publisher = Publisher(table, self._committed, sleep=collaborators.sleep)

    # -- the ledger --

    def open_intent(self, transactional_id: str) -> Intent | None:
        """Return the INTENT of an id; after its fence, where a no is final.

        :raises DifferentWork: it is of another table, which alone knows its outcome.
        """
        key = keys.intent_key(transactional_id)
        value = self._collaborators.authority.settle([key], routing=keys.intent_routing(self._spec)).get(key)
        if value is None:
            return None
        intent = Intent.from_json(value, key)
        if intent.sink != self._table.name:
            raise DifferentWork(
                f"run {intent.key} was about to publish in {intent.sink}, and only that table can tell "
                f"whether its rows are there; this run's sink is {self._table.name}. Run the pipeline "
                "once with that table as its sink, which finds out, then go on. Where that table is lost for "
                f"good: {self._dismissal(transactional_id)}"
            )
        return intent

    def pin(self, intent: Intent, transactional_id: str, session: ProducerSession) -> None:
        """Write an INTENT; this uses up the epoch, and counts once it was read after the next fence."""
        identity = session.identity
        value = intent.to_json((identity.producer_id, identity.producer_epoch))
        self._write(session, replace(tombstone(self._spec, transactional_id), value=value))

    def take_back(self, transactional_id: str, session: ProducerSession) -> None:
        """Take an INTENT back that can never be published any more; this uses up the epoch."""
        self._write(session, tombstone(self._spec, transactional_id))

    def intent(
        self, entry: CommitEntry, session: ProducerSession, trace: tuple[tuple[str, float], ...]
    ) -> Intent:
        """Return the INTENT of a sealed run.

        :param entry: the run's commit.
        """
        record = entry.record((), session.identity, trace)
        plan = entry.planned.plan
        place = self._collaborators.authority.place(keys.intent_routing(self._spec))
        scope = keys.table_scope(session.identity.transactional_id, self._branch)
        version = self._known_version()
        published = version.published.runs.get(scope)
        return Intent(
            sink=self._table.name,
            layout=version.layout,
            token=max(
                self._collaborators.cluster.log_ends([place])[place],
                0 if published is None else published.token + 1,
            ),
            record=record,
            offsets_group=plan.offsets_group,
            messages=tuple(entry.messages(record)[1:]),
            replaces=self._replaces,
            letters=self.letters_due(entry.manifest),
        )

    def letters_due(self, manifest: SealedManifest) -> DueLetters | None:
        """Return the dead letters that belong to the transaction of a sealed run."""
        topic = self._spec.dead_letter_topic
        if topic is None or not manifest.letters_due:
            return None
        return DueLetters.of(topic, manifest.letters_due)

    def entry(
        self, intent: Intent, transactional_id: str, receipt: TableReceipt, letters: Sealed | None
    ) -> TableEntry:
        """Return the commit of a published run, the same for every attempt.

        The rows are in the table, so later changes (a moved group, a topic made again) do not prevent their
        record. The plan was checked before it was published, and the next plan will be.

        :param letters: the dead letters of the INTENT.
        """
        record = intent.record
        plan = RunPlan(record.mode, record.ranges, {}, intent.offsets_group, advances=False)
        return TableEntry(
            spec=self._spec,
            collaborators=self._collaborators,
            started_at=self._started_at,
            key=intent.key,
            planned=Planned(plan, {}),
            manifest=SealedManifest(()) if letters is None else letters.manifest,
            letters=letters,
            intent=intent,
            transactional_id=transactional_id,
            receipt=receipt,
        )

    # -- the table --

    def look(self, earlier: Sequence[RunRecord] = ()) -> None:
        """Load the table before reading.

        :param earlier: all records of the run, if it is done again.
        :raises UnknownTable: it does not exist, or cannot be written.
        :raises TableRewritten: the rows to replace are not there as they were written.
        """
        self._version = version = self._table.load()
        self._replaces = ()
        if replaces_rows(self._spec):
            self._replaces = earlier_rows(earlier, self._table.name, self._branch, version.layout.uuid)
            self._table.refuse_rewritten(version, self._replaces)

    def changes(self, files: Sequence[DataFileMade]) -> bool:
        """Return whether a run with these data files changes the table."""
        return bool(files or self._replaces)

    def refuse_fewer(self, recorded: RunRecord | None, manifest: SealedManifest) -> None:
        """Refuse a replacement of rows whose records are gone.

        :param recorded: the run to be done again.
        :raises OffsetsOutOfRange: fewer records were read than by the run.
        """
        if recorded is None or not self._replaces:
            return
        settings = self._collaborators.cluster.topic_settings(self._spec.source_topics)
        kept_whole = {topic for topic in settings if not is_compacted(settings[topic])}
        refuse_fewer(recorded, manifest.records_read, kept_whole, self._table.name)

    def writer(self, key: str) -> TableWriter:
        """Return the writer of the run's data files, whose names contain a digest of its key."""
        return self._table.writer(self._known_version(), file_label(key))

    def publish(self, intent: Intent, transactional_id: str, files: Sequence[DataFileMade]) -> TableReceipt:
        """Publish the sealed rows; see :meth:`~airflow_eos.run.publishing.Publisher.publish`."""
        receipt = self._publisher.publish(self._claim(intent, transactional_id), files)
        log.info("%s: snapshot %d has %d rows of %s", intent.sink, receipt.snapshot, receipt.rows, intent.key)
        return receipt

    def settle(self, intent: Intent, transactional_id: str) -> TableReceipt | None:
        """Settle an INTENT; see :meth:`~airflow_eos.run.publishing.Publisher.settle`."""
        receipt = self._publisher.settle(self._claim(intent, transactional_id))
        became = "was not published" if receipt is None else f"was published as snapshot {receipt.snapshot}"
        log.info("%s: what an earlier attempt sealed for %s %s", intent.sink, intent.key, became)
        return receipt

    # -- parts --

    @property
    def _branch(self) -> str | None:
        return None if self._spec.sink is None else self._spec.sink.branch_name

    def _claim(self, intent: Intent, transactional_id: str) -> Claim:
        return Claim.of(intent, transactional_id, self._branch, self._dismissal(transactional_id))

    def _dismissal(self, transactional_id: str) -> str:
        """Return the command that dismisses the INTENT of an id."""
        key, routing = keys.intent_key(transactional_id), keys.intent_routing(self._spec)
        return CommandLine().command("dismiss", {"--key": key, "--routing": routing})

    def _known_version(self) -> TableVersion:
        assert self._version is not None, "the table is looked at when the run is planned"
        return self._version

    def _committed(self, run_keys: Sequence[str]) -> frozenset[str]:
        """Return the run keys that the ledger holds: a yes needs no fence."""
        pipeline = self._spec.pipeline
        wanted = [keys.run_record_key(key) for key in run_keys]
        pruned = [keys.pruned_key(pipeline, keys.whole_run_key(key)) for key in run_keys]
        values = self._collaborators.authority.peek([*wanted, *pruned], routing=pipeline)
        return frozenset(
            key
            for key in run_keys
            if keys.run_record_key(key) in values or is_pruned(keys.whole_run_key(key), pipeline, values)
        )

    def _write(self, session: ProducerSession, message: LedgerMessage) -> None:
        around = self._collaborators
        place = around.authority.place(message.routing)
        LedgerTransaction(
            around.cluster, around.transactions, session, [place], around.sleep, around.clock
        ).commit([message])
