"""Counts what was read, as it streams by: records per source partition, and late ones.

The counts inform; they never gate a commit and never fail a run. ``-1`` says that a count could not be had.
They are sums over the rows that Spark read: a stage that ran twice counts twice, a transform that reads only
a part counts that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.spark.session import observed

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame

    from airflow_eos.model.ranges import OffsetRange

MAX_COUNTED_PARTITIONS = 64
"""More partitions are not counted one by one: each costs a comparison per record."""
NOT_COUNTED = -1


@dataclass(frozen=True, slots=True)
class ReadCounter:
    """Attaches counts to the source DataFrame and reads them after the action.

    :param late_before: records older than this are late; None for runs without an interval.
    """

    name: str
    ranges: Sequence[OffsetRange]
    late_before: dt.datetime | None = None

    @property
    def _counted(self) -> list[TopicPartition]:
        wanted = [r.topic_partition for r in self.ranges if r.span]
        return wanted if len(wanted) <= MAX_COUNTED_PARTITIONS else []

    def attach(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame that counts while it is read."""
        from pyspark.sql import functions as F  # noqa: N812

        several = len({r.topic for r in self.ranges}) > 1
        late = F.lit(0)
        if self.late_before is not None:
            bound = int(self.late_before.timestamp() * 1000)
            late = F.count_if(F.unix_millis(F.col("timestamp")) < F.lit(bound))
        metrics = [late.alias("late")]
        for i, where in enumerate(self._counted):
            matches = F.col("partition") == F.lit(where.partition)
            if several:
                matches = (F.col("topic") == F.lit(where.topic)) & matches
            metrics.append(F.count_if(matches).alias(f"n{i}"))
        if len(metrics) == 1 and self.late_before is None:
            return df
        return df.observe(self.name, *metrics)

    def read(self, df: DataFrame) -> tuple[Mapping[TopicPartition, int], int]:
        """Return (records per source partition, late records) of the action that materialised ``df``.

        Empty ranges count 0.
        """
        counts = {r.topic_partition: NOT_COUNTED if r.span else 0 for r in self.ranges}
        values = observed(df, self.name)
        if values is None or len(values) != 1 + len(self._counted):
            return counts, NOT_COUNTED if self.late_before is not None else 0
        counts.update(zip(self._counted, values[1:], strict=True))
        return counts, values[0]
