"""Reads of the cluster's state: the ``Cluster`` port on a real cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from airflow_eos.broker.features import broker_features
from airflow_eos.broker.shared_connections import LinkUser
from airflow_eos.exceptions import AuthorizationFailed, EosError
from airflow_eos.model.kafka import (
    ActiveProducer,
    BrokerFeatures,
    CommittedOffset,
    GroupDescription,
    LogBounds,
    ProducerIdentity,
    TimedOffset,
    TopicDescription,
)
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.describe_configs import topic_settings
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.first_record import first_record_since
from airflow_eos.wire.groups import (
    describe_group,
    fetch_committed_offsets,
    has_pending_offsets,
    offsets_partition,
)
from airflow_eos.wire.next_data import next_data
from airflow_eos.wire.offsets import (
    Isolation,
    epoch_ends,
    first_since,
    list_offsets,
    log_bounds,
    max_timestamps,
)
from airflow_eos.wire.txn_requests import (
    TransactionStatus,
    describe_producers,
    describe_transaction,
    list_transactions,
    open_transactional_ids,
)

log = logging.getLogger(__name__)


class KafkaCluster(LinkUser):
    """The cluster's current state, requested from the brokers at each call; a context manager.

    Transient errors are retried until :data:`~airflow_eos.wire.connection.METADATA_TIMEOUT`.
    """

    # -- topics -------------------------------------------------------------------------------------------

    def describe_topics(
        self, topics: Collection[str], *, optional: Collection[str] = (), wait: bool = True
    ) -> Mapping[str, TopicDescription]:
        """See :class:`~airflow_eos.ports.Cluster`.

        :param wait: retry an unknown topic for some seconds, because the broker's metadata may be stale.
        """
        with self._link.connections() as connections:
            metadata, failed = connections.visible_topics([*topics, *optional])
            if missing := failed.keys() & set(topics):
                metadata |= connections.topics(missing, wait=wait)
        return metadata

    def topic_operations(self, topics: Collection[str]) -> Mapping[str, frozenset[str] | None]:
        """Return the allowed operations per topic; none where even Describe is missing.

        A value is None if the broker does not say, or the topic does not exist.
        """
        metadata, failed = self._link.ask(BrokerConnections.visible_topics, topics)
        denied = {
            name: frozenset[str]() if isinstance(error, AuthorizationFailed) else None
            for name, error in failed.items()
        }
        return {**denied, **{name: topic.operations for name, topic in metadata.items()}}

    def topic_settings(self, topics: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Return settings per topic; omits topics that do not exist, or whose settings may not be read."""
        return self._link.ask(topic_settings, topics)

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return self._link.ask(list_offsets, partitions, "earliest")

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermark of each partition, which includes open transactions."""
        return self._link.ask(list_offsets, partitions, "latest", isolation="read_uncommitted")

    def last_stable_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return each last stable offset (LSO): first offset of the oldest open transaction, or log end."""
        return self._link.ask(list_offsets, partitions, "latest")

    def log_bounds(self, partitions: Collection[TopicPartition], *, ends: bool = True) -> LogBounds:
        """Return start, last stable offset and high watermark of each log, requested together.

        :param ends: False leaves the high watermarks out.
        """
        return self._link.ask(log_bounds, partitions, ends=ends)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the first offset behind what leaders up to an epoch have written; -1 if unknown."""
        return self._link.ask(epoch_ends, epochs)

    def next_data(self, ranges: Collection[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return an offset of each range below which it has no record for ``read_committed`` readers.

        If the log cannot be read, that is the start of the range; the run that reads the range will raise.
        """
        with self._link.connections() as connections:

            def begin(wanted: OffsetRange) -> int:
                try:
                    return next_data(connections, wanted)
                except EosError as error:
                    log.info("Cannot search %s for its next record: %s", wanted.topic_partition, error)
                    return wanted.start

            return {wanted.topic_partition: begin(wanted) for wanted in ranges}

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, *, markers: bool = False
    ) -> Mapping[TopicPartition, TimedOffset | None]:
        """Return per partition the first record with timestamp >= ``timestamp_ms``, None if there is none.

        Includes records of open and aborted transactions: a boundary, once recorded, must not depend on when
        another application's transaction ends.

        :param markers: include transaction markers, which have the brokers' time. Without them, a log whose
            first hit is a marker is read from there on.
        """
        return self._link.ask(first_since if markers else first_record_since, partitions, timestamp_ms)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the highest timestamp in each log, including markers, in ms since 1970; -1 if empty."""
        return self._link.ask(max_timestamps, partitions)

    def is_visible(self, tp: TopicPartition, offset: int, producer: ProducerIdentity) -> bool | None:
        """See :class:`~airflow_eos.ports.Cluster`."""
        with self._link.connections() as connections:
            start = list_offsets(connections, [tp], "earliest")[tp]
            stable = list_offsets(connections, [tp], "latest")[tp]
            if not start <= offset < stable:
                return None

            writer = (producer.producer_id, producer.producer_epoch)

            def holds(isolation: Isolation) -> bool:
                answers = fetch_answers(
                    connections, tp.topic, tp.partition, offset, offset + 1, isolation=isolation
                )
                return any(
                    (batch.header.producer_id, batch.header.producer_epoch) == writer
                    and len(decode_batch(batch, start=offset, end=offset + 1, headers=False))
                    for answer in answers
                    for batch in data_batches(answer.batches, answer.aborted)
                )

            return holds("read_committed") or (False if holds("read_uncommitted") else None)

    # -- groups -------------------------------------------------------------------------------------------

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """See :class:`~airflow_eos.ports.Cluster`.

        :raises AuthorizationFailed: Describe on the group or a topic is missing.
        """
        return self._link.ask(fetch_committed_offsets, group, partitions, stable=stable)

    def has_pending_offsets(self, group: str, partitions: Collection[TopicPartition]) -> bool:
        """Return whether an open transaction holds offsets of the group now (KIP-447).

        :raises AuthorizationFailed: Describe on the group or a topic is missing.
        """
        return self._link.ask(has_pending_offsets, group, partitions)

    def describe_group(self, group: str) -> GroupDescription:
        """See :class:`~airflow_eos.ports.Cluster`."""
        return self._link.ask(describe_group, group)

    def group_offsets_partition(self, group: str) -> TopicPartition:
        """Return the ``__consumer_offsets`` partition that stores the group's commits."""
        return self._link.ask(offsets_partition, group)

    # -- brokers ------------------------------------------------------------------------------------------

    def brokers(self) -> int:
        """Return the number of brokers."""
        return len(self._link.ask(BrokerConnections.brokers))

    def silent_brokers(self) -> list[int]:
        """Return the node ids of brokers that the others name, and that do not answer."""
        return self._link.ask(BrokerConnections.silent_brokers)

    def limit_patience(self, seconds: float) -> None:
        """Ask again for so many seconds at most, in all requests of the connections from now on."""
        with self._link.connections() as connections:
            connections.patience = seconds

    def features(self) -> BrokerFeatures:
        """Return what the brokers guarantee and allow."""
        return self._link.ask(broker_features)

    # -- transactions -------------------------------------------------------------------------------------

    def describe_transaction(self, transactional_id: str) -> TransactionStatus | None:
        """Return the coordinator's view of a transactional id; None if it does not know the id (KIP-664)."""
        return self._link.ask(describe_transaction, transactional_id)

    def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        """Return the producers that each partition's leader knows (KIP-664)."""
        return self._link.ask(describe_producers, partitions)

    def transactional_ids(self, producer_ids: Collection[int]) -> Mapping[int, str]:
        """Return the transactional id of each producer id, where this principal may Describe it."""
        return self._link.ask(list_transactions, producer_ids)

    def open_transactional_ids(self) -> Sequence[str]:
        """Return the ids of all open transactions that this principal may Describe, sorted."""
        return self._link.ask(open_transactional_ids)
