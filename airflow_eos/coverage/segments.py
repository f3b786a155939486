"""What happened to the offsets of one partition of one incarnation of a topic: the terms of a coverage."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_eos.ledger.records.reset import ResetRecord
from airflow_eos.model.ranges import TopicPartition


class Kind(enum.Enum):
    """What happened to some offsets of one lane."""

    READ = "read"
    """By one run."""
    AGAIN = "again"
    """Once more, on purpose."""
    GAP = "gap"
    """By no run, though runs have read before and behind them."""
    OVERLAP = "overlap"
    """By several runs."""
    LEFT_OUT = "left out"
    """By no run, on purpose: skipped, lost and accepted, or passed over by a reset."""
    BEFORE = "before"
    """Not yet, and they lie before the first range."""
    UNREAD = "unread"
    """Not yet."""
    BEYOND = "beyond"
    """By a run, though the log ends below them now."""


WRONG = (Kind.GAP, Kind.OVERLAP, Kind.BEYOND)


class LaneKey(NamedTuple):
    """One partition of one incarnation of a topic.

    :param topic_id: empty where records do not name it and the topic is gone.
    """

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Where a partition's log begins, and its last stable offset."""

    log_start: int
    stable: int


@dataclass(frozen=True, slots=True)
class Reset:
    """A cursor that was moved by hand.

    :param moment: when, as records spell it.
    :param changes: of each partition, from where to where.
    """

    moment: str
    changes: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def of(cls, moment: str, record: ResetRecord) -> Reset:
        """Return what a reset did to partitions that were read before."""
        changes = {}
        for move in record.moves:
            known = [offset for offset in (move.committed, move.recorded) if offset is not None]
            if known:
                changes[move.topic_partition] = max(known), move.offset
        return cls(moment, changes)


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets ``[start, end)`` of one lane that share a fate.

    :param runs: keys of the runs that read them; empty for those that are no longer kept one by one.
    :param deleted: the log begins behind them now.
    """

    start: int
    end: int
    kind: Kind
    runs: tuple[str, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One source partition.

    :param bounds: of the log now; None: this topic, or this incarnation of it, is gone.
    :param segments: in order of offsets, without a hole between the first and the last.
    :param again: reads on purpose; they lie above the others, and may overlap each other.
    """

    key: LaneKey
    bounds: LogBounds | None
    segments: tuple[Segment, ...]
    again: tuple[Segment, ...] = ()

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.key.topic, self.key.partition)

    @property
    def unread(self) -> int:
        """Offsets behind the last range: an upper bound of the records."""
        return sum(one.end - one.start for one in self.segments if one.kind is Kind.UNREAD)
