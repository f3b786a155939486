"""The state of an asset watcher: the last announced batch, and the announced end of each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.ranges import OffsetRange, TopicPartition

Batch = dict[str, Any]


@dataclass(slots=True)
class BatchMemory:
    """Forms consecutive batches, whether or not their records are read in between.

    :param batch: payload of the last one.
    :param positions: the group's position at the last poll, by partition; the log's end at the first poll if
        the group has no position and begins there.
    :param announced: end of the announced offsets, by partition.
    :param topic_ids: the topics' ids at the last poll.
    """

    batch: Batch | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    announced: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)

    def look(self, topic_ids: Mapping[str, str]) -> None:
        """Drop the last batch and the announced ends of topics that were recreated since the last poll."""
        recreated = {name for name, before in self.topic_ids.items() if topic_ids.get(name, before) != before}
        if recreated:
            self.batch = None
        for tp in [tp for tp in self.positions if tp.topic in recreated]:
            del self.positions[tp]
            self.announced.pop(tp, None)
        self.topic_ids.update(topic_ids)

    def pending(
        self, unread: Sequence[OffsetRange], unplaced: Collection[TopicPartition] = ()
    ) -> list[OffsetRange]:
        """Return the offsets of no batch yet, from the group's position or the announced end on.

        A position below the last one means that somebody moved the group back, and an end below the announced
        one that the log was truncated: then the announced end of the partition is dropped.

        :param unplaced: partitions without a position, where the group begins at the end of the log.
        """
        pending = []
        for offsets in unread:
            tp = offsets.topic_partition
            start = offsets.start
            if tp in unplaced:
                # The log's end moves between polls: keep the first one until a run has committed a position.
                start = min(self.positions.get(tp, offsets.end), offsets.end)
            announced = self.announced.get(tp)
            if announced is not None and (start < self.positions.get(tp, 0) or offsets.end < announced):
                announced = None
                del self.announced[tp]
            self.positions[tp] = start
            begin = start if announced is None else max(start, announced)
            pending.append(OffsetRange(offsets.topic, offsets.partition, begin, offsets.end))
        return pending

    def announce(
        self,
        group_id: str,
        pending: Sequence[OffsetRange],
        max_records: int | None,
        unplaced: Collection[TopicPartition] = (),
    ) -> Batch:
        """Return the payload for the first ``max_records`` pending offsets, and store it as the last batch.

        :param unplaced: partitions that belong to the batch even with an empty range.
        """
        from airflow_eos.ledger.keys import ranges_digest
        from airflow_eos.run.rounds import bounded

        ends = bounded(
            {offsets.topic_partition: (offsets.start, offsets.end) for offsets in pending}, max_records
        )
        ranges = [
            OffsetRange(offsets.topic, offsets.partition, offsets.start, ends[offsets.topic_partition])
            for offsets in sorted(pending)
            if ends[offsets.topic_partition] > offsets.start or offsets.topic_partition in unplaced
        ]
        self.announced.update({offsets.topic_partition: offsets.end for offsets in ranges})
        self.batch = {
            "batch": ranges_digest(ranges),
            "group_id": group_id,
            "records": sum(offsets.span for offsets in ranges),
            "ranges": [offsets.to_list() for offsets in ranges],
        }
        return self.batch

    def is_unread(self, unread: Sequence[OffsetRange], unplaced: Collection[TopicPartition] = ()) -> bool:
        """Return whether a part of the last batch is unread; to be called after :meth:`pending`.

        A run that was planned between two batches may have read a part. The log must still hold the batch.

        :param unplaced: partitions without a position: an empty range of the batch is unread only there.
        """
        ends = {offsets.topic_partition: offsets.end for offsets in unread}
        ranges = [OffsetRange.from_list(offsets) for offsets in (self.batch or {}).get("ranges", [])]
        return all(ends.get(offsets.topic_partition, -1) >= offsets.end for offsets in ranges) and any(
            self.positions[offsets.topic_partition] < offsets.end
            or (not offsets.span and offsets.topic_partition in unplaced)
            for offsets in ranges
        )

    def to_state(self) -> dict[str, Any]:
        """Return the JSON form."""
        marks = [
            [tp.topic, tp.partition, self.positions.get(tp, 0), end]
            for tp, end in sorted(self.announced.items())
        ]
        return {"batch": self.batch, "announced": marks, "topic_ids": self.topic_ids}

    @classmethod
    def from_state(cls, state: Any) -> BatchMemory:
        """Read the JSON form; None is an empty memory."""
        memory = cls()
        if state is not None:
            memory.batch = state["batch"]
            memory.topic_ids = dict(state.get("topic_ids", {}))  # earlier releases stored none
            for topic, partition, position, end in state["announced"]:
                memory.positions[TopicPartition(topic, partition)] = position
                memory.announced[TopicPartition(topic, partition)] = end
        return memory
