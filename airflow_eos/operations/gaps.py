"""Gaps: time between the committed intervals of a pipeline that no committed run covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.versioned import JsonForm
from airflow_eos.run.work import WorkDefinition


@dataclass(frozen=True, slots=True, order=True)
class Gap(JsonForm):
    """Time between two committed intervals that no committed interval covers.

    :param topics: source topics; only runs with the same topics are compared.
    :param partition: the source partition of a mapped task.
    :param start: UTC, in the format of run records.
    :param end: UTC, in the format of run records.
    """

    pipeline: str
    start: str
    end: str
    topics: tuple[str, ...]
    partition: int | None = None


def gaps(records: Iterable[RunRecord], horizons: Iterable[Horizon] = ()) -> list[Gap]:
    """Return the gaps between the intervals of these records, sorted by pipeline and time.

    There are no gaps before a pipeline's first interval or after its last one, because a ledger does not know
    the schedule.

    :param horizons: intervals of runs whose records are pruned.
    """
    covered: defaultdict[tuple[str, tuple[str, ...], int | None], list[tuple[str, str]]] = defaultdict(list)
    for record in records:
        work = WorkDefinition.recorded(record)
        if work is not None and work.interval is not None:
            covered[record.pipeline, work.topics, work.partition].append(work.interval)
    for horizon in horizons:
        for topics, partition, start, end in horizon.intervals:
            covered[horizon.pipeline, topics, partition].append((start, end))
    uncovered = []
    for (pipeline, topics, partition), intervals in covered.items():
        for (_, end), (start, _) in pairwise(joined(intervals)):
            uncovered.append(Gap(pipeline, end, start, topics, partition))
    return sorted(uncovered, key=lambda gap: (gap.pipeline, gap.start, gap.topics, gap.partition or 0))


def joined(spans: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join adjacent spans of time; the texts have a fixed format, so they sort chronologically."""
    joined_spans: list[tuple[str, str]] = []
    for start, end in sorted(spans):
        if joined_spans and start <= joined_spans[-1][1]:
            joined_spans[-1] = joined_spans[-1][0], max(joined_spans[-1][1], end)
        else:
            joined_spans.append((start, end))
    return joined_spans
