"""Counts records per source partition, and late ones, while they are read.

``-1`` means unknown. Commits do not depend on the counts, except those that replace the rows of an earlier
run. On a classic session each read task reports through an accumulator. Spark Connect has no accumulators:
there Spark observes every row, which takes about half a microsecond of CPU per row.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.model.output import NOT_COUNTED
from airflow_eos.model.ranges import TopicPartition, timestamp_of
from airflow_eos.spark.session import is_connect, observed

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.model.ranges import OffsetRange

MAX_OBSERVED_PARTITIONS = 64
"""With more partitions, none is counted on its own: each costs a comparison per record."""

Counts = tuple[Mapping[TopicPartition, int], int]
"""Records read per source partition, and late records."""
Tally = Any
"""An accumulator of ``{slice number: (records, late records)}``, for read tasks to add to."""


class SliceCount:
    """The counts of a task's slice.

    :param late_before: records older than this are late; None for runs without an interval.
    """

    def __init__(self, late_before: dt.datetime | None) -> None:
        # Microseconds, like the column.
        self._late_before = None if late_before is None else timestamp_of(late_before) * 1000
        self.records = 0
        self.late = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch with a column ``timestamp``."""
        self.records += batch.num_rows
        if self._late_before is not None:
            older = pc.less(batch.column("timestamp").cast(pa.int64()), self._late_before)
            self.late += pc.sum(older).as_py() or 0


def read_counter(
    spark: SparkSession,
    ranges: Sequence[OffsetRange],
    slices: Sequence[OffsetRange],
    late_before: dt.datetime | None,
) -> TalliedReads | ObservedReads:
    """Return the counter that the session supports."""
    if is_connect(spark):
        return ObservedReads(ranges, late_before)
    return TalliedReads(ranges, slices, late_before, spark.sparkContext.accumulator({}, _PerSlice()))


def sums(
    ranges: Sequence[OffsetRange], slices: Sequence[OffsetRange], counts: Mapping[int, tuple[int, int]]
) -> tuple[dict[TopicPartition, int], int]:
    """Return the sums for partitions; empty ranges count 0.

    :param counts: records and late records by number of the slice.
    """
    read: Counter[TopicPartition] = Counter({r.topic_partition: 0 for r in ranges})
    for number, (records, _) in counts.items():
        read[slices[number].topic_partition] += records
    return dict(read), sum(late for _, late in counts.values())


@dataclass(eq=False)
class TalliedReads:
    """Counts from reports of the read tasks: repeated slices count once, incomplete ones not at all.

    :ivar tally: the accumulator of the read tasks.
    """

    ranges: Sequence[OffsetRange]
    slices: Sequence[OffsetRange]
    late_before: dt.datetime | None
    tally: Tally

    def attach(self, df: DataFrame) -> DataFrame:
        """Return the source DataFrame, counted while it is read: unchanged, its tasks count."""
        return df

    def read(self, df: DataFrame) -> Counts:  # noqa: ARG002 - the tasks have reported
        """Return the counts, after the action that materialised ``df``; empty ranges count 0.

        A partition with a missing report has no count.
        """
        reported: Mapping[int, tuple[int, int]] = self.tally.value
        counts, late = sums(self.ranges, self.slices, reported)
        missing = [wanted for number, wanted in enumerate(self.slices) if number not in reported]
        for wanted in missing:
            counts[wanted.topic_partition] = NOT_COUNTED
        return counts, NOT_COUNTED if missing and self.late_before is not None else late


class _PerSlice:
    """Merges the reports of tasks (``pyspark.AccumulatorParam``): attempts of a task report the same."""

    def zero(self, _value: Any) -> dict[int, tuple[int, int]]:
        return {}

    def addInPlace(  # noqa: N802 - the interface
        self, total: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        total.update(other)
        return total


@dataclass(eq=False)
class ObservedReads:
    """Counts from Spark's observation: a repeated stage counts twice, and unread rows not at all.

    A count that exceeds the number of offsets in a partition's ranges becomes unknown.
    """

    ranges: Sequence[OffsetRange]
    late_before: dt.datetime | None
    tally: Tally = field(default=None, init=False)
    _name: str = field(default_factory=lambda: f"eos_read_{uuid.uuid4().hex[:8]}", init=False)

    @property
    def _counted(self) -> list[TopicPartition]:
        wanted = [r.topic_partition for r in self.ranges if r.span]
        return wanted if len(wanted) <= MAX_OBSERVED_PARTITIONS else []

    def attach(self, df: DataFrame) -> DataFrame:
        """Return the observed DataFrame."""
        from pyspark.sql import functions as F  # noqa: N812

        several = len({r.topic for r in self.ranges}) > 1
        late = F.lit(0)
        if self.late_before is not None:
            late = F.count_if(F.unix_millis(F.col("timestamp")) < F.lit(timestamp_of(self.late_before)))
        metrics = [late.alias("late")]
        for i, wanted in enumerate(self._counted):
            matches = F.col("partition") == F.lit(wanted.partition)
            if several:
                matches = (F.col("topic") == F.lit(wanted.topic)) & matches
            metrics.append(F.count_if(matches).alias(f"n{i}"))
        if len(metrics) == 1 and self.late_before is None:
            return df
        return df.observe(self._name, *metrics)

    def read(self, df: DataFrame) -> Counts:
        """Return the observed counts."""
        counts = {r.topic_partition: NOT_COUNTED if r.span else 0 for r in self.ranges}
        values = observed(df, self._name)
        if values is None or len(values) != 1 + len(self._counted):
            return counts, NOT_COUNTED if self.late_before is not None else 0
        spans = sum((Counter({r.topic_partition: r.span}) for r in self.ranges), Counter())
        for place, count in zip(self._counted, values[1:], strict=True):
            counts[place] = count if count <= spans[place] else NOT_COUNTED
        is_twice = NOT_COUNTED in map(counts.get, self._counted)
        return counts, NOT_COUNTED if is_twice and self.late_before is not None else values[0]
