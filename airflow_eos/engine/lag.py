"""How far a group has read, how far a topic has come, whether a run is committed: what sensors ask.

Nothing here commits, fences or pins anything. The answers are hints for when to start a run; the run itself
decides, under its fence, what it reads.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.engine.unpinned import Unpinned
from airflow_eos.exceptions import IntervalNotReady, LedgerMissing
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor import CursorRecord
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ranges import Interval, OffsetRange, TopicPartition
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment, LedgerSettings
from airflow_eos.run.log_coverage import timestamp_of
from airflow_eos.run.undecided import Undecided, undecided

IdlePolicy = Literal["allowed_lateness", "wait"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unread:
    """What a group has not read yet.

    :param ranges: from the group's position to the last stable offset, for every partition; some are empty.
    :param topic_ids: ids of the topics when they were asked.
    :param without_position: partitions of which neither the group's offsets nor the ledger know anything: a
        run begins there by its ``start``, and with ``latest`` at the end the log has *then*.
    :param undecided: what waits behind open transactions: a run cannot read it yet.
    :param added: partitions that were added since the cursor began and are not read yet; of a mapped cursor
        no mapped task has read them.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    without_position: frozenset[TopicPartition] = frozenset()
    undecided: tuple[Undecided, ...] = ()
    added: frozenset[TopicPartition] = frozenset()

    @property
    def offsets(self) -> int:
        """Offsets not read: an upper bound of the records, since markers and aborted records take offsets."""
        return sum(one.span for one in self.ranges)

    @property
    def offsets_to_end(self) -> int:
        """The same up to the high watermarks: with what waits behind open transactions."""
        return self.offsets + sum(one.offsets.span for one in self.undecided)


@dataclass(frozen=True, slots=True)
class IntervalProgress:
    """Whether a topic has passed the end of an interval.

    :param waiting_for: why not, one line per partition; empty when a run over the interval can start.
    """

    waiting_for: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether every partition has passed the end."""
        return not self.waiting_for


def unread(
    kafka: Mapping[str, Any],
    group: str,
    topics: Collection[str],
    *,
    start: Literal["earliest", "latest"] = "earliest",
    ledger: LedgerSettings | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> Unread:
    """Return what lies between a group's committed offsets and the last stable offsets.

    Offsets that an open transaction is about to commit do not count yet.

    :param start: where a partition without a position begins: the log's start, or its end. With ``latest``
        nothing is ever unread there; see :attr:`Unread.without_position`.
    :param ledger: where to look for the cursor of partitions whose committed offsets are gone; None: nowhere.
    :raises UnknownTopic: naming a topic that does not exist.
    """
    with ControlPlane(Deployment(kafka, ledger or LedgerSettings(), prefix)) as control:
        found = control.cluster.describe_topics(topics)
        partitions = [tp for name in sorted(found) for tp in found[name].topic_partitions]
        committed = control.cluster.committed(group, partitions, stable=False)
        positions = {tp: one.offset for tp, one in committed.items()}
        missing = [tp for tp in partitions if tp not in positions]
        added: dict[TopicPartition, int] = {}
        if missing and ledger is not None:
            known, added = _cursor(control, group, missing)
            positions.update(known)
        begins = control.cluster.log_starts(partitions)
        high = control.cluster.log_ends(partitions)
        ends = control.cluster.last_stable_offsets(partitions)
        waiting = undecided(control.cluster, high, ends)
    ranges = []
    for tp in partitions:
        begin = positions.get(tp, begins[tp] if start == "earliest" else ends[tp])
        ranges.append(OffsetRange(tp.topic, tp.partition, min(begin, ends[tp]), ends[tp]))
    return Unread(
        tuple(ranges),
        {name: one.topic_id for name, one in found.items()},
        frozenset(tp for tp in partitions if tp not in positions),
        tuple(waiting),
        frozenset(added),
    )


def _cursor(
    control: ControlPlane, group: str, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where the ledger says that the group goes on, and of these the partitions added since, at 0."""
    layout = keys.cursor_key(group)
    wanted = [layout, *(keys.cursor_key(group, one) for one in partitions)]
    try:
        found = control.authority.peek(wanted, routing=group)
    except LedgerMissing:
        return {}, {}
    records = {key: CursorRecord.from_json(value, key) for key, value in found.items()}
    known = records[layout].partition_counts if layout in records else {}
    added = {tp: 0 for tp in partitions if 0 < known.get(tp.topic, 0) <= tp.partition}
    ends = {tp: end for record in records.values() for tp, end in record.ends.items()}
    added = {tp: 0 for tp in added if tp not in ends}
    return {tp: end for tp, end in {**added, **ends}.items() if tp in partitions}, added


def interval_progress(
    kafka: Mapping[str, Any],
    topics: Collection[str],
    interval: Interval,
    *,
    idle: IdlePolicy = "allowed_lateness",
    ledger: LedgerSettings | None = None,
    now: dt.datetime | None = None,
) -> IntervalProgress:
    """Tell whether a run over the interval could fix its boundary and start.

    A partition has passed the end when it holds a record of that time or later, and no open transaction lies
    before that record.

    :param idle: what a partition without such a record means: ``allowed_lateness``: it has passed once the
        interval's allowed lateness is over, which is the run's own rule; ``wait``: it has not.
    :param ledger: where boundaries are pinned that count as they do for the run; None: nowhere.
    :param now: the current time, aware; default: the clock.
    :raises IntervalUnaccountable: the run would be refused: the log cannot tell what the interval holds.
    """
    now = now or utc_now()
    if now < interval.end:
        return IntervalProgress((f"the interval ends at {keys.utc_text(interval.end)}",))
    with ControlPlane(Deployment(kafka, ledger or LedgerSettings())) as control:
        found = control.cluster.describe_topics(topics)
        waiting = _behind(control, found, interval, idle, now)
        if not waiting:
            waiting = _not_ready(control, found, interval, now, asks_ledger=ledger is not None)
    return IntervalProgress(tuple(waiting))


def _behind(
    control: ControlPlane,
    topics: Mapping[str, TopicDescription],
    interval: Interval,
    idle: IdlePolicy,
    now: dt.datetime,
) -> list[str]:
    """Return which partitions have not passed the end of an interval."""
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
    *,
    asks_ledger: bool,
) -> list[str]:
    """Return why a run over these boundaries would have to wait; raise what would refuse it."""
    boundaries = Unpinned(control, DEFAULT_PREFIX, lambda: now, asks_ledger=asks_ledger)
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
        return _not_ready(control, topics, interval, now, asks_ledger=False)
    return []
