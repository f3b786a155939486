"""Queries for sensors: how far a group has read, and whether a topic has passed the end of an interval.

These functions do not commit, fence or pin anything. Their results say when to start a run; the run itself
decides, under its fence, what it reads.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import IntervalNotReady, LedgerMissing
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ranges import Interval, OffsetRange, TopicPartition, timestamp_of, utc_now
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment, LedgerSettings
from airflow_eos.run.boundaries import Unpinned
from airflow_eos.run.undecided import Undecided, undecided

IdlePolicy = Literal["allowed_lateness", "wait"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unread:
    """The offsets that a group has not read yet.

    :param ranges: from the group's position to the last stable offset, for every partition; may be empty.
    :param topic_ids: ids of the topics at the time of the query.
    :param without_position: partitions without a committed offset or a ledger cursor: a run begins there by
        its ``start``, and with ``latest`` at the log end *when the run starts*.
    :param undecided: offsets behind open transactions, which a run cannot read yet.
    :param added: partitions added since the cursor began that no run has read yet; with a mapped cursor, no
        mapped task.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    without_position: frozenset[TopicPartition] = frozenset()
    undecided: tuple[Undecided, ...] = ()
    added: frozenset[TopicPartition] = frozenset()

    @property
    def offsets(self) -> int:
        """Unread offsets: an upper bound of the records, since markers and aborted records take offsets."""
        return sum(offsets.span for offsets in self.ranges)

    @property
    def offsets_to_end(self) -> int:
        """Unread offsets up to the high watermarks, including those behind open transactions."""
        return self.offsets + sum(waiting.offsets.span for waiting in self.undecided)


def unread(
    kafka: Mapping[str, Any],
    group: str,
    topics: Collection[str],
    *,
    start: Literal["earliest", "latest"] = "earliest",
    ledger: LedgerSettings,
) -> Unread:
    """Return the offsets between a group's committed offsets and the last stable offsets.

    Pending offsets of an open transaction do not count as committed.

    :param start: where a partition without a position begins: at the log's start, or its end. With ``latest``
        such a partition never has unread offsets; see :attr:`Unread.without_position`.
    :param ledger: ledger with the cursor, for partitions whose committed offsets have expired.
    :raises UnknownTopic: names a topic that does not exist.
    """
    with ControlPlane(Deployment(kafka, ledger)) as control:
        return unread_of(control, group, topics, start=start)


def unread_of(
    control: ControlPlane,
    group: str,
    topics: Collection[str],
    *,
    start: Literal["earliest", "latest"] = "earliest",
) -> Unread:
    """Like :func:`unread`, over open connections."""
    descriptions = control.cluster.describe_topics(topics)
    topic_ids = {name: topic.topic_id for name, topic in descriptions.items()}
    partitions = [tp for name in sorted(descriptions) for tp in descriptions[name].topic_partitions]
    committed = control.cluster.committed(group, partitions, stable=False)
    positions = {tp: committed_offset.offset for tp, committed_offset in committed.items()}
    missing = [tp for tp in partitions if tp not in positions]
    added: dict[TopicPartition, int] = {}
    if missing:
        recorded, added = _cursor(control, group, missing, topic_ids)
        positions.update(recorded)
    bounds = control.cluster.log_bounds(partitions)
    waiting = undecided(control.cluster, bounds.ends, bounds.stable)
    begins, ends = bounds.starts, bounds.stable
    ranges = []
    for tp in partitions:
        begin = positions.get(tp, begins[tp] if start == "earliest" else ends[tp])
        ranges.append(OffsetRange(tp.topic, tp.partition, min(begin, ends[tp]), ends[tp]))
    return Unread(
        tuple(ranges),
        topic_ids,
        frozenset(tp for tp in partitions if tp not in positions),
        tuple(waiting),
        frozenset(added),
    )


