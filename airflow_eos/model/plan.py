"""RunPlan: the pinned ranges of one run, and the conditions that must still hold when it commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_eos.model.kafka import SinkTopic
from airflow_eos.model.ranges import OffsetRange, TopicPartition

ModeName = Literal["cursor", "interval", "partition", "explicit", "reprocess"]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The offsets that a run reads, and the conditions and group of its commit.

    :param mode: how the ranges were chosen.
    :param ranges: ``[start, end)`` per source partition, sorted, including empty ranges. A reprocessing may
        have several ranges of one partition.
    :param topic_ids: id of each source topic when the plan was made.
    :param offsets_group: consumer group to which the end offsets are committed.
    :param advances: whether the run moves the cursor. The group's offsets must then still equal the starts at
        commit, and a cursor record is written to the ledger.
    :param committed: the group's committed offset per partition at planning; partitions without one are
        absent.
    :param notes: notes for the log (for example: cursor restored from the ledger).
    :param accepted_loss: offsets of the ranges that are, or may be, deleted, and whose loss was accepted; for
        the run record.
    :param lag: offsets between a cursor's ends and the last stable offsets; None for other modes.
    :param epochs: epochs of the source's leaders when the ends of a cursor were read.
    :param undecided: offsets between the last stable offsets and the high watermarks at planning.
    :param headers: headers of every output record that name the run.
    :param sinks: the topics for output and dead letters when the plan was made; rows may name others.
    """

    mode: ModeName
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    offsets_group: str
    advances: bool
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lag: int | None = None
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    undecided: int = 0
    accepted_loss: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    sinks: Mapping[str, SinkTopic] = field(default_factory=dict)

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """Start offset per partition; the lowest of several ranges."""
        starts: dict[TopicPartition, int] = {}
        for r in self.ranges:
            starts[r.topic_partition] = min(r.start, starts.get(r.topic_partition, r.start))
        return starts

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """End offset per partition, which is committed; the highest of several ranges."""
        ends: dict[TopicPartition, int] = {}
        for r in self.ranges:
            ends[r.topic_partition] = max(r.end, ends.get(r.topic_partition, r.end))
        return ends

    @property
    def offsets(self) -> int:
        """Number of offsets in the ranges; an upper bound of the number of records."""
        return sum(r.span for r in self.ranges)
