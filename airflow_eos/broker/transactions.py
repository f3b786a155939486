"""Takes epochs, runs and ends transactions: the ``Transactions`` port on a real cluster."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.librdkafka import checked
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.broker.shared_connections import Link, LinkUser
from airflow_eos.exceptions import ProducerFenced, ProtocolViolation
from airflow_eos.model.kafka import CommittedOffset, EndTxnAnswer, ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.signature import LedgerKey
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.txn_offsets import add_offsets_to_txn, stage_offsets
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn, write_txn_markers

log = logging.getLogger(__name__)

FENCE_TIMEOUT = dt.timedelta(seconds=60)
"""For a coordinator that moves, and for the markers of the transaction that the fence ends."""
COMMIT_TIMEOUT = dt.timedelta(seconds=30)
"""A coordinator fail-over took 10 to 13 s; an answer that was lost never comes."""
ABORT_TIMEOUT = 60.0
"""Seconds to find the coordinator and get its answer."""


class KafkaTransactions(LinkUser):
    """Fences older attempts and ends transactions by identity; a context manager.

    :param config: client configuration in librdkafka's names.
    :param ledger: where sessions stage their ledger messages.
    :param key: signs these messages, where it has a secret.
    :param transaction_timeout: the coordinator aborts a transaction after this time.
    :param delivery_timeout: for offsets and ledger messages of one transaction.
    :param commit_timeout: until the answer to a commit counts as lost.
    :param fence_timeout: for initialising a producer, with all retries.
    :param link: raw connections to share; own ones by default.
    """

    def __init__(
        self,
        config: ClientConfig | Mapping[str, Any],
        *,
        ledger: KafkaLedger,
        key: LedgerKey | None = None,
        transaction_timeout: dt.timedelta,
        delivery_timeout: dt.timedelta,
        commit_timeout: dt.timedelta = COMMIT_TIMEOUT,
        fence_timeout: dt.timedelta = FENCE_TIMEOUT,
        link: Link | None = None,
    ) -> None:
        super().__init__(config, link)
        self._ledger = ledger
        self._key = key or LedgerKey()
        self._transaction_timeout = transaction_timeout.total_seconds()
        self._delivery_timeout = delivery_timeout.total_seconds()
        self._commit_timeout = commit_timeout.total_seconds()
        self._fence_timeout = fence_timeout.total_seconds()

    def fence(self, transactional_id: str) -> KafkaSession:
        """Initialise a new producer instance, which fences older ones and aborts what they left open.

        Returns when that abort, or a commit under way, has completed on every partition.

        :raises AuthorizationFailed: without Write on the transactional id.
        :raises TimeoutsInconsistent: when brokers do not allow the transaction time-out.
        :raises BrokersUnavailable: when no coordinator answered in time.
        """
        producer = TransactionalProducer(
            self._config,
            transactional_id,
            transaction_timeout=self._transaction_timeout,
            delivery_timeout=self._delivery_timeout,
        )
        try:
            identity = producer.initialise(self._fence_timeout, topic=self._ledger.topic)
        except BaseException:
            producer.close()
            raise
        log.info(
            "Only writer of transaction %s from now on: producer id %d, epoch %d",
            transactional_id,
            identity.producer_id,
            identity.producer_epoch,
        )
        return KafkaSession(
            producer,
            identity,
            ledger=self._ledger,
            key=self._key,
            add_partitions=self._add_partitions,
            stage_offsets=self._stage_offsets,
            stage_timeout=self._delivery_timeout,
            commit_timeout=self._commit_timeout,
        )

    def abort(self, identity: ProducerIdentity, *, timeout: float = ABORT_TIMEOUT) -> EndTxnAnswer:
        """Send EndTxn(abort) with exactly this identity; initialises nothing.

        It opens connections of its own, so a signal handler or another thread may call it at any moment.
        Asked again after its own abort, the coordinator confirms it: ENDED too.

        :param timeout: seconds, with all retries.
        :raises BrokersUnavailable: when no coordinator answered in time: nothing is known then.
        """
        deadline = time.monotonic() + timeout
        with BrokerConnections(self._config, bootstrap_timeout=timeout) as connections:
            left = max(deadline - time.monotonic(), 0.0)
            answer = end_txn(connections, identity, commit=False, timeout=left)
        log.info(
            "asked the coordinator to abort what %r may have open (producer epoch %d): %s",
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
        """Abort what an earlier transaction of this producer id left open in some partitions.

        By a transaction of its own, into which nothing is written: whoever ends it, by whatever death or
        time-out, aborts it. That is why there is no such way to commit.

        :param group: its pending offsets are dropped too.
        :returns: ENDED; FENCED: a newer attempt exists.
        :raises BrokersUnavailable: when a coordinator did not answer in time: ask again.
        """
        with self._link.connections() as connections:
            try:
                add_partitions_to_txn(connections, identity, partitions)
                if group is not None:
                    add_offsets_to_txn(connections, identity, group)
            except ProducerFenced:
                return EndTxnAnswer.FENCED
            return end_txn(connections, identity, commit=False)

    def write_markers(
        self, producer_id: int, epoch: int, partitions: Collection[TopicPartition], *, commit: bool
    ) -> None:
        """Write the markers of a decided transaction that its coordinator left out (WriteTxnMarkers).

        Leaders refuse them where a newer epoch has written since.

        :raises AuthorizationFailed: without ClusterAction, or Alter, on the cluster.
        :raises BrokersUnavailable: when a leader did not answer in time.
        """
        with self._link.connections() as connections:
            write_txn_markers(connections, producer_id, epoch, partitions, commit=commit)

    def _add_partitions(self, identity: ProducerIdentity, partitions: Collection[TopicPartition]) -> None:
        with self._link.connections() as connections:
            add_partitions_to_txn(connections, identity, partitions)

    def _stage_offsets(
        self,
        identity: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        timeout: float,
    ) -> None:
        with self._link.connections() as connections:
            stage_offsets(connections, identity, group, offsets, timeout=timeout)


OFFSETS_TIMEOUT = 30.0
"""Seconds for both coordinators: a fail-over took 10 to 13 s, 9 of them brokers need to notice a dead one."""

AddPartitions = Callable[[ProducerIdentity, Collection[TopicPartition]], None]
StageOffsets = Callable[[ProducerIdentity, str, Mapping[TopicPartition, CommittedOffset], float], None]


class KafkaSession:
    """One initialised producer instance, good for one transaction (law 2).

    :param producer: owned by the session; :meth:`close` drops it.
    :param identity: identity of ``producer``.
    :param ledger: where the staged messages go.
    :param key: signs them, where it has a secret.
    :param add_partitions: sends AddPartitionsToTxn with a given identity.
    :param stage_offsets: sends a group's offsets with a given identity, within given seconds.
    :param stage_timeout: seconds for offsets and ledger messages to be acknowledged.
    :param commit_timeout: seconds until the answer to EndTxn(commit) counts as lost.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        identity: ProducerIdentity,
        *,
        ledger: KafkaLedger,
        key: LedgerKey,
        add_partitions: AddPartitions,
        stage_offsets: StageOffsets,
        stage_timeout: float,
        commit_timeout: float,
    ) -> None:
        self._producer = producer
        self._identity = identity
        self._ledger = ledger
        self._key = key
        self._add_partitions = add_partitions
        self._stage_offsets = stage_offsets
        self._stage_timeout = stage_timeout
        self._commit_timeout = commit_timeout
        self._staged = False

    def __repr__(self) -> str:
        return f"KafkaSession({self._identity})"

    @property
    def identity(self) -> ProducerIdentity:
        """The identity the coordinator gave to this instance."""
        return self._identity

    def begin(self) -> None:
        """Begin the transaction; librdkafka tells nobody yet."""
        checked(self._doing("begin"), self._producer.instance.begin_transaction)

    def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions in one AddPartitionsToTxn request; librdkafka does not know of them."""
        self._add_partitions(self._identity, partitions)

    def stage(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], messages: Sequence[LedgerMessage]
    ) -> Sequence[int]:
        """Send offsets and ledger messages into the transaction and wait until brokers have acknowledged all.

        :param group: consumer group; it needs no members.
        :param offsets: next offsets to read, with metadata; may be empty. librdkafka does not know of them.
        :param messages: at least one, so that the transaction is librdkafka's own too: it ends no
            transaction into which it sent nothing itself, and says success.
        :returns: the messages' offsets; below 0 where a broker does not tell.
        :raises ProducerFenced: when the identity is no longer valid.
        :raises AuthorizationFailed: without Read on the group, or Write on the ledger.
        :raises DeliveryTimedOut: when a ledger message was not acknowledged in time.
        :raises BrokersUnavailable: when the group's coordinator did not answer in time.
        """
        if not messages:
            raise ValueError(f"a transaction of {self._identity.transactional_id!r} needs a ledger message")
        deadline = time.monotonic() + self._stage_timeout
        if offsets:
            self._stage_offsets(self._identity, group, offsets, min(self._stage_timeout, OFFSETS_TIMEOUT))
        records = [
            (self._ledger.partition_for(m.routing) if m.partition is None else m.partition, m.key, m.value)
            for m in messages
        ]
        left = max(deadline - time.monotonic(), 1.0)
        written = self._producer.publish(self._ledger.topic, records, left, self._sign)
        self._staged = True
        return written

    def _sign(self, partition: int, key: str, value: str | None) -> bytes | None:
        producer = self._identity.producer_id, self._identity.producer_epoch
        ledger = self._ledger
        topic_id = ledger.topic_id if self._key else ""
        return self._key.sign(ledger.topic, topic_id, partition, producer, key, value)

    def commit(self) -> None:
        """Commit; returns when the coordinator has decided, before all markers are written.

        Any exception leaves the outcome unknown.
        """
        if not self._staged:
            raise ProtocolViolation(
                f"{self._doing('commit')}: nothing was staged, so librdkafka would send no EndTxn"
            )
        doing = self._doing(f"commit within {self._commit_timeout:.0f} s")
        self._producer.commit(doing, self._commit_timeout)

    def close(self) -> None:
        """Drop the instance: sends nothing, ends nothing."""
        self._producer.close()

    def _doing(self, what: str) -> str:
        return (
            f"transaction of {self._identity.transactional_id!r} (producer id {self._identity.producer_id}, "
            f"epoch {self._identity.producer_epoch}): {what}"
        )
