"""Finds hanging transactions, and ends them as they were decided.

A run ends those of its own transactional id (:mod:`airflow_eos.run.unfinished`). Repair is for transactions
that no run will meet again; it needs the permission to write markers (ClusterAction on the cluster).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    EosError,
    ProducerFenced,
    UnknownTopic,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.run_record import RunRecord, named_writer
from airflow_eos.model.kafka import (
    OFFSETS_TOPIC,
    ActiveProducer,
    TransactionDescription,
    without_leader,
)
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.model.versioned import JsonForm
from airflow_eos.operations.queries import readable_runs
from airflow_eos.ports import Cluster
from airflow_eos.run.unfinished import coordinator_decision, visible_decision

log = logging.getLogger(__name__)

Decision = Literal["commit", "abort", "unknown"]


@dataclass(frozen=True, slots=True)
class Left:
    """An open transaction in a partition.

    :param description: the coordinator's current view of the id; None if it does not know the id.
    """

    tp: TopicPartition
    producer: ActiveProducer
    transactional_id: str
    description: TransactionDescription | None


@dataclass(frozen=True)
class LeftOpen:
    """Searches topics for transactions of this package that no coordinator will end; read-only.

    :param id_of: returns the transactional id of a producer id that its coordinator has forgotten, or None.
    :param unseen: filled with the reason why a topic could not be searched: missing, hidden, without leader.
    """

    cluster: KafkaCluster
    prefix: str
    id_of: Callable[[int], str | None]
    unseen: dict[str, EosError] = field(default_factory=dict)

    def candidates(self, topics: Collection[str]) -> list[Left]:
        """Return candidates; :meth:`still` removes those that were just ending."""
        open_there = self._open(topics)
        if not open_there:
            return []
        ids = self.cluster.transactional_ids({producer.producer_id for _, producer in open_there})
        left: list[Left] = []
        for tp, producer in open_there:
            name = ids.get(producer.producer_id) or self.id_of(producer.producer_id)
            if name is None or not keys.is_id_of(name, self.prefix):
                log.info("%s: open transaction of producer %d is not of our prefix", tp, producer.producer_id)
                continue
            description = self.cluster.describe_transaction(name)
            if not _is_under_way(description, producer):
                left.append(Left(tp, producer, name, description))
        return left

    def still(self, left: Iterable[Left]) -> list[Left]:
        """Return the candidates that are still open; the others have ended regularly."""
        before = list(left)
        if not before:
            return []
        now = {
            (tp, transaction.current_txn_start_offset)
            for tp, transaction in self._open({transaction.tp.topic for transaction in before})
        }
        return [
            transaction
            for transaction in before
            if (transaction.tp, transaction.producer.current_txn_start_offset) in now
        ]

    def _open(self, topics: Collection[str]) -> list[tuple[TopicPartition, ActiveProducer]]:
        open_producers: list[tuple[TopicPartition, ActiveProducer]] = []
        for topic in sorted(topics):
            try:
                description = self.cluster.describe_topics([topic], wait=False)[topic]
                described = self.cluster.describe_producers(
                    [tp for tp in description.topic_partitions if tp not in description.without_leader]
                )
            except (AuthorizationFailed, UnknownTopic) as error:
                log.warning("Cannot check topic %s: %s", topic, error)
                self.unseen[topic] = error
                continue
            if without := without_leader(description):
                self.unseen[topic] = BrokersUnavailable(without)
            open_producers += [
                (tp, producer)
                for tp, producers in sorted(described.items())
                for producer in producers
                if producer.is_open
            ]
        return open_producers


def _is_under_way(description: TransactionDescription | None, producer: ActiveProducer) -> bool:
    return (
        description is not None
        and description.is_under_way
        and description.producer_id == producer.producer_id
        and description.producer_epoch in (producer.producer_epoch, producer.producer_epoch + 1)
    )


@dataclass(frozen=True, slots=True)
class Hanging(JsonForm):
    """A transaction that is open on a leader although no coordinator will end it.

    :param start_offset: its first offset, beyond which readers cannot read.
    :param decision: how it was decided; ``unknown`` ones are not ended unless the user names a decision.
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
    """The result of a search; ``unseen`` as in :class:`LeftOpen`."""

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
        runs = cache(lambda: _Runs.of(control, partitions))
        written = topics or {receipt.topic for record in runs().records for receipt in record.receipts}
        wanted = {*written, deployment.ledger.topic, OFFSETS_TOPIC}
        search = _search(control, wanted, runs)
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


