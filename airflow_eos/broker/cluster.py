"""Reads of the cluster's state: the ``Cluster`` port on a real cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_eos.broker.features import broker_features
from airflow_eos.broker.shared_connections import Link, through_link
from airflow_eos.exceptions import AuthorizationFailed, EosError
from airflow_eos.model.kafka import ProducerIdentity, TimedOffset, TopicDescription
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire import describe_configs, groups, offsets, txn_requests
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.first_record import first_records
from airflow_eos.wire.next_data import next_data
from airflow_eos.wire.offsets import Isolation, first_since, list_offsets

log = logging.getLogger(__name__)


@dataclass(eq=False)
class KafkaCluster:
    """The cluster's current state, requested from the brokers at each call.

    Transient errors are retried until :data:`~airflow_eos.wire.connection.METADATA_TIMEOUT`.
    """

    link: Link

    features = through_link(broker_features)
    brokers = through_link(BrokerConnections.brokers)
    silent_brokers = through_link(BrokerConnections.silent_brokers)
    topic_settings = through_link(describe_configs.topic_settings)
    log_bounds = through_link(offsets.log_bounds)
    epoch_ends = through_link(offsets.epoch_ends)
    max_timestamps = through_link(offsets.max_timestamps)
    committed = through_link(groups.fetch_committed_offsets)
    has_pending_offsets = through_link(groups.has_pending_offsets)
    describe_group = through_link(groups.describe_group)
    group_offsets_partition = through_link(groups.offsets_partition)
    describe_transaction = through_link(txn_requests.describe_transaction)
    describe_producers = through_link(txn_requests.describe_producers)
    transactional_ids = through_link(txn_requests.list_transactions)
    open_transactional_ids = through_link(txn_requests.open_transactional_ids)

    def describe_topics(
        self, topics: Collection[str], *, optional: Collection[str] = (), wait: bool = True
    ) -> Mapping[str, TopicDescription]:
        """See :class:`~airflow_eos.ports.Cluster`.

        :param wait: retry an unknown topic for some seconds, because the broker's metadata may be stale.
        """
        with self.link.connections() as connections:
            metadata, failed = connections.visible_topics([*topics, *optional])
            if missing := failed.keys() & set(topics):
                metadata |= connections.topics(missing, wait=wait)
        return metadata

    def topic_operations(self, topics: Collection[str]) -> Mapping[str, frozenset[str] | None]:
        """See :class:`~airflow_eos.ports.Cluster`; none are allowed where even Describe is missing."""
        metadata, failed = self.link.ask(BrokerConnections.visible_topics, topics)
        denied = {
            name: frozenset[str]() if isinstance(error, AuthorizationFailed) else None
            for name, error in failed.items()
        }
        return {**denied, **{name: topic.operations for name, topic in metadata.items()}}

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See :class:`~airflow_eos.ports.Cluster`."""
        return self.link.ask(list_offsets, partitions, "earliest")

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See :class:`~airflow_eos.ports.Cluster`."""
        return self.link.ask(list_offsets, partitions, "latest", isolation="read_uncommitted")

    def last_stable_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See :class:`~airflow_eos.ports.Cluster`."""
        return self.link.ask(list_offsets, partitions, "latest")

    def next_data(self, ranges: Collection[OffsetRange]) -> Mapping[TopicPartition, int]:
        """See :class:`~airflow_eos.ports.Cluster`; the start of a range whose log cannot be read.

        The run that reads such a range will raise.
        """
        with self.link.connections() as connections:

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
        """See :class:`~airflow_eos.ports.Cluster`.

        Includes records of open and aborted transactions: a boundary, once recorded, must not depend on when
        another application's transaction ends. Without ``markers``, the log is read
        beyond a first hit that is a marker.
        """
        firsts = self.link.ask(first_since, partitions, timestamp_ms)
        if markers and None not in firsts.values():
            return firsts
        return self.link.ask(first_records, firsts, timestamp_ms, markers=markers)

    def is_visible(self, tp: TopicPartition, offset: int, producer: ProducerIdentity) -> bool | None:
        """See :class:`~airflow_eos.ports.Cluster`."""
        with self.link.connections() as connections:
            start = list_offsets(connections, [tp], "earliest")[tp]
            stable = list_offsets(connections, [tp], "latest")[tp]
            if not start <= offset < stable:
                return None

            writer = (producer.producer_id, producer.producer_epoch)

            def holds(isolation: Isolation) -> bool:
                answers = fetch_answers(connections, tp, offset, offset + 1, isolation=isolation)
                return any(
                    (batch.header.producer_id, batch.header.producer_epoch) == writer
                    and len(decode_batch(batch, start=offset, end=offset + 1, headers=False))
                    for answer in answers
                    for batch in data_batches(answer.batches, answer.aborted)
                )

            return holds("read_committed") or (False if holds("read_uncommitted") else None)

    def limit_patience(self, seconds: float) -> None:
        """Limit the retries of every later request on these connections to so many seconds."""
        with self.link.connections() as connections:
            connections.patience = seconds
