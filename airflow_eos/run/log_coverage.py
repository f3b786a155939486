"""Checks whether a log proves a boundary: deleted heads, future and missing timestamps prevent it.

A boundary is the first offset with a timestamp at or after a moment. If records before the first remaining
one are deleted, some of them may have been after the moment. A record from the far future is the first one
after *every* moment: all later intervals would be empty. If no record has a timestamp, every moment is after
the last record.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_eos.exceptions import IntervalNotReady, IntervalUnaccountable
from airflow_eos.ledger.records.boundary import Deleted
from airflow_eos.model.kafka import TimedOffset
from airflow_eos.model.ranges import FUTURE_TOLERANCE, OffsetRange, TopicPartition, timestamp_of
from airflow_eos.ports import Cluster
from airflow_eos.wording import moment_text

_MAX_ATTEMPTS = 5
WAYS_ON = (
    "Publish them again, into a topic of another name, or accept the loss with accept_deleted=True: what is "
    "left is read then, and the run's record says what was accepted"
)


@dataclass(frozen=True, slots=True)
class Look:
    """A topic's log at a moment.

    :param log_starts: first offset of each partition that may still exist.
    :param oldest: the first remaining record of partitions whose log start is above 0.
    :param stable: last stable offsets.
    :param first_records: the first record at or after the moment.
    :param highest: the highest timestamps, in ms since 1970, where they are known; -1 if there is none.
    :param undated: partitions with records, none of which has a timestamp.
    :param epochs: epochs of the leaders that answered for ``stable``; -1 if unknown.
    """

    log_starts: Mapping[TopicPartition, int]
    oldest: Mapping[TopicPartition, TimedOffset | None]
    stable: Mapping[TopicPartition, int]
    first_records: Mapping[TopicPartition, TimedOffset | None]
    highest: Mapping[TopicPartition, int]
    undated: Collection[TopicPartition] = ()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def unproven(
        self, bounds: Mapping[TopicPartition, tuple[int, int | None]], moment: dt.datetime
    ) -> dict[TopicPartition, Deleted]:
        """Return the partitions that do not prove which records belong at or after ``moment``.

        If the first remaining record is older than the moment, so are the deleted ones before it, provided
        that timestamps rise with offsets.

        :param bounds: per partition, lower and upper bound of the boundary; None: no upper bound.
        """
        heads = {}
        for tp, (lowest, highest) in bounds.items():
            first = self.oldest.get(tp)
            if highest is not None and highest <= lowest:
                continue
            if tp in self.undated:
                if lowest < self.stable[tp]:
                    heads[tp] = Deleted(max(lowest, self.log_starts[tp]), None, undated=True)
                continue
            if self.log_starts[tp] > lowest and (first is None or first.timestamp >= timestamp_of(moment)):
                heads[tp] = _head(self.log_starts[tp], first)
        return heads


def look(cluster: Cluster, partitions: Collection[TopicPartition], moment: dt.datetime) -> Look:
    """Look up a moment, in logs whose starts do not move meanwhile.

    Brokers find no record whose timestamp is missing or before 1970: such a moment is at the log's start.

    :raises IntervalNotReady: the log starts keep moving.
    """
    timestamp = timestamp_of(moment)
    for _ in range(_MAX_ATTEMPTS):
        # The stable offsets come first: a record that arrives in between is then found, never skipped.
        bounds = cluster.log_bounds(partitions, ends=False)
        starts, stable = bounds.starts, bounds.stable
        cut = [tp for tp in partitions if starts[tp] > 0]
        oldest = cluster.offsets_for_time(cut, 0, markers=True) if cut else {}
        first_records: Mapping[TopicPartition, TimedOffset | None] = (
            {tp: TimedOffset(start, timestamp) for tp, start in starts.items()}
            if timestamp < 0
            else cluster.offsets_for_time(list(starts), timestamp)
        )
        # Requested after the stable offsets, so that every record below them counts.
        highest = cluster.max_timestamps(partitions)
        if cluster.log_starts(partitions) == starts:
            break
    else:
        raise IntervalNotReady(f"the log starts of {min(partitions).topic!r} keep moving; retry later")
    return Look(
        starts,
        oldest,
        stable,
        first_records,
        highest,
        _undated(cluster, starts, stable, oldest, first_records),
        bounds.epochs,
    )


def _undated(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    oldest: Mapping[TopicPartition, TimedOffset | None],
    first_records: Mapping[TopicPartition, TimedOffset | None],
) -> frozenset[TopicPartition]:
    """Return the partitions with records, none of which has a timestamp; reads up to the first record."""
    idle = [tp for tp, first in first_records.items() if first is None and starts[tp] < stable[tp]]
    undated = {tp for tp in idle if tp in oldest and oldest[tp] is None}
    partitions = [tp for tp in idle if tp not in undated]
    dated = cluster.offsets_for_time(partitions, 0) if partitions else {}
    unseen = [tp for tp in partitions if dated[tp] is None]
    hidden = [OffsetRange(tp.topic, tp.partition, starts[tp], stable[tp]) for tp in unseen]
    data = cluster.next_data(hidden) if hidden else {}
    return frozenset(undated | {tp for tp, offset in data.items() if offset < stable[tp]})


def rewritten_from(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    now: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the ends of leader epochs that end below these offsets: later leaders lacked the rest (KIP-101).

    :param epochs: leader epochs at which the offsets were read; -1 if unknown.
    :param now: the current leader epochs.
    """
    earlier = {tp: epoch for tp, epoch in epochs.items() if 0 <= epoch < now.get(tp, -1)}
    ends = cluster.epoch_ends(earlier) if earlier else {}
    return {tp: end for tp, end in sorted(ends.items()) if 0 <= end < offsets[tp]}


