"""What brokers say, as frozen views, and the identity that every transactional request carries."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.ranges import TopicPartition


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's identity and size.

    :param topic_id: the broker's UUID of this incarnation of the topic (KIP-516).
    :param partitions: number of partitions.
    """

    topic: str
    topic_id: str
    partitions: int

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """All of its partitions, in order."""
        return tuple(TopicPartition(self.topic, number) for number in range(self.partitions))


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed position in one partition, with its metadata string."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """Where a record stands, and its timestamp in ms since 1970."""

    offset: int
    timestamp: int


class EndTxnAnswer(enum.Enum):
    """What the coordinator answered to EndTxn under our own identity (KIP-98)."""

    ENDED = "ended as asked"
    """Code 0: it was ours; also when an abort repeats our own abort. What was aborted can never commit."""
    NOTHING_OPEN = "nothing open"
    """Code 48: still our epoch; nothing was added, or it has ended: after a lost answer, perhaps by that very
    request."""
    FENCED = "fenced"
    """Code 47, 90 or 49: another attempt, or the coordinator's time-out, moved the epoch on."""


OFFSETS_TOPIC = "__consumer_offsets"
"""Where brokers keep the offsets that groups commit."""


class TransactionState(str, enum.Enum):
    """States of DescribeTransactions (KIP-664)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The coordinator's view of one transactional id (KIP-664).

    :param partitions: partitions in the open transaction; empty once it is complete.
    :param start_ms: when the open transaction began, ms since 1970; -1 when none is open.
    """

    state: TransactionState
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1

    @property
    def is_under_way(self) -> bool:
        """Whether the coordinator will still end a transaction of this producer id and epoch."""
        return self.state in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        )


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer a partition leader knows (KIP-664).

    :param producer_epoch: of its last batch or marker in this partition.
    :param last_sequence: sequence of the last record of the last batch; -1 when nothing was written.
    :param current_txn_start_offset: first offset of its open transaction in this partition; -1 without one.
    :param last_timestamp: largest timestamp of its last batch, ms since 1970; -1 where that is not known.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    current_txn_start_offset: int = -1
    last_timestamp: int = -1

    @property
    def is_open(self) -> bool:
        """Whether a transaction of this producer is open in the partition."""
        return self.current_txn_start_offset >= 0


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The (transactional id, producer id, producer epoch) of one fenced attempt (KIP-98).

    :param transactional_id: stable name of the *work*, the same for every attempt at it.
    :param producer_id: 64-bit id the transaction coordinator gave out.
    :param producer_epoch: 16-bit epoch; a higher epoch of the same producer id fences this one.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProducerIdentity:
        """Read the JSON form."""
        return cls(str(data["transactional_id"]), int(data["producer_id"]), int(data["producer_epoch"]))
