"""The driver's side of one transaction: begin, add, stage, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from airflow_eos.broker.librdkafka import checked
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import ProtocolViolation
from airflow_eos.model.identity import ProducerIdentity
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition

OFFSETS_TIMEOUT = 30.0
"""Seconds for both coordinators: a fail-over took 10 to 13 s, 9 of them brokers need to notice a dead one."""

AddPartitions = Callable[[ProducerIdentity, Collection[TopicPartition]], None]
StageOffsets = Callable[[ProducerIdentity, str, Mapping[TopicPartition, CommittedOffset], float], None]


class LedgerAddress(Protocol):
    """Where ledger messages go."""

    @property
    def topic(self) -> str:
        """Name of the ledger topic."""

    def partition_for(self, routing: str) -> int:
        """Return the partition of a routing string."""


class KafkaSession:
    """One initialised producer instance, good for one transaction (law 2).

    :param producer: owned by the session; :meth:`close` drops it.
    :param identity: identity of ``producer``.
    :param ledger: where the staged messages go.
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
        ledger: LedgerAddress,
        add_partitions: AddPartitions,
        stage_offsets: StageOffsets,
        stage_timeout: float,
        commit_timeout: float,
    ) -> None:
        self._producer = producer
        self._identity = identity
        self._ledger = ledger
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
    ) -> None:
        """Send offsets and ledger messages into the transaction and wait until brokers have acknowledged all.

        :param group: consumer group; it needs no members.
        :param offsets: next offsets to read, with metadata; may be empty. librdkafka does not know of them.
        :param messages: at least one, so that the transaction is librdkafka's own too: it ends no
            transaction into which it sent nothing itself, and says success.
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
        records = [(self._ledger.partition_for(m.routing), m.key, m.value) for m in messages]
        self._producer.publish(self._ledger.topic, records, max(deadline - time.monotonic(), 1.0))
        self._staged = True

    def commit(self) -> None:
        """Commit; returns when the coordinator has decided, before all markers are written.

        Any exception leaves the outcome unknown.
        """
        if not self._staged:
            raise ProtocolViolation(
                f"{self._doing('commit')}: nothing was staged, so librdkafka would send no EndTxn"
            )
        self._producer.call(
            self._doing(f"commit within {self._commit_timeout:.0f} s"),
            lambda instance, timeout: instance.commit_transaction(timeout),
            self._commit_timeout,
        )

    def close(self) -> None:
        """Drop the instance: sends nothing, ends nothing."""
        self._producer.close()

    def _doing(self, what: str) -> str:
        return (
            f"transaction of {self._identity.transactional_id!r} (producer id {self._identity.producer_id}, "
            f"epoch {self._identity.producer_epoch}): {what}"
        )
