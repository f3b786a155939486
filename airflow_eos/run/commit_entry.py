"""The offsets, cursor and run record in a run's transaction, and the proof of the transaction."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_eos.ledger import cursor, keys
from airflow_eos.ledger.records.run_record import (
    ACCEPTED_LOSS,
    AIRFLOW,
    DEAD_LETTERS,
    TOPIC_IDS,
    WORK,
    RunRecord,
)
from airflow_eos.ledger.topic_check import replaced_ledger
from airflow_eos.model.kafka import OFFSETS_TOPIC, CommittedOffset, ProducerIdentity, TopicDescription
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Sealed
from airflow_eos.run import laws
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.planner import Planned
from airflow_eos.run.topics import described
from airflow_eos.run.work import WorkDefinition


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """The offsets, ledger messages and run record of one planned and sealed run.

    :param key: the run key; a reprocessing has its own.
    :param verification: the brokers' partition verification; None if unknown.
    :param letters: dead letters of the transaction if the sink is a table; else they are sealed records.
    """

    spec: RunSpec
    collaborators: Collaborators
    started_at: dt.datetime
    key: str
    planned: Planned
    manifest: SealedManifest
    verification: bool | None = None
    letters: Sealed | None = None

    def offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the end offsets, with metadata that names the run and its ledger."""
        partition = self.collaborators.ledger.partition_for(self.spec.pipeline)
        metadata = keys.offset_metadata(self.key, partition, self.collaborators.ledger_id.topic_id)
        return {tp: CommittedOffset(end, metadata) for tp, end in self.planned.plan.ends.items()}

    def messages(self, record: RunRecord) -> list[LedgerMessage]:
        """Return the run record's message and, if the cursor moves, the cursor's."""
        messages = [LedgerMessage(keys.run_record_key(self.key), record.to_json(), self.spec.pipeline)]
        if self.planned.plan.advances:
            after = cursor.advanced(
                self.spec,
                self.planned.plan,
                self.planned.cursor,
                self.planned.partition_counts,
                self.key,
                self.collaborators.ledger_id,
            )
            messages += cursor.messages(self.spec, after, self.planned.layout_known)
        return messages

    def ledger_partitions(self, messages: Sequence[LedgerMessage]) -> Counter[TopicPartition]:
        """Return the number of messages per partition of the ledger."""
        ledger = self.collaborators.ledger
        return Counter(
            TopicPartition(self.spec.ledger.topic, ledger.partition_for(m.routing)) for m in messages
        )

    def record(
        self,
        receipts: Sequence[PartitionReceipt],
        producer: ProducerIdentity,
        trace: tuple[tuple[str, float], ...],
    ) -> RunRecord:
        """Return the run record."""
        plan = self.planned.plan
        read = {str(r.topic_partition): 0 for r in plan.ranges}
        read.update({str(tp): n for tp, n in self.manifest.records_read.items()})
        return RunRecord(
            run_key=self.key,
            pipeline=self.spec.pipeline,
            mode=plan.mode,
            run_id=self.spec.run_id,
            clear_number=self.spec.clear_number,
            try_number=self.spec.try_number,
            group_id=self.spec.group_id,
            ranges=plan.ranges,
            records_read_by_partition=read,
            records_late=self.manifest.records_late,
            receipts=tuple(sorted(receipts, key=lambda r: (r.topic, r.partition))),
            producer=producer,
            started_at=keys.utc_text(self.started_at),
            staged_at=keys.utc_text(self.collaborators.now()),
            trace=trace,
            details={
                "versions": dict(self.manifest.versions),
                TOPIC_IDS: dict(plan.topic_ids),
                "notes": list(plan.notes),
                "partition_verification": self.verification,
                **({ACCEPTED_LOSS: list(plan.accepted_loss)} if plan.accepted_loss else {}),
                **({} if plan.lag is None else {"lag": plan.lag}),
                **({"undecided": plan.undecided} if plan.undecided else {}),
                **({"audit": dict(self.spec.audit)} if self.spec.audit else {}),
                **({AIRFLOW: dict(self.spec.task)} if self.spec.task else {}),
                **({DEAD_LETTERS: self.manifest.dead_letters} if self.manifest.dead_letters else {}),
                WORK: WorkDefinition.of(self.spec).to_dict(),
            },
        )


def check_with_brokers(
    collaborators: Collaborators,
    entry: CommitEntry,
    record: RunRecord,
    messages: Sequence[LedgerMessage],
) -> Mapping[str, TopicDescription]:
    """Check with coordinator and leaders that the transaction holds exactly this entry (KIP-664).

    :returns: the target topics that hold it.
    :raises ProtocolViolation: it does not.
    :raises PlanError: the plan no longer holds.
    """
    cluster, manifest = collaborators.cluster, entry.manifest
    staged = entry.ledger_partitions(messages)
    ledger, ledger_id = entry.spec.ledger.topic, collaborators.ledger_id
    roles = {"sink": manifest.topics, "source": entry.spec.source_topics, "ledger": [ledger]}
    topics = described(cluster, roles)
    if topics[ledger].topic_id != ledger_id.topic_id:
        raise replaced_ledger(topics[ledger], ledger_id)
    everywhere = {tp for name in manifest.topics for tp in topics[name].topic_partitions}
    transaction = cluster.describe_transaction(record.producer.transactional_id)
    # Brokers choose the partition of a group's offsets by the partition count that they read at their start.
    offsets = [tp for tp in (transaction.partitions if transaction else ()) if tp.topic == OFFSETS_TOPIC]
    offsets = offsets[:1] or [cluster.group_offsets_partition(entry.planned.plan.offsets_group)]
    expected = {*manifest.partitions, *staged, *offsets}
    producers = cluster.describe_producers(sorted({*everywhere, *staged}))
    laws.proof_holds(record.producer, manifest, staged, expected, transaction, producers)
    laws.begins_with_receipts(record.producer, record.receipts, staged, producers)
    collaborators.planner.recheck(entry.planned.plan, topics, staged=True)
    return {name: topics[name] for name in manifest.topics}
