"""What a log can tell of a moment, and when it cannot: its head is deleted, or timestamps run ahead.

A boundary is the first offset with a timestamp at or after a moment. Where records before the first one that
is left are gone, nobody can say how many of them belonged behind the moment. A record of the far future is
the first one after *every* moment: all intervals to come would end before it, empty, for ever.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_eos.exceptions import IntervalNotReady, IntervalUnaccountable
from airflow_eos.ledger.records.boundary import Deleted
from airflow_eos.model.kafka import TimedOffset
from airflow_eos.model.ranges import OffsetRange, TopicPartition, in_utc
from airflow_eos.ports import Cluster
from airflow_eos.wording import moment_text

FUTURE_TOLERANCE = dt.timedelta(hours=1)
"""How far a timestamp may be ahead of our clock: the brokers' default ``message.timestamp.after.max.ms``."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_LOOKS = 5
WAYS_ON = (
    "Publish them again, into a topic made anew or of its own, or accept the loss with accept_deleted=True: "
    "what is left is read then, and the run's record says what was accepted"
)


@dataclass(frozen=True, slots=True)
class Look:
    """What a topic's log says of a moment.

    :param log_starts: first offset of each partition that may still be there.
    :param oldest: the first record that is left, of partitions whose log start is above 0.
    :param stable: last stable offsets.
    :param found: the first record at or after the moment.
    :param highest: the highest timestamp, in ms since 1970; -1: there is none.
    """

    log_starts: Mapping[TopicPartition, int]
    oldest: Mapping[TopicPartition, TimedOffset | None]
    stable: Mapping[TopicPartition, int]
    found: Mapping[TopicPartition, TimedOffset | None]
    highest: Mapping[TopicPartition, int]

    def unproven(
        self, bounds: Mapping[TopicPartition, tuple[int, int | None]], moment: dt.datetime
    ) -> dict[TopicPartition, Deleted]:
        """Return the partitions in which deleted records may have belonged at or after ``moment``.

        None did where the first record that is left is older than the moment: those before it are older
        still, as far as timestamps follow offsets.

        :param bounds: per partition offsets between which the boundary is known to lie; None: no upper one.
        """
        heads = {}
        for tp, (lowest, highest) in bounds.items():
            first = self.oldest.get(tp)
            is_exact = self.log_starts[tp] <= lowest or (highest is not None and highest <= lowest)
            if not is_exact and (first is None or first.timestamp >= timestamp_of(moment)):
                heads[tp] = _head(self.log_starts[tp], first)
        return heads


def look(cluster: Cluster, partitions: Collection[TopicPartition], moment: dt.datetime) -> Look:
    """Look a moment up, in logs that keep their starts meanwhile.

    :raises IntervalNotReady: where a broker cannot tell before it has removed what was deleted.
    """
    for _ in range(_LOOKS):
        starts = cluster.log_starts(partitions)
        # The stable offsets come first: a record that arrives in between is then found, never skipped.
        stable = cluster.last_stable_offsets(partitions)
        cut = [tp for tp in partitions if starts[tp] > 0]
        oldest = cluster.offsets_for_time(cut, 0, markers=True) if cut else {}
        found = cluster.offsets_for_time(partitions, timestamp_of(moment))
        # Behind the stable offsets: what stands below them is among these timestamps.
        highest = cluster.max_timestamps(partitions)
        if cluster.log_starts(partitions) == starts:
            break
    else:
        raise IntervalNotReady(f"the log starts of {min(partitions).topic!r} keep moving; retry later")
    # Records without a timestamp are never found by time, however long a run waits.
    refuse_hidden([tp for tp in cut if oldest[tp] is None and stable[tp] > starts[tp] and highest[tp] >= 0])
    return Look(starts, oldest, stable, found, highest)


def refuse_hidden(hidden: Collection[TopicPartition]) -> None:
    """Refuse to believe brokers that find no record by time where there are some.

    They look into the first segment that is new enough, and into no other; one that DeleteRecords has emptied
    is still there until the broker cleans up.

    :param hidden: partitions in which no record was found, though their logs hold offsets.
    :raises IntervalNotReady: naming them, and until when.
    """
    if hidden:
        raise IntervalNotReady(
            f"{', '.join(map(str, sorted(hidden)))}: the broker finds no record by time, because segments "
            "that DeleteRecords has emptied are still there; it removes them after "
            "log.retention.check.interval.ms (5 minutes by default); retry then"
        )


