"""Frozen values for brokers' answers, and the identity in every transactional request."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import JsonForm


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's id and size.

    :param topic_id: the topic's UUID, in Kafka's own text form; a topic that is created again has another one
        (KIP-516).
    :param leaders: leader's node id per partition; -1 while there is none.
    :param operations: which of READ, WRITE and DESCRIBE this principal may perform (KIP-430); None if the
        broker does not say.
    :param replicas: smallest number of replicas of a partition.
    :param in_sync: number of in-sync replicas per partition.
    """

    topic: str
    topic_id: str
    leaders: Mapping[int, int]
    operations: frozenset[str] | None = None
    replicas: int = 0
    in_sync: Mapping[int, int] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.leaders)

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions, in order."""
        return tuple(TopicPartition(self.topic, number) for number in range(self.partitions))

    @property
    def without_leader(self) -> tuple[TopicPartition, ...]:
        """The partitions that have no leader now, in order: nobody can read or write them."""
        return tuple(tp for tp in self.topic_partitions if self.leaders.get(tp.partition, -1) == -1)


def without_leader(*topics: TopicDescription) -> str:
    """Return the partitions of topics that nobody can read now, as one text; empty if there are none."""
    return no_leader(tp for topic in topics for tp in topic.without_leader)


def no_leader(partitions: Iterable[TopicPartition]) -> str:
    """Return as one text that these partitions have no leader; empty if there are none."""
    named = ", ".join(map(str, sorted(partitions)))
    return f"{named}: no leader" if named else ""


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """A topic that a run writes, as brokers described it.

    :param leaders: leader's node id per partition.
    :param settings: by name, as text; empty if they may not be read.
    """

    leaders: Mapping[int, int]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group.

    :param members: number of live members, 0 for an unknown group; a KIP-848 group with members has 1.
    :param operations: values as in :class:`TopicDescription`.
    """

    group: str
    members: int
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed position in one partition, with its metadata string."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Offsets of logs by partition, requested at the same time.

    :param starts: log start offsets: offset of the first record that is kept.
    :param stable: last stable offsets (LSO): first offset of the oldest open transaction, or log end.
    :param ends: high watermarks, which include open transactions. One may be below ``stable`` if the log grew
        between both answers.
    :param epochs: epochs of the leaders that answered for ``stable``; -1 if unknown.
    """

    starts: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset, and its timestamp in ms since 1970.

    :param leader_epoch: of the record, or of the leader for the end of a log; -1 if unknown.
    """

    offset: int
    timestamp: int
    leader_epoch: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What the brokers of a cluster guarantee and allow; None for what may not be read.

    :param partition_verification: whether every broker refuses a batch for a partition that is not in its
        transaction (KIP-890); False if one is older than Kafka 3.6 or has it disabled.
    :param transaction_max_timeout_ms: smallest ``transaction.max.timeout.ms`` of all brokers.
    :param transactional_id_expiration_ms: smallest ``transactional.id.expiration.ms`` of all brokers.
    """

    partition_verification: bool | None
    transaction_max_timeout_ms: int | None
    transactional_id_expiration_ms: int | None


class EndTxnAnswer(enum.Enum):
    """The coordinator's answer to EndTxn under the caller's own producer id and epoch (KIP-98)."""

    ENDED = "ended as asked"
    """Code 0: the transaction ended as requested; also for a repeated abort. An aborted transaction can never
    commit."""
    NOTHING_OPEN = "nothing open"
    """Code 48: the epoch is valid, but no transaction is open: nothing was added, or it has ended. If an
    earlier answer was lost, that request may have ended it."""
    FENCED = "fenced"
    """Code 47, 90 or 49: another attempt, or the coordinator's timeout, has increased the epoch."""


OFFSETS_TOPIC = "__consumer_offsets"
"""The topic in which brokers store committed offsets."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""The topic in which transaction coordinators store their decisions."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", "__cluster_metadata"})
"""The topics that only brokers write."""


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
    :param start_ms: when the open transaction began, in ms since 1970; -1 if none is open.
    :param timeout_ms: transaction timeout; -1 if unknown.
    """

    state: TransactionState
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    timeout_ms: int = -1

    @property
    def is_under_way(self) -> bool:
        """Whether the coordinator has yet to complete a transaction of this producer id and epoch."""
        return self.state in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        )


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer that a partition leader knows (KIP-664).

    :param producer_epoch: epoch of its last batch or marker in this partition.
    :param last_sequence: sequence of the last record of its last batch; -1 if it has written nothing.
    :param current_txn_start_offset: first offset of its open transaction in this partition; -1 without one.
    :param last_timestamp: largest timestamp of its last batch, in ms since 1970; -1 if unknown.
    :param coordinator_epoch: of the coordinator that wrote its last marker in this partition; -1 without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    current_txn_start_offset: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1

    @property
    def is_open(self) -> bool:
        """Whether a transaction of this producer is open in the partition."""
        return self.current_txn_start_offset >= 0


@dataclass(frozen=True, slots=True)
class ProducerIdentity(JsonForm):
    """The (transactional id, producer id, producer epoch) of one fenced attempt (KIP-98).

    :param transactional_id: stable name of the *work*, the same for all attempts.
    :param producer_id: 64-bit id assigned by the transaction coordinator.
    :param producer_epoch: 16-bit epoch; a higher epoch of the same producer id fences this one.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
