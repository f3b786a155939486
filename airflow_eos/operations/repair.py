"""Finds hanging transactions, and ends them as they were decided.

A run ends those of its own transactional id (:mod:`airflow_eos.run.unfinished`). Repair is for transactions
that no run will meet again; it needs the permission to write markers (ClusterAction on the cluster).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, EosError, ProducerFenced, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.run_record import RunRecord, named_writer
from airflow_eos.model.kafka import OFFSETS_TOPIC, ActiveProducer, TransactionDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.model.versioned import JsonForm
from airflow_eos.operations.left_open import Left, LeftOpen
from airflow_eos.operations.queries import readable_runs
from airflow_eos.run.unfinished import coordinator_decision, visible_decision

log = logging.getLogger(__name__)

Decision = Literal["commit", "abort", "unknown"]


@dataclass(frozen=True, slots=True)
class Hanging(JsonForm):
    """A transaction that is open on a leader although no coordinator will end it.

    :param start_offset: its first offset, beyond which readers cannot read.
    :param decision: how it was decided; ``unknown`` ones are not ended unless the user says what to assume.
    :param because: the evidence for the decision.
    :param done: whether its markers were written.
    :param advice: what to do if they were not.
    """

    partition: str
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str
    decision: Decision
    because: str
    done: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True)
class HangingTransactions:
    """The result of a search.

    :param unseen: why a topic could not be searched: it does not exist, may not be read, or lacks a leader.
    """

    transactions: tuple[Hanging, ...]
    unseen: Mapping[str, EosError]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "hanging": [transaction.to_dict() for transaction in self.transactions],
            "unseen": sorted(self.unseen),
        }


def repair(
    deployment: Deployment,
    *,
    topics: Collection[str] = (),
    assume: Decision = "unknown",
    execute: bool = False,
) -> HangingTransactions:
    """Return the hanging transactions of a prefix in the ledger, in topics, and in groups' offsets.

    :param topics: topics to check; default: all that runs wrote to and that exist.
    :param assume: the decision to assume for transactions whose decision is unknown.
    :param execute: write the missing markers; False for a dry run.
    :raises LedgerMissing: there is no initialised ledger.
    :raises UnknownTopic: a topic of ``topics`` does not exist.
    """
    with ControlPlane(deployment) as control:
        partitions = control.verify_ledger().partitions
        runs = _Runs(control, partitions)
        wanted = {*(topics or runs.topics), deployment.ledger.topic, OFFSETS_TOPIC}
        search = _Search(control, deployment.prefix, runs).hanging(wanted)
        deleted = {topic: error for topic, error in search.unseen.items() if isinstance(error, UnknownTopic)}
        for topic in deleted.keys() & set(topics):
            raise deleted[topic]
        transactions = [
            transaction if transaction.decision != "unknown" else replace(transaction, decision=assume)
            for transaction in search.transactions
        ]
        return HangingTransactions(
            tuple(ended(control, transaction) if execute else transaction for transaction in transactions),
            {topic: error for topic, error in search.unseen.items() if topic not in deleted},
        )


def hanging(
    control: ControlPlane, prefix: str, topics: Collection[str], partitions: int
) -> HangingTransactions:
    """Return the hanging transactions in some topics; reads the ledger only if there are any."""
    return _Search(control, prefix, _Runs(control, partitions)).hanging(set(topics))


class _Runs:
    """The runs of a ledger, read at the first use."""

    def __init__(self, control: ControlPlane, partitions: int) -> None:
        self._control = control
        self._partitions = partitions
        self._read: tuple[list[RunRecord], list[RunRecord]] | None = None
        self._incomplete: list[str] = []
        # Producer id and epoch of all records, including those that only a newer version can read.
        self._writers: tuple[set[tuple[int, int] | None], set[tuple[int, int] | None]] = set(), set()

    @property
    def topics(self) -> set[str]:
        return {receipt.topic for record in self._records()[0] for receipt in record.receipts}

    def unaccounted(self) -> str:
        """Return why a run without a ledger record may still be committed; empty if it cannot be."""
        self._records()
        return "; ".join(self._incomplete)

    def committed(self, producer_id: int, epoch: int) -> bool:
        self._records()
        return (producer_id, epoch) in self._writers[0]

    def hangs_unread(self, producer_id: int, epoch: int) -> bool:
        """Return whether the run record is part of the hanging transaction, and unreadable."""
        return self.undecided(producer_id, epoch) is None and (producer_id, epoch) in self._writers[1]

    def undecided(self, producer_id: int, epoch: int) -> RunRecord | None:
        return next((record for record in self._records()[1] if _made_by(record, producer_id, epoch)), None)

    def transactional_id(self, producer_id: int) -> str | None:
        """Return the transactional id of a producer id from run records: coordinators forget unused ids."""
        both = (record for records in self._records() for record in records)
        return next(
            (r.producer.transactional_id for r in both if r.producer.producer_id == producer_id), None
        )

    def _records(self) -> tuple[list[RunRecord], list[RunRecord]]:
        if self._read is None:
            committed: list[RunRecord] = []
            undecided: list[RunRecord] = []
            for partition in range(self._partitions):
                view = self._control.ledger.view(partition, (), (keys.RUN_RECORDS,))
                answer = answer_of(view)
                if view.log_start:
                    self._incomplete.append(f"ledger partition {partition} has lost its first records")
                if view.no_evidence:
                    self._incomplete.append(
                        f"ledger partition {partition} holds {min(view.no_evidence)!r} at offset "
                        f"{view.no_evidence[min(view.no_evidence)]}, which is not signed or no run wrote"
                    )
                self._writers[0].update(named_writer(value.text) for value in answer.committed.values())
                self._writers[1].update(
                    named_writer(entry.value.text) for entry in answer.open_records if entry.value is not None
                )
                committed += readable_runs(answer.committed.items())
                undecided += readable_runs(
                    (entry.key, entry.value) for entry in answer.open_records if entry.value is not None
                )
            self._read = committed, undecided
        return self._read


class _Search:
    def __init__(self, control: ControlPlane, prefix: str, runs: _Runs) -> None:
        self._control = control
        self._prefix = prefix
        self._runs = runs

    def hanging(self, topics: Collection[str]) -> HangingTransactions:
        left = LeftOpen(self._control.cluster, self._prefix, self._runs.transactional_id)
        candidates = [(transaction, self._described(transaction)) for transaction in left.candidates(topics)]
        still = left.still(transaction for transaction, _ in candidates)
        return HangingTransactions(
            tuple(described for transaction, described in candidates if transaction in still), left.unseen
        )

    def _described(self, left: Left) -> Hanging:
        producer = left.producer
        decision, because = self._decision(producer, left.description)
        return Hanging(
            partition=str(left.tp),
            start_offset=producer.current_txn_start_offset,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional_id=left.transactional_id,
            decision=decision,
            because=because,
        )

    def _decision(
        self, producer: ActiveProducer, description: TransactionDescription | None
    ) -> tuple[Decision, str]:
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        if self._runs.committed(producer_id, epoch):
            return "commit", "the ledger holds its run"
        is_committed = coordinator_decision(description, producer_id, epoch)
        if is_committed is not None:
            return "commit" if is_committed else "abort", "its coordinator says so"
        undecided = self._runs.undecided(producer_id, epoch)
        if self._runs.hangs_unread(producer_id, epoch):
            return "unknown", "its run record hangs with it and cannot be read: upgrade airflow-eos"
        if undecided is None and (why := self._runs.unaccounted()):
            return "unknown", why
        if undecided is None:
            return "abort", "the ledger has no run of it"
        seen = visible_decision(self._control.cluster, undecided)
        if seen is not None:
            return "commit" if seen else "abort", f"the other records of {undecided.run_key} show it"
        return "unknown", f"the record of {undecided.run_key} hangs with it, and there is no other evidence"


def ended(control: ControlPlane, transaction: Hanging) -> Hanging:
    """Write the markers of a hanging transaction; return it with the result."""
    topic, _, partition = transaction.partition.rpartition("-")
    if transaction.decision == "unknown":
        return replace(transaction, advice="look at its output, then say --assume commit or --assume abort")
    try:
        control.transactions.write_markers(
            transaction.producer_id,
            transaction.producer_epoch,
            [TopicPartition(topic, int(partition))],
            commit=transaction.decision == "commit",
        )
    except ProducerFenced:
        return replace(transaction, advice="a newer attempt has written there since: its end decides")
    except AuthorizationFailed as error:
        tool = (
            f"kafka-transactions.sh --bootstrap-server ... abort --topic {topic} --partition {partition} "
            f"--start-offset {transaction.start_offset}"
        )
        advice = (
            f"{error}, or have somebody run: {tool}"
            if transaction.decision == "abort"
            else f"{error}. Kafka's own tool can only abort, which would lose committed records"
        )
        return replace(transaction, advice=advice)
    return replace(transaction, done=True)


def _made_by(record: RunRecord, producer_id: int, epoch: int) -> bool:
    return (record.producer.producer_id, record.producer.producer_epoch) == (producer_id, epoch)