def _cursor(
    control: ControlPlane,
    group: str,
    partitions: Collection[TopicPartition],
    topic_ids: Mapping[str, str],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the next offsets of the ledger's cursor, and those among them of added partitions: offset 0.

    Offsets of a topic that was created again are omitted: everything there is unread, as the run will report.

    :param topic_ids: of the topics now.
    """
    layout = keys.cursor_key(group)
    wanted = [layout, *(keys.cursor_key(group, tp) for tp in partitions)]
    try:
        values = control.authority.peek(wanted, routing=group)
    except LedgerMissing:
        return {}, {}
    records = {key: CursorRecord.from_json(value, key) for key, value in values.items()}

    def is_of_this_topic(record: CursorRecord, tp: TopicPartition) -> bool:
        return record.topic_ids.get(tp.topic, topic_ids[tp.topic]) == topic_ids[tp.topic]

    ends = {
        tp: end
        for record in records.values()
        for tp, end in record.ends.items()
        if tp in partitions and is_of_this_topic(record, tp)
    }
    whole = records.get(layout)
    if whole is None:
        return ends, {}
    unread = [tp for tp in partitions if tp not in ends]
    added = {tp: 0 for tp in unread if whole.is_added(tp) and is_of_this_topic(whole, tp)}
    return {**added, **ends}, added


def interval_waits_for(
    kafka: Mapping[str, Any],
    topics: Collection[str],
    interval: Interval,
    *,
    idle: IdlePolicy = "allowed_lateness",
    ledger: LedgerSettings,
    now: dt.datetime | None = None,
) -> list[str]:
    """Return why a run over the interval would have to wait, a line per partition; empty: it can start.

    A partition has passed the end if it has a record of that time or later, without an open transaction
    before that record.

    :param idle: how to treat a partition without such a record. ``allowed_lateness``: it has passed the end
        once the interval's allowed lateness is over, which is the run's own rule. ``wait``: it has not.
    :param ledger: ledger with pinned boundaries, which apply as they do for the run.
    :param now: the current time, aware; default: the clock.
    :raises IntervalUnaccountable: the run would be refused, because the log cannot prove which records belong
        to the interval.
    """
    now = now or utc_now()
    if now < interval.end:
        return [f"the interval ends at {keys.utc_text(interval.end)}"]
    with ControlPlane(Deployment(kafka, ledger)) as control:
        descriptions = control.cluster.describe_topics(topics)
        waiting = _not_past_end(control, descriptions, interval, idle, now)
        return waiting or _not_ready(control, descriptions, interval, now, control.authority)


def _not_past_end(
    control: ControlPlane,
    topics: Mapping[str, TopicDescription],
    interval: Interval,
    idle: IdlePolicy,
    now: dt.datetime,
) -> list[str]:
    """Return the partitions that have not passed the end of an interval, with the reason."""
    partitions = [tp for name in sorted(topics) for tp in topics[name].topic_partitions]
    stable = control.cluster.last_stable_offsets(partitions)
    at = control.cluster.offsets_for_time(partitions, timestamp_of(interval.end))
    is_late = now >= interval.end + interval.allowed_lateness
    waiting = []
    for tp in partitions:
        first = at[tp]
        if first is None:
            if idle == "wait" or not is_late:
                waiting.append(f"{tp} holds nothing at or after {keys.utc_text(interval.end)}")
        elif first.offset > stable[tp]:
            waiting.append(f"{tp}: a transaction is open before offset {first.offset}")
    return waiting


def _not_ready(
    control: ControlPlane,
    topics: Mapping[str, TopicDescription],
    interval: Interval,
    now: dt.datetime,
    authority: Authority | None,
) -> list[str]:
    """Return why a run over these boundaries would have to wait; raise the error that would refuse it."""
    boundaries = Unpinned(control.cluster, control.pins, DEFAULT_PREFIX, lambda: now, authority)
    try:
        for name in sorted(topics):
            for moment in (interval.start, interval.end):
                boundaries.boundary(
                    topics[name],
                    moment,
                    interval.allowed_lateness,
                    accept_deleted=interval.accept_deleted,
                )
    except IntervalNotReady as reason:
        return [str(reason)]
    except LedgerMissing:
        return _not_ready(control, topics, interval, now, None)
    return []