def hanging(control: ControlPlane, topics: Collection[str], partitions: int) -> HangingTransactions:
    """Return the hanging transactions in some topics; reads the ledger only if there are any."""
    return _search(control, topics, cache(lambda: _Runs.of(control, partitions)))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of a ledger.

    :param records: records of committed runs.
    :param open_records: records that are not decided yet.
    :param committed: producer id and epoch of all committed runs; the records of some may be unreadable.
    :param undecided: producer id and epoch of all runs whose record is not decided yet.
    :param unaccounted: why a run without a record may still be committed; empty if it cannot be.
    """

    records: tuple[RunRecord, ...]
    open_records: tuple[RunRecord, ...]
    committed: frozenset[tuple[int, int] | None]
    undecided: frozenset[tuple[int, int] | None]
    unaccounted: str

    @classmethod
    def of(cls, control: ControlPlane, partitions: int) -> _Runs:
        """Read all partitions of the ledger."""
        committed: list[tuple[str, LedgerValue]] = []
        undecided: list[tuple[str, LedgerValue]] = []
        unaccounted: list[str] = []
        for partition in range(partitions):
            view = control.ledger.view(partition, (), (keys.RUN_RECORDS,))
            answer = answer_of(view)
            if view.log_start:
                unaccounted.append(f"ledger partition {partition} has lost its first records")
            if view.no_evidence:
                key = min(view.no_evidence)
                unaccounted.append(
                    f"ledger partition {partition} holds {key!r} at offset {view.no_evidence[key]}, "
                    "which is not signed or no run wrote"
                )
            committed += answer.committed.items()
            undecided += [
                (entry.key, entry.value) for entry in answer.open_records if entry.value is not None
            ]
        return cls(
            tuple(readable_runs(committed)),
            tuple(readable_runs(undecided)),
            frozenset(named_writer(value.text) for _, value in committed),
            frozenset(named_writer(value.text) for _, value in undecided),
            "; ".join(unaccounted),
        )

    def transactional_id(self, producer_id: int) -> str | None:
        """Return the transactional id of a producer id from run records: coordinators forget unused ids."""
        producers = (record.producer for record in (*self.records, *self.open_records))
        return next((it.transactional_id for it in producers if it.producer_id == producer_id), None)


def _search(control: ControlPlane, topics: Collection[str], runs: Callable[[], _Runs]) -> HangingTransactions:
    prefix = control.deployment.prefix
    left = LeftOpen(control.cluster, prefix, lambda producer_id: runs().transactional_id(producer_id))
    candidates = [(it, _hanging(control.cluster, runs(), it)) for it in left.candidates(topics)]
    still = left.still(candidate for candidate, _ in candidates)
    return HangingTransactions(
        tuple(transaction for candidate, transaction in candidates if candidate in still), left.unseen
    )


def _hanging(cluster: Cluster, runs: _Runs, left: Left) -> Hanging:
    producer = left.producer
    decision, because = _decision(cluster, runs, producer, left.description)
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
    cluster: Cluster, runs: _Runs, producer: ActiveProducer, description: TransactionDescription | None
) -> tuple[Decision, str]:
    writer = producer.producer_id, producer.producer_epoch
    if writer in runs.committed:
        return "commit", "the ledger holds its run"
    is_committed = coordinator_decision(description, *writer)
    if is_committed is not None:
        return "commit" if is_committed else "abort", "its coordinator says so"
    producers = {(it.producer.producer_id, it.producer.producer_epoch): it for it in runs.open_records}
    record = producers.get(writer)
    if record is not None:
        seen = visible_decision(cluster, record)
        if seen is not None:
            return "commit" if seen else "abort", f"the other records of {record.run_key} show it"
        return "unknown", f"the record of {record.run_key} hangs with it, and there is no other evidence"
    if writer in runs.undecided:
        return "unknown", "its run record hangs with it and cannot be read: upgrade airflow-eos"
    if runs.unaccounted:
        return "unknown", runs.unaccounted
    return "abort", "the ledger has no run of it"


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
