"""Ends transactions that a coordinator has left open.

Brokers of 4.x omit the markers of a partition whose leader is unavailable when a transaction ends, and call
the transaction complete (KAFKA-20734). Its records there stay open: readers wait below them, and the next
marker of the same producer id, of any transaction, decides them. So nothing is written after an open
transaction of our own: it is ended first, as it was decided, by an empty transaction.

The ledger knows the decision: its record is part of the transaction, and names producer id and epoch, which
belong to one transaction only (law 2).
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import AuthorizationFailed, NotYetVisible, OutcomeUnknown
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority, answer_of
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import RunRecord, named_writer
from airflow_eos.ledger.writer import is_overtaken, open_of
from airflow_eos.model.kafka import (
    ActiveProducer,
    EndTxnAnswer,
    ProducerIdentity,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster, Ledger, Transactions
from airflow_eos.run import laws
from airflow_eos.run.topics import TopicsNow

log = logging.getLogger(__name__)

_COMMITS = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
_ABORTS = (
    TransactionState.ONGOING,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)


@dataclass(eq=False)
class UnfinishedEnds:
    """Asks leaders for open transactions of our own producer id, after the fence, and ends them.

    After the fence all of them are over: one that a leader still calls open lacks its marker, or belongs to
    a newer attempt that has fenced this one.

    :ivar description: the coordinator's description of the transaction that the fence ended.
    :ivar offsets_ended: whether this run has ended pending offsets.
    """

    spec: RunSpec
    cluster: Cluster
    transactions: Transactions
    ledger: Ledger
    authority: Authority
    description: TransactionDescription | None = None
    offsets_ended: bool = False

    def before_fence(self, transactional_id: str) -> None:
        """Store the coordinator's description of the transaction that the fence ends."""
        try:
            self.description = self.cluster.describe_transaction(transactional_id)
        except Exception as failure:  # noqa: BLE001 - it is one witness of several
            log.debug("%s could not be described: %s", transactional_id, failure)
            self.description = None

    def end_in_ledger(self, producer: ProducerIdentity, topics: TopicsNow) -> EndTxnAnswer | None:
        """End open transactions in the ledger's partitions of this run, and pending offsets of its cursor.

        :param topics: as they are after the fence.
        :returns: None if nothing was open; else the coordinator's answer, and the epoch is used up.
        :raises OutcomeUnknown: the decision about such a transaction is unknown.
        :raises UnknownTopic: the ledger was deleted.
        """
        routings = {self.spec.pipeline, *([self.spec.group_id] if keys.moves_cursor(self.spec) else ())}
        numbers = sorted({self.ledger.partition_for(routing) for routing in routings})
        answer = self.end(producer, [TopicPartition(self.spec.ledger.topic, n) for n in numbers])
        return self._end_offsets(producer, topics) if answer is None else answer

    # -- records --

    def end(self, producer: ProducerIdentity, partitions: Collection[TopicPartition]) -> EndTxnAnswer | None:
        """End open transactions in partitions of this run; see :meth:`end_in_ledger`."""
        open_there = open_of(self.cluster, producer.producer_id, partitions)
        if laws.nothing_open(open_there):
            return None
        if is_overtaken(producer.producer_epoch, open_there):
            return EndTxnAnswer.FENCED
        committed = {
            epoch: self._was_committed(producer.producer_id, epoch, open_there)
            for epoch in {producer.producer_epoch for producer in open_there.values()}
        }
        commits = {tp: active for tp, active in open_there.items() if committed[active.producer_epoch]}
        aborts = sorted(open_there.keys() - commits.keys())
        if commits:
            write_commit_markers(self.transactions, producer, commits)
        if not aborts:
            return None
        log.warning(
            "%s: markers of an aborted transaction of %s are missing; writing them now",
            ", ".join(map(str, aborts)),
            producer.transactional_id,
        )
        return self.transactions.abort_again(producer, aborts)

    def _was_committed(
        self, producer_id: int, epoch: int, open_there: Mapping[TopicPartition, ActiveProducer]
    ) -> bool:
        undecided: list[RunRecord] = []
        complete = True
        for partition in self._witnesses(producer_id, open_there):
            view = self.ledger.view(partition, (), (keys.RUN_RECORDS,))
            # A record that lacks only a signature may be this very run's.
            answer, complete = answer_of(view), complete and not view.log_start and not view.unsigned
            writer = producer_id, epoch
            if any(named_writer(value.text) == writer for value in answer.committed.values()):
                return True
            undecided += [
                RunRecord.from_json(entry.value, entry.key)
                for entry in answer.open_records
                if entry.value is not None and named_writer(entry.value.text) == writer
            ]
        decision = coordinator_decision(self.description, producer_id, epoch)
        if decision is None and not undecided and complete:
            return False  # a committed run has a record; the coordinator knows of a moved cursor
        if decision is None and undecided:
            decision = visible_decision(self.cluster, undecided[0])
        if decision is None:
            raise OutcomeUnknown(
                f"a transaction of producer {producer_id}, epoch {epoch}, was not ended in "
                f"{', '.join(map(str, sorted(open_there)))}, and nothing tells whether it was committed; see "
                "`airflow eos repair`"
            )
        return decision

    def _witnesses(
        self, producer_id: int, open_there: Mapping[TopicPartition, ActiveProducer]
    ) -> Collection[int]:
        """Return the ledger partitions that may contain the run record of such a transaction."""
        partitions = {self.ledger.partition_for(self.spec.pipeline)}
        for tp in open_there:
            if tp.topic != self.spec.ledger.topic:
                continue
            answer = answer_of(self.ledger.view(tp.partition, (), (keys.RUN_RECORDS, keys.CURSORS)))
            named = (
                _pipeline(entry.value) for entry in answer.open_records if entry.producer_id == producer_id
            )
            partitions |= {self.ledger.partition_for(pipeline) for pipeline in named if pipeline}
        return partitions

    # -- offsets --

    def _end_offsets(self, producer: ProducerIdentity, topics: TopicsNow) -> EndTxnAnswer | None:
        """End pending offsets of the cursor: after the fence they can only be ours."""
        if not keys.moves_cursor(self.spec) or self.offsets_ended:
            return None
        group, mapped = self.spec.group_id, keys.mapped_partition(self.spec)
        partitions = [tp for topic in topics.described().values() for tp in topic.topic_partitions]
        if mapped is not None:
            partitions = [tp for tp in partitions if tp == mapped]
        if not self.cluster.has_pending_offsets(group, partitions):
            return None
        self.offsets_ended = True
        cursor_key = keys.cursor_key(group, mapped)
        cursor = self.authority.record(CursorRecord, cursor_key, routing=group, fenced=True)
        committed = self.cluster.committed(group, partitions, stable=False)
        log.warning("group %r: offsets of an earlier transaction are still pending", group)
        # The ledger's cursor was committed with its offsets: if they are behind it, they lack a marker.
        if cursor and any(
            tp not in committed or committed[tp].offset < end for tp, end in cursor.ends.items()
        ):
            self._commit_offsets(producer, group, cursor)
            return None
        return self.transactions.abort_again(producer, (), group)

    def _commit_offsets(self, producer: ProducerIdentity, group: str, cursor: CursorRecord) -> None:
        """Write the marker for the offsets of the run that moved the cursor last."""
        key = keys.run_record_key(cursor.run_key)
        run = self.authority.record(RunRecord, key, routing=cursor.pipeline, fenced=True)
        if run is None:
            return  # a reset moved it; the planner reports how offsets and cursor differ
        owner = run.producer
        pending = ActiveProducer(owner.producer_id, owner.producer_epoch, last_sequence=-1)
        write_commit_markers(
            self.transactions, producer, {self.cluster.group_offsets_partition(group): pending}
        )


