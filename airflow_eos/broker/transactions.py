"""Fences, runs and ends transactions: the ``Transactions`` port on a real cluster."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.librdkafka import checked
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.broker.shared_connections import Link, through_link
from airflow_eos.exceptions import ProducerFenced, ProtocolViolation, TimeoutsInconsistent
from airflow_eos.model.kafka import CommittedOffset, EndTxnAnswer, ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.signature import SignedRecord
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.txn_offsets import add_offsets_to_txn, stage_offsets
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn, write_txn_markers

log = logging.getLogger(__name__)

FENCE_TIMEOUT = dt.timedelta(seconds=60)
"""Covers a coordinator that moves, and the markers of the transaction that the fence ends."""
COMMIT_TIMEOUT = dt.timedelta(seconds=30)
"""A coordinator failover took 10 to 13 s; a lost answer never arrives."""
ABORT_TIMEOUT = 60.0
"""Seconds to find the coordinator and get its answer."""


@dataclass(eq=False)
class KafkaTransactions:
    """Fences older attempts and ends transactions by producer id and epoch.

    :param ledger: the ledger to which sessions write their messages, signed if it has a key.
    :param transaction_timeout: the coordinator aborts a transaction after this time.
    :param delivery_timeout: for offsets and ledger messages of one transaction.
    :param may_be_shorter: whether to halve the time-outs until the brokers allow them; otherwise they refuse
        the fence.
    :param commit_timeout: time after which the answer to a commit counts as lost.
    :param fence_timeout: for initialising a producer, including all retries.
    """

    link: Link
    _: KW_ONLY
    ledger: KafkaLedger
    transaction_timeout: dt.timedelta
    delivery_timeout: dt.timedelta
    may_be_shorter: bool = False
    commit_timeout: dt.timedelta = COMMIT_TIMEOUT
    fence_timeout: dt.timedelta = FENCE_TIMEOUT

    def fence(self, transactional_id: str, *, announced: bool = True) -> KafkaSession:
        """Initialise a new producer instance, which fences older ones and aborts their open transaction.

        Returns when that abort, or a commit in progress, has completed on every partition.

        :param announced: log the identity, which distinguishes attempts; False for a check.
        :raises AuthorizationFailed: Write on the transactional id is missing.
        :raises TimeoutsInconsistent: the brokers do not allow the transaction timeout.
        :raises BrokersUnavailable: no coordinator answered in time.
        """
        transaction = self.transaction_timeout.total_seconds()
        delivery = self.delivery_timeout.total_seconds()
        producer = TransactionalProducer(
            self.link.config, transactional_id, transaction_timeout=transaction, delivery_timeout=delivery
        )
        try:
            timeout, cluster_id = self.fence_timeout.total_seconds(), self.link.cluster_id
            identity = producer.initialise(timeout, topic=self.ledger.topic, cluster_id=cluster_id)
        except BaseException as error:
            producer.close()
            if not (self.may_be_shorter and isinstance(error, TimeoutsInconsistent)):
                raise
            # Their limit may be unreadable: the principal need not have DescribeConfigs.
            half = self.transaction_timeout / 2
            delivery_timeout = min(self.delivery_timeout, half / 2)
            shorter = replace(self, transaction_timeout=half, delivery_timeout=delivery_timeout)
            return shorter.fence(transactional_id, announced=announced)
        log.log(
            logging.INFO if announced else logging.DEBUG,
            "Only writer of transaction %s from now on: producer id %d, epoch %d",
            transactional_id,
            identity.producer_id,
            identity.producer_epoch,
        )
        return KafkaSession(
            producer,
            identity,
            self.ledger,
            self.link,
            transaction_timeout=self.transaction_timeout,
            stage_timeout=delivery,
            commit_timeout=self.commit_timeout.total_seconds(),
        )

    def abort(self, identity: ProducerIdentity, *, timeout: float = ABORT_TIMEOUT) -> EndTxnAnswer:
        """See :class:`~airflow_eos.ports.Transactions`; a repeated abort also returns ENDED.

        It opens its own connections, so a signal handler or another thread may call it at any time.

        :raises BrokersUnavailable: no coordinator answered in time; the outcome is unknown.
        """
        deadline = time.monotonic() + timeout
        with BrokerConnections(self.link.config, bootstrap_timeout=timeout) as connections:
            left = max(deadline - time.monotonic(), 0.0)
            answer = end_txn(connections, identity, commit=False, timeout=left)
        log.info(
            "Asked the coordinator to abort any open transaction of %r (producer epoch %d): %s",
            identity.transactional_id,
            identity.producer_epoch,
            answer.value,
        )
        return answer

    def abort_again(
        self,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        group: str | None = None,
    ) -> EndTxnAnswer:
        """See :class:`~airflow_eos.ports.Transactions`.

        :raises BrokersUnavailable: a coordinator did not answer in time; call it again.
        """
        with self.link.connections() as connections:
            try:
                add_partitions_to_txn(connections, identity, partitions)
                if group is not None:
                    add_offsets_to_txn(connections, identity, group)
            except ProducerFenced:
                return EndTxnAnswer.FENCED
            return end_txn(connections, identity, commit=False)

    write_markers = through_link(write_txn_markers)


OFFSETS_TIMEOUT = 30.0
"""Seconds for both coordinators: a failover took 10 to 13 s, 9 s of them to detect the dead broker."""


@dataclass(eq=False)
class KafkaSession:
    """One initialised producer instance for one transaction (law 2).

    :param producer: owned by the session; :meth:`close` drops it.
    :param identity: producer id and epoch of ``producer``.
    :param ledger: receives the staged messages, signed if it has a key.
    :param link: sends partitions and offsets of the transaction, which ``producer`` does not know.
    :param transaction_timeout: the coordinator aborts the transaction after this time.
    :param stage_timeout: seconds for offsets and ledger messages to be acknowledged.
    :param commit_timeout: seconds until the answer to EndTxn(commit) counts as lost.
    """

    producer: TransactionalProducer = field(repr=False)
    identity: ProducerIdentity
    ledger: KafkaLedger = field(repr=False)
    link: Link = field(repr=False)
    transaction_timeout: dt.timedelta
    stage_timeout: float
    commit_timeout: float
    _staged: bool = field(default=False, init=False)

    def begin(self) -> None:
        """See :class:`~airflow_eos.ports.ProducerSession`."""
        checked(self._doing("begin"), self.producer.instance.begin_transaction)

    def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """See :class:`~airflow_eos.ports.ProducerSession`; librdkafka does not know of them."""
        self.link.ask(add_partitions_to_txn, self.identity, partitions)

    def stage(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], messages: Sequence[LedgerMessage]
    ) -> Sequence[int]:
        """See :class:`~airflow_eos.ports.ProducerSession`; librdkafka does not know of the offsets.

        :param messages: at least one: librdkafka reports success without sending EndTxn if it has sent
            nothing itself in the transaction.
        :raises ProducerFenced: the producer id and epoch are no longer valid.
        :raises AuthorizationFailed: Read on the group, or Write on the ledger, is missing.
        :raises DeliveryTimedOut: a ledger message was not acknowledged in time.
        :raises BrokersUnavailable: the group's coordinator did not answer in time.
        """
        if not messages:
            raise ValueError(f"a transaction of {self.identity.transactional_id!r} needs a ledger message")
        deadline = time.monotonic() + self.stage_timeout
        if offsets:
            timeout = min(self.stage_timeout, OFFSETS_TIMEOUT)
            self.link.ask(stage_offsets, self.identity, group, offsets, timeout=timeout)
        records = [
            (self.ledger.partition_for(m.routing) if m.partition is None else m.partition, m.key, m.value)
            for m in messages
        ]
        left = max(deadline - time.monotonic(), 1.0)
        written = self.producer.publish(self.ledger.topic, records, left, self._sign)
        self._staged = True
        return written

    def _sign(self, partition: int, key: str, value: str | None) -> bytes | None:
        producer = self.identity.producer_id, self.identity.producer_epoch
        ledger = self.ledger
        topic_id = ledger.topic_id if ledger.key else ""
        return ledger.key.sign(SignedRecord(ledger.topic, topic_id, partition, producer, key, value))

    def commit(self) -> None:
        """See :class:`~airflow_eos.ports.ProducerSession`."""
        if not self._staged:
            raise ProtocolViolation(
                f"{self._doing('commit')}: nothing was staged, so librdkafka would send no EndTxn"
            )
        doing = self._doing(f"commit within {self.commit_timeout:.0f} s")
        self.producer.commit(doing, self.commit_timeout)

    def close(self) -> None:
        """See :class:`~airflow_eos.ports.ProducerSession`."""
        self.producer.close()

    def _doing(self, action: str) -> str:
        return (
            f"transaction of {self.identity.transactional_id!r} (producer id {self.identity.producer_id}, "
            f"epoch {self.identity.producer_epoch}): {action}"
        )
