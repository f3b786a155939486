"""Gaps: time between the committed intervals of a pipeline that no committed run covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.run.work import WorkDefinition


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Time that lies between two committed intervals and in none.

    :param topics: source topics; runs over other ones are no neighbours.
    :param partition: the one source partition of a mapped task.
    :param start: UTC, as run records write it.
    :param end: likewise.
    """

    pipeline: str
    start: str
    end: str
    topics: tuple[str, ...]
    partition: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "topics": list(self.topics)}


def gaps(records: Iterable[RunRecord], horizons: Iterable[Horizon] = ()) -> list[Gap]:
    """Return the gaps between the intervals that these records answer for, by pipeline and time.

    What is missing before a pipeline's first interval or behind its last one is no gap: a ledger does not
    know the schedule. Runs without an interval have none.

    :param horizons: what runs covered whose records are pruned.
    """
    covered: defaultdict[tuple[str, tuple[str, ...], int | None], list[tuple[str, str]]] = defaultdict(list)
    for record in records:
        work = WorkDefinition.recorded(record)
        if work is not None and work.interval is not None:
            covered[record.pipeline, work.topics, work.partition].append(work.interval)
    for horizon in horizons:
        for topics, partition, start, end in horizon.intervals:
            covered[horizon.pipeline, topics, partition].append((start, end))
    found = []
    for (pipeline, topics, partition), intervals in covered.items():
        # Texts of one form: they sort as the moments do.
        _, end = min(intervals)
        for next_start, next_end in sorted(intervals):
            if next_start > end:
                found.append(Gap(pipeline, end, next_start, topics, partition))
            end = max(end, next_end)
    return sorted(found, key=lambda gap: (gap.pipeline, gap.start, gap.topics, gap.partition or 0))
