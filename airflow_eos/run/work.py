"""The definition of a run's work, kept in its record, which counts for exactly this work (law 7).

It excludes *how* the work is done: the size of a round, where a new cursor starts, allowed lateness, codecs,
time-outs, the group of an interval; and ``process``: a transform cannot be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import WORK, RunRecord
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import RunSpec

SINK, ORIGIN = "sink", "origin"
# Fields, and what a refusal calls them.
_NAMES: Mapping[str, str] = {
    "topics": "source topics",
    "partition": "source partition",
    SINK: "sink topic",
    "mode": "range mode",
    "interval": "interval",
    "key": "partition key",
    "ranges": "ranges",
    "advance": "advance",
    ORIGIN: "origin",
}
OWN_PIPELINE = "Give each task, and each instance of a mapped one, its own pipeline"
"""The advice to those who find the record of another task."""
AUTHORS: frozenset[str] = frozenset(_NAMES) - {ORIGIN}
"""The fields that the author of a task chooses, and may change on purpose."""


@dataclass(frozen=True, slots=True)
class WorkDefinition:
    """The definition of a run's work.

    :param topics: source topics, sorted.
    :param partition: the one source partition of a mapped task.
    :param sink: topic of rows that name none, or a table.
    :param mode: ``cursor``, ``interval``, ``partition`` or ``explicit``; of a reprocessing, too.
    :param interval: ``(start, end)`` in UTC, to the millisecond.
    :param ranges: the given ranges, sorted.
    :param advance: whether given ranges move the cursor.
    :param origin: the environment of the run; empty if unknown.
    """

    topics: tuple[str, ...]
    mode: str
    partition: int | None = None
    sink: str | None = None
    interval: tuple[str, str] | None = None
    key: str | None = None
    ranges: tuple[OffsetRange, ...] = ()
    advance: bool = False
    origin: str = ""

    @classmethod
    def of(cls, spec: RunSpec) -> WorkDefinition:
        """Return the work of a spec."""
        return cls(
            topics=tuple(sorted(spec.source_topics)),
            partition=spec.source_partition,
            sink=spec.sink_topic if spec.sink is None else str(spec.sink),
            origin=spec.origin,
            **_chosen(spec),
        )

    @classmethod
    def recorded(cls, record: RunRecord) -> WorkDefinition | None:
        """Return the work of a record; None for records of versions without it."""
        data = record.details.get(WORK)
        return None if data is None else cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkDefinition:
        """Read the JSON form."""
        return cls(
            topics=tuple(data["topics"]),
            mode=data["mode"],
            partition=data.get("partition"),
            sink=data.get(SINK),
            interval=tuple(data["interval"]) if "interval" in data else None,
            key=data.get("key"),
            ranges=tuple(OffsetRange.from_list(offsets) for offsets in data.get("ranges", ())),
            advance=data.get("advance", False),
            origin=data.get(ORIGIN, ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without fields that do not apply."""
        fields = {name: getattr(self, name) for name in _NAMES}
        fields["topics"] = list(self.topics)
        fields["interval"] = None if self.interval is None else list(self.interval)
        fields["ranges"] = [offsets.to_list() for offsets in self.ranges]
        return {
            name: value for name, value in fields.items() if value or (name == "partition" and value == 0)
        }


