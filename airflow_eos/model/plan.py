"""RunPlan: the pinned ranges of one run and what must still be true when it commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_eos.model.ranges import OffsetRange, TopicPartition

ModeName = Literal["cursor", "interval", "partition", "explicit", "reprocess"]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What one run reads and what its transaction says about it.

    :param mode: how the ranges were chosen.
    :param ranges: ``[start, end)`` per source partition, sorted; empty ranges included. A reprocessing may
        have several of one partition.
    :param topic_ids: id of each source topic when the plan was made.
    :param offsets_group: consumer group the end offsets are committed to.
    :param advances: whether that group's offsets carry a meaning: the cursor. Then they must still equal the
        starts at commit, and a cursor record goes to the ledger.
    :param committed: the group's committed offset per partition at planning; partitions without one are
        absent.
    :param notes: what a reader of the log should know (for example: cursor restored from the ledger).
    :param accepted_loss: what is, or may be, deleted of the ranges, and was accepted; for the run's record.
    :param lag: offsets that a cursor leaves between its ends and the last stable offsets; None elsewhere.
    :param undecided: offsets between the last stable offsets and the high watermarks of what was planned.
    :param headers: added to every record of the output; they name the run.
    """

    mode: ModeName
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    offsets_group: str
    advances: bool
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lag: int | None = None
    undecided: int = 0
    accepted_loss: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """Start offset per partition, the lowest of several."""
        starts: dict[TopicPartition, int] = {}
        for r in self.ranges:
            starts[r.topic_partition] = min(r.start, starts.get(r.topic_partition, r.start))
        return starts

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """End offset per partition, the highest of several: what is committed."""
        ends: dict[TopicPartition, int] = {}
        for r in self.ranges:
            ends[r.topic_partition] = max(r.end, ends.get(r.topic_partition, r.end))
        return ends

    @property
    def offsets(self) -> int:
        """How many offsets lie in the ranges: at least as many as records."""
        return sum(r.span for r in self.ranges)

    @property
    def is_empty(self) -> bool:
        """Whether no offset lies in any range."""
        return all(r.span == 0 for r in self.ranges)
