"""SealedManifest: what the sealed batches hold, counted before the transaction opens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_eos.model.ranges import TopicPartition

NOT_COUNTED = -1
"""Stands for a count that could not be had."""


def total(counts: Iterable[int]) -> int:
    """Return the sum of counts, :data:`NOT_COUNTED` when one of them could not be had."""
    known = list(counts)
    return NOT_COUNTED if NOT_COUNTED in known else sum(known)


@dataclass(frozen=True, slots=True)
class SealedTarget:
    """Sealed batches of one target partition.

    :param records: records in all batches; at least 1.
    :param batches: number of record batches.
    :param size: bytes of all batches, compressed, with headers.
    """

    topic: str
    partition: int
    records: int
    batches: int
    size: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The target partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class SealedManifest:
    """Everything the send stage must write, no more and no less.

    :param targets: one entry per partition that gets records, sorted.
    :param records_read: records read per source partition; informative, never gates a commit.
    :param records_late: records older than the interval's start, for interval runs.
    """

    targets: tuple[SealedTarget, ...]
    records_read: Mapping[TopicPartition, int] = field(default_factory=dict)
    records_late: int = 0

    @property
    def records(self) -> int:
        """Records over all targets."""
        return sum(t.records for t in self.targets)

    @property
    def size(self) -> int:
        """Bytes over all targets."""
        return sum(t.size for t in self.targets)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Target partitions, sorted."""
        return tuple(sorted(t.topic_partition for t in self.targets))
