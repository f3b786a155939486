"""Output of a run: the manifest of sealed batches, and the receipts of acknowledged ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import JsonForm, integer, topic_name

NOT_COUNTED = -1
"""Value of an unknown count."""


def total(counts: Iterable[int]) -> int:
    """Return the sum of counts; :data:`NOT_COUNTED` if one of them is unknown."""
    figures = list(counts)
    return NOT_COUNTED if NOT_COUNTED in figures else sum(figures)


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
    """The batches that the send stage must write, exactly.

    :param targets: one entry per partition that receives records, sorted.
    :param records_read: records read per source partition; informative, a commit does not depend on it.
    :param records_late: records older than the interval's start, for interval runs.
    :param dead_letters: how many of the records are dead letters.
    :param letters_due: records whose dead letters are not sealed: with a table, the driver makes them.
    :param versions: of the executors that sealed them, and the application's id; informative.
    """

    targets: tuple[SealedTarget, ...]
    records_read: Mapping[TopicPartition, int] = field(default_factory=dict)
    records_late: int = 0
    dead_letters: int = 0
    letters_due: tuple[FailingRecord, ...] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records over all targets."""
        return sum(t.records for t in self.targets)

    @property
    def topics(self) -> frozenset[str]:
        """Topics of the targets."""
        return frozenset(target.topic for target in self.targets)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Target partitions, sorted."""
        return tuple(sorted(t.topic_partition for t in self.targets))


NO_OFFSET = -1
"""Offset and sequence in a receipt for a partition without records."""


@dataclass(frozen=True, slots=True)
class PartitionReceipt(JsonForm):
    """The records that one owner task wrote to one partition, as acknowledged by its leader.

    :param first_offset: base offset of the first batch; -1 if no record was written.
    :param last_offset: offset of the last record; records of other producers may be in between.
    :param records: records acknowledged.
    :param size: bytes of the record batches, compressed, with headers.
    :param batches: record batches acknowledged.
    :param last_sequence: sequence of the last record, which DescribeProducers must return; -1 without
        records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    size: int
    batches: int
    last_sequence: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartitionReceipt:
        """Read the JSON form; keys of a newer version are ignored.

        :raises LookupError, TypeError, ValueError: a value is missing or invalid.
        """
        first_offset = integer(data["first_offset"], NO_OFFSET)
        return cls(
            topic=topic_name(data["topic"]),
            partition=integer(data["partition"], 0),
            first_offset=first_offset,
            last_offset=integer(data["last_offset"], first_offset),
            records=integer(data["records"], 0),
            size=integer(data["size"], 0),
            batches=integer(data["batches"], 0),
            last_sequence=integer(data["last_sequence"], NO_OFFSET),
        )

    @property
    def span(self) -> int:
        """Number of offsets from the first to the last record: an upper bound of the records to read."""
        return self.last_offset - self.first_offset + 1
