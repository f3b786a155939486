"""The open transactions that hold readers back, each described once however many partitions it has."""

from __future__ import annotations

from airflow_eos.model.kafka import ActiveProducer, TransactionDescription, TransactionState
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.undecided import undecided

PARTITIONS = [TopicPartition("orders", number) for number in range(1000)]


class Cluster:
    """One producer has an open transaction in all partitions."""

    def __init__(self):
        self.described = []

    def describe_producers(self, partitions):
        return {
            tp: (ActiveProducer(7, 2, 4, last_timestamp=5, current_txn_start_offset=3),) for tp in partitions
        }

    def transactional_ids(self, producers):
        return dict.fromkeys(producers, "shop")

    def describe_transaction(self, transactional_id):
        self.described.append(transactional_id)
        return TransactionDescription(
            TransactionState.ONGOING, 7, 2, frozenset(PARTITIONS), timeout_ms=60_000, start_ms=1000
        )


def test_a_transaction_is_described_once_for_all_its_partitions():
    """Each plan would otherwise take a round trip for each of thousands of partitions."""
    cluster = Cluster()
    waiting = undecided(cluster, dict.fromkeys(PARTITIONS, 9), dict.fromkeys(PARTITIONS, 3))
    assert cluster.described == ["shop"]
    assert {each.offsets.topic_partition for each in waiting} == set(PARTITIONS)
    assert {(each.transactional_id, each.since.timestamp()) for each in waiting} == {("shop", 1.0)}