def write_commit_markers(
    transactions: Transactions, owner: ProducerIdentity, open_there: Mapping[TopicPartition, ActiveProducer]
) -> None:
    """Write missing markers of committed transactions; raises NotYetVisible without permission."""
    places = ", ".join(map(str, sorted(open_there)))
    log.warning(
        "%s: markers of a committed transaction of %s are missing; writing them now",
        places,
        owner.transactional_id,
    )
    by_writer: defaultdict[tuple[int, int], list[TopicPartition]] = defaultdict(list)
    for tp, active in sorted(open_there.items()):
        by_writer[active.producer_id, active.producer_epoch].append(tp)
    try:
        for (producer_id, epoch), partitions in sorted(by_writer.items()):
            transactions.write_markers(producer_id, epoch, partitions, commit=True)
    except AuthorizationFailed as error:
        raise NotYetVisible(
            f"a committed transaction of {owner.transactional_id} is not visible in {places}: "
            f"its commit markers are missing, and this principal may not write them ({error}); "
            "have `airflow eos repair` run by one that may"
        ) from error


def coordinator_decision(
    description: TransactionDescription | None, producer_id: int, epoch: int
) -> bool | None:
    """Return a coordinator's decision about a transaction; None if it describes another one."""
    if description is None or description.producer_id != producer_id:
        return None
    if description.producer_epoch == epoch and description.state in _COMMITS:
        return True
    # A time-out and a fence move the epoch on before they abort.
    if description.producer_epoch in (epoch, epoch + 1) and description.state in _ABORTS:
        return False
    return None


def visible_decision(cluster: Cluster, record: RunRecord) -> bool | None:
    """Return True if output or offsets show that a run's transaction committed, False if not; else None."""
    for receipt in record.receipts:
        if receipt.records:
            tp = TopicPartition(receipt.topic, receipt.partition)
            visible = cluster.is_visible(tp, receipt.last_offset, record.producer)
            if visible is not None:
                return visible
    partitions = sorted({r.topic_partition for r in record.ranges})
    for group in (record.group_id, f"{record.group_id}.runs"):
        committed = cluster.committed(group, partitions, stable=False)
        if any(keys.metadata_names(offset.metadata, record.run_key) for offset in committed.values()):
            return True
    return None


def _pipeline(value: LedgerValue | None) -> str | None:
    try:
        pipeline = json.loads("{}" if value is None else value.text)["pipeline"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return pipeline if isinstance(pipeline, str) else None
