"""The number of rows in the Arrow batches that Spark gives to the seal task.

Spark ends a batch by its rows (10,000) or its bytes (64 MB), and computes the bytes after each row, which
costs up to a quarter of a run. Therefore, if a large run's plan makes one row of each record, Spark only
counts rows, and the read tasks refuse records so large that a batch would exceed Spark's own limit. The
ranges are then sealed again, with Spark's limits.

In other plans nothing bounds the size of a row: neither its source record nor the ``max.message.bytes`` of a
topic, which limits compressed batches. A batch that exceeds the JVM's memory ends the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.spark.errors import RecordsAreLarge
from airflow_eos.spark.running_task import job_property
from airflow_eos.spark.session import local_property

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS_OF_SMALL_RECORDS = 2048
"""Rows per batch if the read tasks check that records are small."""
MOST_BYTES_TOGETHER = 32 << 20
"""Bytes of that many consecutive records: a batch has at most twice as many, Spark's own limit."""

BOUND = "airflow_eos.most_bytes_together"
"""Property of a job whose read tasks compare records with :data:`MOST_BYTES_TOGETHER`."""

_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_COUNTED = str(2**31 - 1)
OWN_LIMITS = {_MOST_ROWS: None, _MOST_BYTES: None}
"""The session's own limits, for runs whose rows may be large, beside a run that only counts rows."""


def settings_of_small_records(spark: SparkSession) -> Mapping[str, str]:
    """Return the settings for batches of :data:`ROWS_OF_SMALL_RECORDS`; empty if the session has its own."""
    if any(spark.conf.get(name, None) is not None for name in OWN_LIMITS):
        return {}
    return {_MOST_ROWS: str(ROWS_OF_SMALL_RECORDS), _MOST_BYTES: _NOT_COUNTED}


def large_records_refused(spark: SparkSession) -> AbstractContextManager[None]:
    """Let the read tasks of this block's jobs refuse records that are too large for those settings."""
    return local_property(spark, BOUND, str(MOST_BYTES_TOGETHER))


@dataclass(eq=False)
class SmallRecords:
    """Checks the records that a read task yields against the limit of its job.

    :param most_bytes: limit of :data:`ROWS_OF_SMALL_RECORDS` consecutive records; None: no limit.
    """

    most_bytes: int | None
    _rows: int = 0
    _size: int = 0

    @classmethod
    def of_task(cls) -> SmallRecords:
        """Return an instance with the limit of the running task's job."""
        bound = job_property(BOUND)
        return cls(None if bound is None else int(bound))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next records.

        :raises RecordsAreLarge: they exceed the limit together with those before them.
        """
        if self.most_bytes is None:
            return
        if self._rows >= ROWS_OF_SMALL_RECORDS:
            self._rows = self._size = 0
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._size > self.most_bytes:
            raise RecordsAreLarge(f"{self._rows} records in a row have {self._size} bytes")
