"""Offset ranges, and the four modes in which a run chooses them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from airflow_eos.model.kinds import FLAG, NONE, TEXT, Kind, duration, instance_of, whole_number, word

StartPolicy = Literal["earliest", "latest", "fail"]
DEFAULT_ALLOWED_LATENESS = dt.timedelta(minutes=5)
FUTURE_TOLERANCE = dt.timedelta(hours=1)
"""How far a timestamp may be ahead of our clock: the brokers' default ``message.timestamp.after.max.ms``."""
INTERVAL_TIMETABLE = "airflow.sdk.CronDataIntervalTimetable"
"""The timetable that gives a Dag with a cron schedule data intervals; for errors."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition; ``end`` is the next position, not a count.

    Control markers, aborted records and compaction leave gaps: a range has at most ``end - start`` records.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        _require("OffsetRange", "topic", self.topic, TEXT)
        _require("OffsetRange", "partition", self.partition, _POSITION)
        _require("OffsetRange", "start", self.start, _POSITION)
        _require("OffsetRange", "end", self.end, _POSITION)
        if not 0 <= self.start <= self.end:
            raise ValueError(
                f"offset range of {self.topic}-{self.partition} must satisfy 0 <= start <= end, "
                f"got [{self.start}, {self.end})"
            )

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def span(self) -> int:
        """Number of offsets; an upper bound of the number of records."""
        return self.end - self.start

    def to_list(self) -> list[Any]:
        """Return the JSON form ``[topic, partition, start, end]``."""
        return [self.topic, self.partition, self.start, self.end]

    @classmethod
    def from_list(cls, data: list[Any]) -> OffsetRange:
        """Read the JSON form."""
        topic, partition, start, end = data
        numbers = (int(number) if isinstance(number, str) else number for number in (partition, start, end))
        return cls(str(topic), *numbers)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Read from the group's committed offsets to the last stable offset, and move the offsets forward.

    :param max_records: upper bound of the offsets that one run reads, over all partitions, without leading
        ones that hold no records (aborted, compacted, markers). None reads everything.
    :param start: where to begin if neither group offsets nor a ledger cursor exist.
    :param until_caught_up: continue in rounds of ``max_records``, each in its own transaction, until a round
        has read up to the last stable offset. A retry continues after the last committed round.
    :param max_rounds: the run ends after this many rounds even if it has not caught up; its record says so.
    """

    max_records: int | None = None
    start: StartPolicy = "earliest"
    until_caught_up: bool = False
    max_rounds: int = 100

    def __post_init__(self) -> None:
        _require("Cursor", "max_records", self.max_records, whole_number(1) | NONE)
        _require("Cursor", "start", self.start, word(*get_args(StartPolicy)))
        _require("Cursor", "until_caught_up", self.until_caught_up, FLAG)
        _require("Cursor", "max_rounds", self.max_rounds, whole_number(1))
        if self.until_caught_up and self.max_records is None:
            raise ValueError("until_caught_up needs max_records: without it one round reads everything")


def _require(owner: str, field: str, value: object, kind: Kind) -> None:
    """Check a field of a value that a Dag author creates; raises ValueError naming class, field and value."""
    if not kind.holds(value):
        raise ValueError(kind.problem(f"{owner}({field}=...)", value))


def _aware(name: str, value: dt.datetime) -> dt.datetime:
    """Return an end of an interval in UTC; raises ValueError if it has no time zone, or UTC no such date."""
    _require("Interval", name, value, _MOMENT)
    if value.tzinfo is None:
        raise ValueError(f"{name} must carry a time zone, got {value.isoformat()}")
    try:
        return in_utc(value)
    except OverflowError as error:
        raise ValueError(f"{name} {value.isoformat()} is not in the years 1 to 9999 of UTC") from error


def utc_now() -> dt.datetime:
    """Return the current time of this machine, aware."""
    return dt.datetime.now(dt.timezone.utc)


def in_utc(moment: dt.datetime) -> dt.datetime:
    """Return an aware datetime in UTC, as a plain datetime: arithmetic of subclasses may drop the zone."""
    utc = moment.astimezone(dt.timezone.utc)
    return dt.datetime.combine(utc.date(), utc.time(), tzinfo=dt.timezone.utc)


