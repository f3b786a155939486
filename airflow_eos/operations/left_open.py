"""Transactions of ours that leaders hold for open although no coordinator will end them: found, not ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from airflow_eos.broker import KafkaCluster
from airflow_eos.exceptions import AuthorizationFailed, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import ActiveProducer, TransactionDescription
from airflow_eos.model.ranges import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """One of them, in one partition.

    :param word: the coordinator's of the id now; None: it does not know it.
    """

    where: TopicPartition
    producer: ActiveProducer
    transactional_id: str
    word: TransactionDescription | None


class LeftOpen:
    """Looks for them in topics; nothing is written.

    :param prefix: of the transactional ids that are ours.
    :param id_of: knows the transactional id of a producer id that its coordinator has forgotten, or None.
    :ivar unseen: topics that are gone, or may not be looked at.
    """

    def __init__(self, cluster: KafkaCluster, prefix: str, id_of: Callable[[int], str | None]) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._id_of = id_of
        self.unseen: set[str] = set()

    def found(self, topics: Collection[str]) -> list[Left]:
        """Return what seems to be left open: :meth:`still` tells it from what was just being ended."""
        open_there = self._open(topics)
        if not open_there:
            return []
        ids = self._cluster.transactional_ids({one.producer_id for _, one in open_there})
        found: list[Left] = []
        for tp, one in open_there:
            name = ids.get(one.producer_id) or self._id_of(one.producer_id)
            if name is None or not keys.is_id_of(name, self._prefix):
                log.info("%s: open transaction of producer %d is not of our prefix", tp, one.producer_id)
                continue
            word = self._cluster.describe_transaction(name)
            if not _is_under_way(word, one):
                found.append(Left(tp, one, name, word))
        return found

    def still(self, left: Iterable[Left]) -> list[Left]:
        """Ask again: what has ended since was not left."""
        before = list(left)
        if not before:
            return []
        now = {
            (tp, one.current_txn_start_offset) for tp, one in self._open({one.where.topic for one in before})
        }
        return [one for one in before if (one.where, one.producer.current_txn_start_offset) in now]

    def _open(self, topics: Collection[str]) -> list[tuple[TopicPartition, ActiveProducer]]:
        found: list[tuple[TopicPartition, ActiveProducer]] = []
        for topic in sorted(topics):
            try:
                count = self._cluster.describe_topics([topic], wait=False)[topic].partitions
                known = self._cluster.describe_producers(
                    [TopicPartition(topic, partition) for partition in range(count)]
                )
            except (AuthorizationFailed, UnknownTopic) as error:
                log.warning("%s cannot be looked at: %s", topic, error)
                self.unseen.add(topic)
                continue
            found += [
                (tp, one) for tp, producers in sorted(known.items()) for one in producers if one.is_open
            ]
        return found


def _is_under_way(word: TransactionDescription | None, one: ActiveProducer) -> bool:
    """Return whether the coordinator will still end it."""
    return (
        word is not None
        and word.is_under_way
        and word.producer_id == one.producer_id
        and word.producer_epoch in (one.producer_epoch, one.producer_epoch + 1)
    )