def deleted_heads(
    cluster: Cluster, log_starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Deleted]:
    """Return, for logs whose heads are deleted, log start and timestamp of the first remaining record."""
    oldest = cluster.offsets_for_time(list(log_starts), 0, markers=True) if log_starts else {}
    return {tp: _head(log_start, oldest[tp]) for tp, log_start in log_starts.items()}


def _head(log_start: int, oldest: TimedOffset | None) -> Deleted:
    return Deleted(log_start, None if oldest is None else oldest.timestamp)


def refuse_deleted(topic: str, moment: str, heads: Mapping[int, Deleted], *, pinned: bool) -> None:
    """Refuse a boundary whose partitions do not prove which records belong to its intervals.

    :param pinned: the boundary was fixed by a run that accepted the loss.
    :raises IntervalUnaccountable: names partitions, log starts and first timestamps, and the remedies.
    """
    if not heads:
        return
    how = " (when it was fixed, by a run that accepted the loss)" if pinned else ""
    reasons = []
    if deleted := _listed(topic, heads, undated=False):
        reasons.append(
            f"records on both sides of the boundary of {topic!r} at {moment} may have been deleted unread, "
            f"by retention or DeleteRecords: {deleted}{how}; nothing older tells what is gone"
        )
    if undated := _listed(topic, heads, undated=True):
        reasons.append(
            f"nothing tells on which side of the boundary of {topic!r} at {moment} records lie: "
            f"{undated}{how}; a cursor and Explicit ranges need no timestamps, and "
            "message.timestamp.type=LogAppendTime gives them to what is written from now on"
        )
    raise IntervalUnaccountable(f"{'. '.join(reasons)}. {WAYS_ON}")


def _listed(topic: str, heads: Mapping[int, Deleted], *, undated: bool) -> str:
    wanted = {partition: head for partition, head in heads.items() if head.undated is undated}
    return "; ".join(f"{topic}-{partition}: {head}" for partition, head in sorted(wanted.items()))


def refuse_future(
    first_records: Mapping[TopicPartition, TimedOffset | None],
    stable: Mapping[TopicPartition, int],
    now: dt.datetime,
) -> None:
    """Refuse a boundary before a record from the far future.

    :param stable: last stable offsets.
    :raises IntervalUnaccountable: names partitions, offsets and timestamps, and the remedy.
    :raises IntervalNotReady: the transaction of such a record is open, and may abort.
    """
    latest = timestamp_of(now + FUTURE_TOLERANCE)
    ahead = [
        (tp, record) for tp, record in sorted(first_records.items()) if record and record.timestamp > latest
    ]
    if not ahead:
        return
    places = "; ".join(
        f"{tp} offset {record.offset}: {moment_text(record.timestamp)}" for tp, record in ahead
    )
    text = f"the next record by time is of the far future: {places}"
    if all(record.offset >= stable[tp] for tp, record in ahead):
        raise IntervalNotReady(f"{text}, in a transaction that is open; retry when it has ended")
    raise IntervalUnaccountable(
        f"{text}; it is {moment_text(timestamp_of(now))} by this host's clock. If that clock is wrong, or a "
        "broker's with message.timestamp.type=LogAppendTime, correct it and wait until then. Else every "
        "interval to come would end before it, and nobody would read what is written behind it: read what "
        "lies before it by offsets (Explicit), delete the records up to it (kafka-delete-records.sh, the "
        "offset plus one), go on with accept_deleted=True, and keep such timestamps out: "
        "message.timestamp.after.max.ms, or message.timestamp.type=LogAppendTime"
    )


def accepted(
    topic: str, moment: str, heads: Mapping[int, Deleted], wanted: Collection[TopicPartition]
) -> list[dict[str, Any]]:
    """Return the loss that a run accepts with a boundary, for its record."""
    return [
        {"topic": topic, "partition": partition, "boundary": moment, **head.to_dict()}
        for partition, head in sorted(heads.items())
        if TopicPartition(topic, partition) in wanted
    ]


def without_deleted(
    ranges: Iterable[OffsetRange], heads: Mapping[TopicPartition, Deleted]
) -> tuple[tuple[OffsetRange, ...], list[dict[str, Any]]]:
    """Return the ranges without deleted offsets, and the accepted loss for the run's record."""
    left: list[OffsetRange] = []
    losses: list[dict[str, Any]] = []
    for whole in ranges:
        head = heads.get(whole.topic_partition)
        if head is None or not whole.start < min(head.log_start, whole.end):
            left.append(whole)
            continue
        start = min(head.log_start, whole.end)
        left.append(replace(whole, start=start))
        place = {"topic": whole.topic, "partition": whole.partition, "start": whole.start, "end": start}
        losses.append({**place, **head.to_dict()})
    return tuple(left), losses


def accepted_notes(losses: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each accepted loss."""
    notes = []
    for loss in losses:
        place = f"{loss['topic']}-{loss['partition']}"
        head = Deleted.from_dict(loss)
        if "boundary" not in loss:
            accepted_loss = f"offsets {loss['start']} to {loss['end'] - 1} were deleted"
        elif head.undated:
            accepted_loss = f"records may lie on either side of the boundary at {loss['boundary']}"
        else:
            accepted_loss = f"records around the boundary at {loss['boundary']} may have been deleted"
        notes.append(f"{place}: {accepted_loss}, {head}; accepted (accept_deleted)")
    return notes
