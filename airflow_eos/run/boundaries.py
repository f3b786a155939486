"""Interval boundaries: the offset at which a moment in time lies, fixed once per topic."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import IntervalNotReady, TopicRecreated
from airflow_eos.model.broker import TopicDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run import identity
from airflow_eos.run.pins import Pins
from airflow_eos.run.ports import Cluster

BOUNDARY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Boundary:
    """Per partition, the first offset that belongs to the time at or after ``moment``."""

    topic: str
    topic_id: str
    moment: str
    offsets: Mapping[int, int]

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        return json.dumps(
            {
                "v": BOUNDARY_VERSION,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "moment": self.moment,
                "offsets": {str(p): o for p, o in sorted(self.offsets.items())},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Boundary:
        """Read the JSON form."""
        data = json.loads(text)
        if data.get("v") != BOUNDARY_VERSION:
            raise ValueError(
                f"boundary record version {data.get('v')!r} is newer than this package reads; upgrade it"
            )
        offsets = {int(p): int(o) for p, o in data["offsets"].items()}
        return cls(data["topic"], data["topic_id"], data["moment"], offsets)


class Boundaries:
    """Pins boundaries so that the intervals of a topic tile its log, whoever asks, in any order.

    :param prefix: the ledger's, whatever the run's own is: who shares a boundary shares its fence.
    :param now: the current time, aware.
    """

    def __init__(self, cluster: Cluster, pins: Pins, prefix: str, now: Callable[[], dt.datetime]) -> None:
        self._cluster = cluster
        self._pins = pins
        self._prefix = prefix
        self._now = now

    def boundary(self, topic: TopicDescription, moment: dt.datetime, lateness: dt.timedelta) -> Boundary:
        """Return the topic's boundary at ``moment``, pinning it where it is not yet.

        :raises IntervalNotReady: when a partition has nothing at or after ``moment`` and may still get it in
            time.
        :raises TopicRecreated: when the boundary was pinned on an earlier incarnation of the topic.
        """
        key = identity.boundary_key(topic.topic, moment)
        value = self._pins.pin(
            identity.boundary_transactional_id(self._prefix, topic.topic),
            key,
            topic.topic,
            lambda pinned: self.compute(topic, moment, lateness, pinned).to_json(),
            prefixes=(identity.boundary_prefix(topic.topic),),
        )
        return self.known(topic, value)

    @staticmethod
    def known(topic: TopicDescription, value: str) -> Boundary:
        """Read a pinned boundary.

        :raises TopicRecreated: when it was pinned on an earlier incarnation of the topic.
        """
        found = Boundary.from_json(value)
        if found.topic_id != topic.topic_id:
            raise TopicRecreated(
                f"the boundary of {topic.topic!r} at {found.moment} was pinned on topic id "
                f"{found.topic_id}, the topic now "
                f"has id {topic.topic_id}: it was deleted and made again; give the new one another name"
            )
        return found

    def compute(
        self, topic: TopicDescription, moment: dt.datetime, lateness: dt.timedelta, pinned: Mapping[str, str]
    ) -> Boundary:
        """Return the boundary as it would be pinned now; only a fence makes it final.

        :param pinned: ledger values of the topic's boundaries.
        :raises IntervalNotReady: as :meth:`boundary`.
        """
        partitions = [TopicPartition(topic.topic, p) for p in range(topic.partitions)]
        # The stable offsets come first: a record that arrives in between is then found, never skipped.
        stable = self._cluster.last_stable_offsets(partitions)
        found = self._cluster.offsets_for_time(partitions, int(moment.timestamp() * 1000))
        idle = [tp.partition for tp in partitions if found[tp] is None]
        if idle and self._now() < moment + lateness:
            raise IntervalNotReady(
                f"{topic.topic!r}: partitions {idle} hold nothing at or after "
                f"{identity.utc_text(moment)} yet; the boundary "
                f"is fixed at {identity.utc_text(moment + lateness)} at the latest (allowed_lateness "
                f"{lateness})"
            )
        offsets: dict[int, int] = {}
        for tp in partitions:
            offset = found[tp]
            offsets[tp.partition] = stable[tp] if offset is None else offset
        return Boundary(
            topic.topic, topic.topic_id, identity.utc_text(moment), _clamped(offsets, moment, topic, pinned)
        )


def _clamped(
    offsets: Mapping[int, int], moment: dt.datetime, topic: TopicDescription, pinned: Mapping[str, str]
) -> dict[int, int]:
    """Keep a boundary between its pinned neighbours.

    A late record can make an earlier moment's first offset lie above a later moment's, which was fixed while
    the partition was idle; unclamped, the interval between them would be negative and its records lost or
    read twice.
    """
    text = identity.utc_text(moment)
    clamped = dict(offsets)
    for value in pinned.values():
        other = Boundary.from_json(value)
        if other.topic_id != topic.topic_id:
            continue
        for partition, offset in clamped.items():
            # A neighbour pinned before the partition existed puts it at 0.
            bound = other.offsets.get(partition, 0)
            clamped[partition] = max(offset, bound) if other.moment < text else min(offset, bound)
    return clamped