def timestamp_of(moment: dt.datetime) -> int:
    """Return a moment in ms since 1970."""
    return (in_utc(moment) - _EPOCH) // dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Read the records of a data interval ``[start, end)`` by pinned offset boundaries.

    Each boundary is pinned once in the ledger, for all runs, so that intervals tile the log without gap or
    overlap. Both ends are converted to UTC.

    :param start: aware datetime, inclusive.
    :param end: aware datetime, exclusive; must be in the past when the run starts.
    :param allowed_lateness: how long after a boundary's time to wait for an idle partition.
    :param accept_deleted: read what is left of an interval whose records are, or may be, deleted, and record
        the loss. By default such an interval is refused.
    """

    start: dt.datetime
    end: dt.datetime
    allowed_lateness: dt.timedelta = DEFAULT_ALLOWED_LATENESS
    accept_deleted: bool = False

    def __post_init__(self) -> None:
        # Datetimes of the same time zone compare by wall-clock time, which repeats an hour when DST ends.
        object.__setattr__(self, "start", _aware("start", self.start))
        object.__setattr__(self, "end", _aware("end", self.end))
        if self.start >= self.end:
            raise ValueError(
                f"the interval [{self.start.isoformat()}, {self.end.isoformat()}) is empty; a Dag with a "
                f"cron schedule gets real intervals from {INTERVAL_TIMETABLE}"
            )
        _require("Interval", "allowed_lateness", self.allowed_lateness, duration())
        _require("Interval", "accept_deleted", self.accept_deleted, FLAG)
        if self.allowed_lateness > _LATEST - self.end:
            raise ValueError(
                f"the interval's end {self.end.isoformat()} and allowed_lateness {self.allowed_lateness} are "
                "together after the year 9999"
            )


_LATEST = dt.datetime.max.replace(tzinfo=dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class PartitionInterval:
    """Read an interval on behalf of a named partition (an Airflow partition key).

    :param key: the partition key, which names the run: each is committed once.
    :param interval: the interval whose records make up the partition.
    """

    key: str
    interval: Interval

    def __post_init__(self) -> None:
        _require("PartitionInterval", "key", self.key, _KEY)
        _require(
            "PartitionInterval", "interval", self.interval, instance_of(Interval, "Interval(start, end)")
        )


@dataclass(frozen=True, slots=True)
class Explicit:
    """Read exactly these ranges.

    :param ranges: one or more ranges that do not overlap; with ``advance`` one for each partition.
    :param advance: move the group's offsets to the ends, by the cursor's rules.
    """

    ranges: tuple[OffsetRange, ...]
    advance: bool = False

    def __post_init__(self) -> None:
        _require("Explicit", "ranges", self.ranges, _RANGES)
        _require("Explicit", "advance", self.advance, FLAG)
        object.__setattr__(self, "ranges", tuple(self.ranges))
        overlap = any(
            earlier.topic_partition == later.topic_partition and (self.advance or later.start < earlier.end)
            for earlier, later in pairwise(sorted(self.ranges))
        )
        if not self.ranges or overlap:
            raise ValueError(
                "explicit ranges need at least one range, and those of a partition must not overlap; with "
                "advance=True a partition has one"
            )


_KEY = Kind("text that is not empty", lambda value: isinstance(value, str) and value != "")
_POSITION = whole_number(0)
_MOMENT = instance_of(dt.datetime, "an aware datetime.datetime")
_RANGES = Kind(
    "a sequence of OffsetRange(topic, partition, start, end)",
    lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(item, OffsetRange) for item in value)
    ),
)

RangeMode = Cursor | Interval | PartitionInterval | Explicit
"""How offsets are chosen. Code that depends on the mode uses ``match`` without a default, so that the type
checker reports each place where a new mode is missing."""


def interval_of(mode: RangeMode) -> Interval | None:
    """Return the interval that a mode reads; None for modes that choose by offsets."""
    match mode:
        case Interval():
            return mode
        case PartitionInterval():
            return mode.interval
        case Cursor() | Explicit():
            return None
