"""Finds open transactions of this package that no coordinator will end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, EosError, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import ActiveProducer, TransactionDescription, without_leader
from airflow_eos.model.ranges import TopicPartition

log = logging.getLogger(__name__)


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
    """Searches topics for such transactions; read-only.

    :param prefix: prefix of this package's transactional ids.
    :param id_of: returns the transactional id of a producer id that its coordinator has forgotten, or None.
    :param unseen: receives why a topic could not be searched: it is missing, hidden, or has no leader.
    """

    cluster: KafkaCluster
    prefix: str
    id_of: Callable[[int], str | None]
    unseen: dict[str, EosError] = field(default_factory=dict)

    def candidates(self, topics: Collection[str]) -> list[Left]:
        """Return candidates; :meth:`still` removes transactions that were just being ended."""
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