def deleted_heads(
    cluster: Cluster, log_starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Deleted]:
    """Return what is left of logs whose heads are deleted.

    :param log_starts: first offset that may still be there, of these partitions.
    """
    oldest = cluster.offsets_for_time(list(log_starts), 0, markers=True) if log_starts else {}
    return {tp: _head(log_start, oldest[tp]) for tp, log_start in log_starts.items()}


def _head(log_start: int, oldest: TimedOffset | None) -> Deleted:
    return Deleted(log_start, None if oldest is None else oldest.timestamp)


def refuse_deleted(topic: str, moment: str, heads: Mapping[int, Deleted], *, pinned: bool) -> None:
    """Refuse a boundary whose partitions have lost records that may belong to its intervals.

    :param pinned: the boundary was fixed by a run that accepted the loss.
    :raises IntervalUnaccountable: naming partitions, log starts and first timestamps, and the ways on.
    """
    if not heads:
        return
    parts = "; ".join(f"{topic}-{partition}: {head}" for partition, head in sorted(heads.items()))
    how = " (when it was fixed, by a run that accepted the loss)" if pinned else ""
    raise IntervalUnaccountable(
        f"records on both sides of the boundary of {topic!r} at {moment} may have been deleted unread, by "
        f"retention or DeleteRecords: {parts}{how}; nothing older tells what is gone. {WAYS_ON}"
    )


def refuse_future(found: Mapping[TopicPartition, TimedOffset | None], now: dt.datetime) -> None:
    """Refuse a boundary before a record of the far future.

    :raises IntervalUnaccountable: naming partitions, offsets and timestamps, and the way on.
    """
    latest = timestamp_of(now + FUTURE_TOLERANCE)
    ahead = [
        f"{tp} offset {one.offset}: {moment_text(one.timestamp)}"
        for tp, one in sorted(found.items())
        if one is not None and one.timestamp > latest
    ]
    if ahead:
        raise IntervalUnaccountable(
            f"the next record by time is of the far future: {'; '.join(ahead)}; it is "
            f"{moment_text(timestamp_of(now))}. Every interval to come would end before it, and nobody would "
            "read what is written behind it. Read what lies before it by offsets (Explicit), delete the "
            "records up to it (kafka-delete-records.sh, the offset plus one), go on with "
            "accept_deleted=True, and keep such timestamps out: message.timestamp.after.max.ms, or "
            "message.timestamp.type=LogAppendTime"
        )


def accepted(
    topic: str, moment: str, heads: Mapping[int, Deleted], wanted: Collection[TopicPartition]
) -> list[dict[str, Any]]:
    """Return what a run accepts with a boundary, for its record."""
    return [
        {"topic": topic, "partition": partition, "boundary": moment, **head.to_dict()}
        for partition, head in sorted(heads.items())
        if TopicPartition(topic, partition) in wanted
    ]


def what_is_left(
    ranges: Iterable[OffsetRange], heads: Mapping[TopicPartition, Deleted]
) -> tuple[tuple[OffsetRange, ...], list[dict[str, Any]]]:
    """Return the ranges from their log starts on, and what that accepts, for the run's record."""
    left: list[OffsetRange] = []
    losses: list[dict[str, Any]] = []
    for one in ranges:
        head = heads.get(one.topic_partition)
        if head is None or not one.start < min(head.log_start, one.end):
            left.append(one)
            continue
        start = min(head.log_start, one.end)
        left.append(replace(one, start=start))
        place = {"topic": one.topic, "partition": one.partition, "start": one.start, "end": start}
        losses.append({**place, **head.to_dict()})
    return tuple(left), losses


def accepted_notes(losses: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each accepted loss."""
    notes = []
    for loss in losses:
        where = f"{loss['topic']}-{loss['partition']}"
        what = (
            f"records around the boundary at {loss['boundary']} may have been deleted"
            if "boundary" in loss
            else f"offsets {loss['start']} to {loss['end'] - 1} were deleted"
        )
        notes.append(f"{where}: {what}, {Deleted.from_dict(loss)}; accepted (accept_deleted)")
    return notes


def timestamp_of(moment: dt.datetime) -> int:
    """Return a moment in ms since 1970."""
    return (in_utc(moment) - _EPOCH) // dt.timedelta(milliseconds=1)
