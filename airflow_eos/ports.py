"""Interfaces of the run protocol to brokers and Spark, small enough for a model of them in tests.

The broker layer implements :class:`Cluster`, :class:`Transactions` and :class:`Ledger`; the Spark layer
implements :class:`SealAndSend`. Every call may block, and may raise; the protocol's state decides what an
exception means, never the exception alone. Tables have :mod:`airflow_eos.table_ports`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from airflow_eos.ledger.records.ledger_index import Around, IndexRoot, LeafAt, Place
from airflow_eos.model.dead_letter import DueLetters
from airflow_eos.model.kafka import (
    ActiveProducer,
    BrokerFeatures,
    CommittedOffset,
    EndTxnAnswer,
    GroupDescription,
    LogBounds,
    ProducerIdentity,
    TimedOffset,
    TopicDescription,
    TransactionDescription,
)
from airflow_eos.model.ledger import LedgerMessage, LedgerView
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.table import DataFileMade
from airflow_eos.table_ports import TableWriter


class Cluster(Protocol):
    """Reads of the cluster's state. Implementations retry transient errors themselves."""

    def describe_topics(
        self, topics: Collection[str], *, optional: Collection[str] = (), wait: bool = True
    ) -> Mapping[str, TopicDescription]:
        """Return id, leaders and allowed operations per topic.

        :param optional: topics that are left out if they do not exist or may not be described.
        :raises UnknownTopic: naming the topics that do not exist.
        :raises AuthorizationFailed: when a topic may not be described.
        """

    def topic_operations(self, topics: Collection[str]) -> Mapping[str, frozenset[str] | None]:
        """Return the allowed operations per topic; None if brokers do not say, or there is no such topic."""

    def topic_settings(self, topics: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Return settings per topic; omits topics that do not exist, or whose settings may not be read."""

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the first offset still in each log."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log, open transactions included: its high watermark."""

    def last_stable_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return each last stable offset (LSO): first offset of the oldest open transaction, or the end."""

    def log_bounds(self, partitions: Collection[TopicPartition], *, ends: bool = True) -> LogBounds:
        """Return log start, last stable offset and, unless ``ends`` is False, high watermark of each log."""

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the end offset of a leader epoch in each partition; -1 if unknown."""

    def next_data(self, ranges: Collection[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return an offset of each range below which it has no record for ``read_committed`` readers.

        Markers, aborted transactions and compaction leave offsets without records.
        """

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, *, markers: bool = False
    ) -> Mapping[TopicPartition, TimedOffset | None]:
        """Return per partition the first record with timestamp >= ``timestamp_ms``; None: there is none.

        :param markers: let transaction markers, which have the brokers' time, count too, which is cheaper.
        """

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the highest timestamp in each log, markers included, in ms since 1970; -1: there is none.

        Omits logs of which it is unknown.
        """

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return committed offsets; partitions without one are absent.

        :param partitions: None: all that the group has offsets for.
        :param stable: wait while a transaction holds pending offsets (KIP-447); False returns the last
            committed ones at once, for a caller whose own transaction is the pending one.
        """

    def has_pending_offsets(self, group: str, partitions: Collection[TopicPartition]) -> bool:
        """Return whether an open transaction holds offsets of the group (KIP-447), asked once."""

    def is_visible(self, tp: TopicPartition, offset: int, producer: ProducerIdentity) -> bool | None:
        """Return whether ``read_committed`` readers get the record that a producer wrote at ``offset``.

        None: it is undecided, or no longer in the log, which may have another record at that offset.
        """

    def describe_group(self, group: str) -> GroupDescription:
        """Return live members and allowed operations; raises AuthorizationFailed without Describe."""

    def group_offsets_partition(self, group: str) -> TopicPartition:
        """Return the ``__consumer_offsets`` partition the group's commits go to."""

    def features(self) -> BrokerFeatures:
        """Return what the brokers guarantee and allow."""

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Return the coordinator's view, None when it does not know the id (KIP-664)."""

    def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        """Return the producers each partition's leader knows (KIP-664)."""

    def transactional_ids(self, producer_ids: Collection[int]) -> Mapping[int, str]:
        """Return the transactional id of each producer id, as far as this client may Describe it."""


class ProducerSession(Protocol):
    """One producer instance, good for one transaction (law 2).

    ``identity`` is read from the producer itself, so that the writers use exactly what the driver commits.
    """

    @property
    def identity(self) -> ProducerIdentity:
        """Return the identity the coordinator gave to this instance."""

    def begin(self) -> None:
        """Begin the transaction, locally."""

    def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Add every partition a writer will touch, in one request, before any writer starts."""

    def stage(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], messages: Sequence[LedgerMessage]
    ) -> Sequence[int]:
        """Send offsets (when there are any) and ledger messages into the transaction, and flush.

        :returns: the messages' offsets; negative if a broker does not report them.
        """

    def commit(self) -> None:
        """Commit; returns before all markers are written. Any exception leaves the outcome unknown."""

    def close(self) -> None:
        """Drop the instance without sending anything."""


class Transactions(Protocol):
    """Takes epochs and ends transactions."""

    def fence(self, transactional_id: str) -> ProducerSession:
        """Initialise a new producer instance: older attempts are fenced, their transaction is aborted."""

    def abort(self, identity: ProducerIdentity, *, timeout: float = 60.0) -> EndTxnAnswer:
        """Send EndTxn(abort) with exactly this producer id and epoch; never sends InitProducerId.

        :param timeout: seconds, including all retries.
        """

    def abort_again(
        self,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        group: str | None = None,
    ) -> EndTxnAnswer:
        """Abort what an earlier transaction of this producer id left open in some partitions.

        It runs a new transaction over these partitions, writes nothing to it and aborts it. A crash or a
        time-out also aborts that transaction, so every outcome is the same. A commit cannot be repeated this
        way.

        :param group: drop the pending offsets of this group too.
        :returns: ENDED, or FENCED if a newer attempt exists.
        """

    def write_markers(
        self, producer_id: int, epoch: int, partitions: Collection[TopicPartition], *, commit: bool
    ) -> None:
        """Write the markers of a decided transaction that its coordinator left out (WriteTxnMarkers).

        A leader refuses them if a newer epoch has written since.

        :raises AuthorizationFailed: ClusterAction, or Alter, on the cluster is missing.
        """


class Ledger(Protocol):
    """The ledger topic as a log.

    Only the authority interprets it (:mod:`airflow_eos.ledger.authority`).
    """

    @property
    def topic(self) -> str:
        """Return the name of the topic."""

    def describe(self, *, wait: bool = True) -> TopicDescription:
        """Return the ledger topic.

        :param wait: retry for a while if the topic is unknown, because the broker's metadata may be stale.
            Callers that would then create it need not wait: creating is safe at any time.
        :raises LedgerMissing: naming the command that creates it.
        """

    def create(self) -> None:
        """Create the ledger topic; does nothing if it exists."""

    def cleanup_policy(self) -> str:
        """Return the topic's ``cleanup.policy``; empty if it may not be read."""

    def route_over(self, partitions: int) -> None:
        """Route over the partitions that the ledger was created with; partitions added since are ignored."""

    def partition_for(self, routing: str) -> int:
        """Return the partition a routing string belongs to; the empty string is always partition 0."""

    def view(
        self, partition: int, keys: Collection[str], prefixes: Collection[str | Around] = ()
    ) -> LedgerView:
        """Read the partition up to the high watermark taken when the call starts.

        :param keys: exact keys wanted.
        :param prefixes: every key that begins with one of these is wanted too.
        """


class IndexedLedger(Ledger, Protocol):
    """A ledger whose partitions have an index (:mod:`airflow_eos.ledger.records.ledger_index`)."""

    def index_root(self, partition: int) -> tuple[int, IndexRoot] | None:
        """Return the newest committed root of a partition and its offset; None if there is no usable one."""

    def index_leaf(self, partition: int, at: LeafAt) -> Mapping[str, Place]:
        """Return the places in a leaf; raises IndexUnusable if the log does not have the leaf."""

    def decided(self, partition: int, start: int, seconds: float) -> tuple[int, Mapping[str, Place]]:
        """Return the next offset to read, and the place of each key's last decided record from ``start`` on.

        :param seconds: approximate time limit; later records are then omitted.
        :returns: everything below the offset was read; it is never above what an index may cover
            (:func:`~airflow_eos.ledger.records.ledger_index.may_speak_for`).
        """


class Sealed(Protocol):
    """Sealed batches, materialised on the executors."""

    @property
    def manifest(self) -> SealedManifest:
        """Return what was sealed, read from the materialised blocks."""

    @property
    def files(self) -> Sequence[DataFileMade]:
        """Return the data files that were written for a table; used only if the sink is one."""


class SealAndSend(Protocol):
    """The data plane."""

    def seal(self, plan: RunPlan, writer: TableWriter | None = None) -> Sealed:
        """Read, transform, encode and materialise; writes nothing to Kafka.

        :param writer: writes data files if the sink is a table; then nothing else is sealed.
        :raises EnvironmentMismatch: executors cannot do the work; lists host and fix.
        :raises ProcessFailed: when the author's function raises or returns wrong columns.
        """

    def seal_letters(self, due: DueLetters) -> Sealed:
        """Make dead letters of records that were processed before, if the sink is a table.

        :raises EosError: the records cannot be read now.
        """

    def send(self, sealed: Sealed, identity: ProducerIdentity, timeout: float) -> Sequence[PartitionReceipt]:
        """Write all sealed batches under ``identity``, within ``timeout`` seconds.

        :raises SendError: when a writer failed; some batches may have been written.
        :raises SealedBlockLost: when sealed batches are gone, or are not those of the manifest.
        """

    def release(self, sealed: Sealed) -> None:
        """Free the materialised blocks."""
