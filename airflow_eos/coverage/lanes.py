"""The values of a coverage: lanes (one partition of one topic id), and segments of offsets by kind."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_eos.ledger.records.reset import ResetRecord
from airflow_eos.model.ranges import TopicPartition


class Kind(enum.Enum):
    """How some offsets of a lane were read."""

    READ = "read"
    """Read by one run."""
    AGAIN = "again"
    """Read again on purpose."""
    GAP = "gap"
    """Not read, although runs have read offsets before and after them."""
    OVERLAP = "overlap"
    """Read by several runs."""
    LEFT_OUT = "left out"
    """Not read on purpose: skipped, accepted as deleted, or passed over by a reset."""
    BEFORE = "before"
    """Not read, and before the first range."""
    UNREAD = "unread"
    """Not read yet."""
    BEYOND = "beyond"
    """Read by a run, although the log now ends below them."""


WRONG = (Kind.GAP, Kind.OVERLAP, Kind.BEYOND)


class LaneKey(NamedTuple):
    """One partition of one topic id.

    :param topic_id: empty if records do not name it and the topic no longer exists.
    """

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Log start offset and last stable offset of a partition."""

    log_start: int
    stable: int


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of a cursor.

    :param moment: time of the reset, in the format of run records.
    :param changes: old and new offset of each partition.
    """

    moment: str
    changes: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def of(cls, moment: str, record: ResetRecord) -> Reset:
        """Return the changes of partitions that had an offset before the reset."""
        changes = {}
        for move in record.moves:
            offsets = [offset for offset in (move.committed, move.recorded) if offset is not None]
            if offsets:
                changes[move.topic_partition] = max(offsets), move.offset
        return cls(moment, changes)


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets ``[start, end)`` of one lane of the same kind.

    :param runs: keys of the runs that read them; empty for runs that are no longer kept one by one.
    :param deleted: the offsets are below the current log start.
    """

    start: int
    end: int
    kind: Kind
    runs: tuple[str, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One source partition.

    :param bounds: current bounds of the log; None if this topic id no longer exists.
    :param segments: in offset order, without a hole between the first and the last.
    :param again: reads on purpose, in addition to the segments; they may overlap each other.
    """

    key: LaneKey
    bounds: LogBounds | None
    segments: tuple[Segment, ...]
    again: tuple[Segment, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.key.topic, self.key.partition)

    @property
    def unread(self) -> int:
        """Unread offsets; an upper bound of the number of records."""
        return sum(part.end - part.start for part in self.segments if part.kind is Kind.UNREAD)
