"""Finds gaps: time between the committed intervals of a pipeline that no committed run covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from airflow_eos.coverage.offset_set import Spans
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
    uncovered = [
        Gap(pipeline, end, start, topics, partition)
        for (pipeline, topics, partition), spans in covered(records, horizons).items()
        for (_, end), (start, _) in pairwise(spans)
    ]
    return sorted(uncovered, key=lambda gap: (gap.pipeline, gap.start, gap.topics, gap.partition or 0))


def covered(
    records: Iterable[RunRecord], horizons: Iterable[Horizon]
) -> dict[tuple[str, tuple[str, ...], int | None], Spans[str]]:
    """Return the joined intervals of records and horizons, by pipeline, topics and partition.

    Their texts have a fixed format, so they sort chronologically.
    """
    spans: defaultdict[tuple[str, tuple[str, ...], int | None], Spans[str]] = defaultdict(Spans)
    for record in records:
        work = WorkDefinition.recorded(record)
        if work is not None and work.interval is not None:
            spans[record.pipeline, work.topics, work.partition].add(*work.interval)
    for horizon in horizons:
        for topics, partition, start, end in horizon.intervals:
            spans[horizon.pipeline, topics, partition].add(start, end)
    return spans
