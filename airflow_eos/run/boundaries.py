"""Interval boundaries: the offset of a moment in time, fixed once per topic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_eos.exceptions import IntervalNotReady, IntervalUnaccountable, TopicRecreated, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.records.boundary import Boundary
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.ranges import timestamp_of
from airflow_eos.ports import Cluster
from airflow_eos.run import log_coverage

NEIGHBOURS = 8
"""Number of pinned boundaries to read on each side of the one to pin."""


@dataclass(eq=False)
class Boundaries:
    """Pins boundaries so that the intervals of a topic tile its log, for all runs and in any order.

    :param prefix: the ledger's prefix, not the run's: all runs that share a boundary share its fence.
    :param now: returns the current time, aware.
    """

    cluster: Cluster
    pins: Pins
    prefix: str
    now: Callable[[], dt.datetime]

    def boundary(
        self,
        topic: TopicDescription,
        moment: dt.datetime,
        lateness: dt.timedelta,
        *,
        accept_deleted: bool = False,
    ) -> Boundary:
        """Return the topic's boundary at ``moment``; pin it first if it is not pinned yet.

        :param accept_deleted: accept a boundary whose intervals may have lost deleted records.
        :raises IntervalUnaccountable: the log cannot prove the boundary, or was rewritten below an earlier
            one; nothing is pinned.
        :raises IntervalNotReady: a partition has no record at or after ``moment``, and the allowed lateness
            has not passed.
        :raises TopicRecreated: the boundary was pinned on an earlier topic of that name.
        """
        key = keys.boundary_key(topic.topic, moment)
        value = self.pins.pin(
            keys.boundary_transactional_id(self.prefix, topic.topic),
            key,
            topic.topic,
            lambda near, whole: self.compute(
                topic, moment, lateness, Pinned(topic, moment, near, whole), accept_deleted=accept_deleted
            ).to_json(),
            prefixes=(neighbours(topic.topic, moment),),
        )
        return self.read_pinned(topic, value, accept_deleted=accept_deleted)

    @staticmethod
    def read_pinned(
        topic: TopicDescription, value: LedgerValue | str, *, accept_deleted: bool = False
    ) -> Boundary:
        """Read a pinned boundary.

        :raises TopicRecreated: it was pinned on an earlier topic of that name.
        :raises IntervalUnaccountable: the run that pinned it accepted a loss, and this run does not.
        """
        boundary = Boundary.from_json(value)
        if boundary.topic_id != topic.topic_id:
            raise TopicRecreated(
                f"the boundary of {topic.topic!r} at {boundary.moment} was pinned on topic id "
                f"{boundary.topic_id}, the topic now has id {topic.topic_id}: it was deleted and recreated; "
                "give the new one another name"
            )
        if not accept_deleted:
            log_coverage.refuse_deleted(topic.topic, boundary.moment, boundary.unproven, pinned=True)
        return boundary

    def compute(
        self,
        topic: TopicDescription,
        moment: dt.datetime,
        lateness: dt.timedelta,
        pinned: Pinned,
        *,
        accept_deleted: bool = False,
    ) -> Boundary:
        """Return the boundary as it would be pinned now; errors as :meth:`boundary`.

        :param pinned: the topic's pinned boundaries, loaded on demand.
        """
        partitions = topic.topic_partitions
        look = log_coverage.look(self.cluster, partitions, moment)
        stable, first_records = look.stable, look.first_records
        now, text = self.now(), keys.utc_text(moment)
        log_coverage.refuse_future(first_records, stable, now)
        idle = [tp.partition for tp in partitions if first_records[tp] is None]
        if idle and now < moment + lateness:
            error = IntervalNotReady(
                f"{topic.topic!r}: partitions {idle} hold nothing at or after {text} yet; the boundary "
                f"is fixed at {keys.utc_text(moment + lateness)} at the latest (allowed_lateness {lateness})"
            )
            error.until = moment + lateness
            raise error
        others = pinned.near()
        # A boundary without a partition that its neighbours have puts it at 0, and 0 is read again.
        refuse_behind(topic, others)
        heads = look.unproven({tp: _bounds(tp.partition, text, others) for tp in partitions}, moment)
        if heads:  # a boundary farther away may prove more
            others = pinned.all()
            heads = look.unproven({tp: _bounds(tp.partition, text, others) for tp in partitions}, moment)
        unproven = {tp.partition: head for tp, head in heads.items()}
        if not accept_deleted:
            log_coverage.refuse_deleted(topic.topic, text, unproven, pinned=False)
            self._refuse_rewritten([other for other in others if other.moment < text], look)
        # Remaining records without timestamps belong to the first interval that accepts them.
        is_first = not any(other.moment < text for other in others)
        offsets = {}
        for tp in partitions:
            first = first_records[tp]
            last = look.log_starts[tp] if is_first and tp in look.undated else stable[tp]
            offsets[tp.partition] = last if first is None else first.offset
        return Boundary(
            topic.topic,
            topic.topic_id,
            text,
            _clamped(offsets, text, others),
            keys.utc_text(now),
            {tp.partition: stable[tp] for tp in partitions},
            unproven,
            {tp.partition: highest for tp, highest in look.highest.items()},
            {tp.partition: epoch for tp, epoch in look.epochs.items() if epoch >= 0},
        )

    def _refuse_rewritten(self, earlier: Collection[Boundary], look: log_coverage.Look) -> None:
        """Refuse if a later leader lacked records below the last boundary and wrote others in their place."""
        if not earlier:
            return
        last = max(earlier, key=lambda boundary: boundary.moment)
        epochs = {tp: last.epochs[tp.partition] for tp in look.epochs if tp.partition in last.epochs}
        offsets = {tp: last.offsets[tp.partition] for tp in epochs}
        for tp, end in log_coverage.rewritten_from(self.cluster, offsets, epochs, look.epochs).items():
            raise IntervalUnaccountable(
                f"{tp}: the boundary at {last.moment} is offset {offsets[tp]}, but a leader without the last "
                f"records was elected (unclean), and the log was rewritten from {end} on: what is now "
                "between the two is in no interval. Read it by offsets (Explicit), then go on with "
                "accept_deleted=True"
            )


@dataclass(eq=False)
class Pinned:
    """The pinned boundaries of a topic, without those of an earlier topic of that name.

    :param values: values by ledger key: at least the :data:`NEIGHBOURS` of ``moment`` on each side.
    :param whole: returns the values of all boundaries.
    """

    topic: TopicDescription
    moment: dt.datetime
    values: Mapping[str, LedgerValue]
    whole: Callable[[], Mapping[str, LedgerValue]] = dict

    def __post_init__(self) -> None:
        self._key = keys.boundary_key(self.topic.topic, self.moment)

    def near(self) -> list[Boundary]:
        """Return the neighbours of the moment: at least one on each side, if there is one.

        Boundaries farther away cannot clamp it: each was clamped by its neighbours when it was pinned, so
        offsets rise with moments.
        """
        others = self._of_topic(self.values)
        for before in (True, False):
            side = [key for key in self.values if key != self._key and (key < self._key) == before]
            if len(side) >= NEIGHBOURS and not any((key < self._key) == before for key in others):
                return self.all()  # all neighbours belong to an earlier topic of that name
        return list(others.values())

    def all(self) -> list[Boundary]:
        """Return all boundaries."""
        self.values = {**self.values, **self.whole()}
        return list(self._of_topic(self.values).values())

    def _of_topic(self, values: Mapping[str, LedgerValue]) -> dict[str, Boundary]:
        boundaries = {
            key: Boundary.from_json(value, key) for key, value in values.items() if key != self._key
        }
        return {
            key: boundary for key, boundary in boundaries.items() if boundary.topic_id == self.topic.topic_id
        }


@dataclass(eq=False)
class Unpinned(Boundaries):
    """Reads pinned boundaries, and computes the others without pinning them.

    :param authority: reads pinned boundaries; None: all of them are computed.
    :ivar notes: which boundaries were computed.
    """

    authority: Authority | None
    notes: list[str] = field(default_factory=list)

    def boundary(
        self,
        topic: TopicDescription,
        moment: dt.datetime,
        lateness: dt.timedelta,
        *,
        accept_deleted: bool = False,
    ) -> Boundary:
        """Return the pinned boundary, or the one that would be pinned now."""
        key = keys.boundary_key(topic.topic, moment)
        pinned = self._pinned_values(topic.topic, key, neighbours(topic.topic, moment))
        if key in pinned:
            return self.read_pinned(topic, pinned[key], accept_deleted=accept_deleted)
        self.notes.append(f"{topic.topic}: the boundary at {keys.utc_text(moment)} is not pinned yet")
        near = Pinned(
            topic,
            moment,
            pinned,
            lambda: self._pinned_values(topic.topic, key, keys.boundary_prefix(topic.topic)),
        )
        return self.compute(topic, moment, lateness, near, accept_deleted=accept_deleted)

    def _pinned_values(self, topic: str, key: str, prefix: str | Around) -> Mapping[str, LedgerValue]:
        if self.authority is None:
            return {}
        return self.authority.settle([key], routing=topic, prefixes=(prefix,))


def neighbours(topic: str, moment: dt.datetime) -> Around:
    """Return the boundaries of a topic that are needed to pin one."""
    return Around(keys.boundary_prefix(topic), keys.boundary_key(topic, moment), NEIGHBOURS)


def refuse_behind(topic: TopicDescription, boundaries: Iterable[Boundary]) -> None:
    """Refuse a description that lacks partitions of pinned boundaries: stale metadata (UnknownTopic)."""
    pinned = max((partition for boundary in boundaries for partition in boundary.offsets), default=-1) + 1
    if pinned > topic.partitions:
        raise UnknownTopic(
            f"topic {topic.topic!r} has {topic.partitions} partitions by the broker that was asked, and had "
            f"{pinned} when a boundary was fixed: the broker is behind"
        )


def moved_by(first: Boundary, last: Boundary) -> list[str]:
    """Return a note if an interval of a topic is empty although records were written meanwhile."""
    if not first.pinned_at or not last.pinned_at or first.pinned_at >= last.moment:
        return []  # pinned after the interval, as in a backfill: its growth is unknown
    has_moved = any(end > first.offsets.get(partition, 0) for partition, end in last.offsets.items())
    grown = sum(end - first.ends.get(partition, 0) for partition, end in last.ends.items())
    if has_moved or grown <= 0:
        return []
    note = (
        f"{first.topic}: no record from {first.moment} to {last.moment}, though the topic grew by {grown} "
        f"offsets from {first.pinned_at} to {last.pinned_at}: look at the timestamps of its producers"
    )
    return [note]


def _bounds(partition: int, moment: str, neighbours: Collection[Boundary]) -> tuple[int, int | None]:
    """Return the lower and the upper bound that pinned neighbours set for a boundary; None: no upper bound.

    Records that were in the log when a neighbour was pinned belong before this moment if all of their
    timestamps were older. The driver's clock does not prove it: producers may be ahead of it.
    """
    lowest, highest = 0, None
    for other in neighbours:
        # A neighbour pinned before the partition existed puts it at 0.
        offset = other.offsets.get(partition, 0)
        if other.moment > moment:
            highest = offset if highest is None else min(offset, highest)
        elif partition not in other.unproven:
            lowest = max(offset, lowest)
        if _is_log_before(other, partition, moment):
            lowest = max(other.ends.get(partition, 0), lowest)
    return lowest, highest


def _is_log_before(other: Boundary, partition: int, moment: str) -> bool:
    """Return whether all records that a log had when a neighbour was pinned are older than a moment."""
    highest = other.highest.get(partition)
    if highest is None:
        return False
    if highest < 0:  # no timestamp was left to compare: only a loss accepted with that boundary counts
        return partition in other.unproven and bool(other.pinned_at) and other.pinned_at <= moment
    # Compare numbers: a timestamp in microseconds, from a faulty producer, is beyond the range of datetime.
    return highest < timestamp_of(dt.datetime.fromisoformat(moment.replace("Z", "+00:00")))


def _clamped(offsets: Mapping[int, int], moment: str, neighbours: Collection[Boundary]) -> dict[int, int]:
    """Keep a boundary between its pinned neighbours.

    A late record can put an earlier moment's first offset above a later moment's, which was fixed while the
    partition was idle. Unclamped, the interval between them would be negative and its records lost or read
    twice.
    """
    clamped = dict(offsets)
    for other in neighbours:
        for partition, offset in clamped.items():
            # A neighbour pinned before the partition existed puts it at 0.
            bound = other.offsets.get(partition, 0)
            clamped[partition] = max(offset, bound) if other.moment < moment else min(offset, bound)
    return clamped