def recorded_interval(record: RunRecord) -> tuple[str, str] | None:
    """Return the data interval of a record, which others may have written, as ISO texts; None without one."""
    work = record.details.get(WORK)
    interval = work.get("interval") if isinstance(work, Mapping) else None
    if not isinstance(interval, (list, tuple)) or [type(end) for end in interval] != [str, str]:
        return None
    return interval[0], interval[1]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two definitions differ.

    :param field: a field of :class:`WorkDefinition`.
    """

    field: str
    recorded: str
    current: str

    def __str__(self) -> str:
        return f"{_NAMES[self.field]}: recorded {self.recorded}, asked {self.current}"


def differences(recorded: WorkDefinition, current: WorkDefinition) -> list[Difference]:
    """Return every field in which two definitions differ; origins count if both have one."""
    different = []
    for name in _NAMES:
        was, now = getattr(recorded, name), getattr(current, name)
        if was == now or (name == ORIGIN and not (was and now)):
            continue
        different.append(
            Difference(name, *(_ranges_texts(was, now) if name == "ranges" else (_text(was), _text(now))))
        )
    return different


def disagreement(
    record: RunRecord, transactional_id: str, current: WorkDefinition, but_for: Collection[str] = ()
) -> str | None:
    """Return why a record does not count for a run, and what to do about it; None if it does.

    :param but_for: fields that may differ.
    """
    recorded = WorkDefinition.recorded(record)
    fence = record.producer.transactional_id
    reasons: list[str] = []
    differing: list[Difference] = []
    if fence != transactional_id:
        reasons.append(f"it was committed under transactional id {fence!r}, not {transactional_id!r}")
    if recorded is None:  # of a version that did not record the work: compare the topics read
        read = sorted({offsets.topic for offsets in record.ranges})
        if read and not set(read).intersection(current.topics):
            reasons.append(f"it read {', '.join(read)}, not {', '.join(current.topics)}")
    else:
        differing = [entry for entry in differences(recorded, current) if entry.field not in but_for]
        reasons += map(str, differing)
    return f"{'; '.join(reasons)}. {_how_to_go_on(differing, current)}" if reasons else None


def as_named(record: RunRecord, fields: Mapping[str, Any]) -> WorkDefinition | None:
    """Return a record's work with some fields replaced by a waiting task's; None if the record has none.

    :param fields: some fields of :meth:`WorkDefinition.to_dict`; the others are as recorded.
    """
    recorded = WorkDefinition.recorded(record)
    return None if recorded is None else WorkDefinition.from_dict({**recorded.to_dict(), **fields})


def _how_to_go_on(differing: Sequence[Difference], current: WorkDefinition) -> str:
    fields = {difference.field for difference in differing}
    # A run of the same interval or partition has the same name in every Dag run.
    anew = "start a new run" if current.interval is None else "give it another pipeline"
    if ORIGIN in fields:
        was = next(difference.recorded for difference in differing if difference.field == ORIGIN)
        return (
            "Give each environment its own prefix and its own ledger; where this is the environment that "
            f"made the record, under another address, set [eos] origin to {was}"
        )
    if not fields:
        return (
            f"{OWN_PIPELINE}, or each environment its own ledger; where prefix, group_id or range mode of "
            f"this very task were changed since, {anew}"
        )
    again = "clear it with on_committed='reprocess' to write the recorded ranges to the new sink, or "
    return (
        f"{OWN_PIPELINE}. Where this very task was changed since: {again if fields == {SINK} else ''}{anew}; "
        "on_committed='accept' lets the record stand"
    )


def _chosen(spec: RunSpec) -> dict[str, Any]:
    match spec.ranges:
        case Cursor():
            return {"mode": "cursor"}
        case Interval() as interval:
            return {"mode": "interval", "interval": _span(interval)}
        case PartitionInterval() as partition:
            return {"mode": "partition", "key": partition.key, "interval": _span(partition.interval)}
        case Explicit() as explicit:
            ranges = tuple(sorted(explicit.ranges))
            return {"mode": "explicit", "ranges": ranges, "advance": explicit.advance}


def _span(interval: Interval) -> tuple[str, str]:
    return keys.utc_text(interval.start), keys.utc_text(interval.end)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return repr(", ".join(value))
    return "none" if value is None else repr(value)


def _ranges_texts(was: Sequence[OffsetRange], now: Sequence[OffsetRange]) -> tuple[str, str]:
    """Name only the ranges that are not in both: there may be hundreds."""

    def text(ones: Sequence[OffsetRange], others: Sequence[OffsetRange]) -> str:
        missing = [offsets for offsets in ones if offsets not in others]
        return (
            ", ".join(f"{offsets.topic_partition} [{offsets.start}, {offsets.end})" for offsets in missing)
            or "no others"
        )

    return text(was, now), text(now, was)


def mapped_otherwise(run_key: str, *, mapped: bool) -> DifferentWork:
    """Return the error (law 7) of a run whose task wrote its records while mapped differently."""
    return DifferentWork(
        f"{run_key} is committed, by this task before it was {'' if mapped else 'no longer '}mapped over "
        "source_partition: this run would write the same records again. Undo that for this Dag run; or give "
        "the task another pipeline, if they should be written again"
        + ("; or on_committed='accept' lets the record stand" if mapped else "")
    )
