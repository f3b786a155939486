"""The number of rows in the Arrow batches that Spark gives to the seal task.

Spark ends a batch by its rows (10,000) or its bytes (64 MB), and computes the bytes after each row. That
costs up to a quarter of a run, and more for a nested column, such as ``headers``, than the rest of the work
on the row. Rows are therefore only counted

- where a large run's plan makes one row of each record: the read tasks refuse records so large that a batch
  would exceed Spark's own bound. The ranges are then sealed again, without this;
- elsewhere, where rows have nested columns: a batch has few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_eos.recordbatch.sealer import MAX_MESSAGE_BYTES
from airflow_eos.spark.errors import RecordsAreLarge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROWS = 512
"""Of a batch whose bytes are not counted: half a gigabyte if each is as large as Kafka's default allows."""
ROWS_OF_SMALL_RECORDS = 2048
"""Of a batch whose records the read tasks know to be small."""
MOST_BYTES_TOGETHER = 32 << 20
"""Of as many records in a row: a batch has at most twice as many bytes, Spark's own bound."""

NESTED = ("array", "map", "struct")
"""Names of the types of such columns."""
BOUND = "spark.airflowEos.mostBytesTogether"
"""Setting of the session while its read tasks compare records with :data:`MOST_BYTES_TOGETHER`."""

_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_COUNTED = str(2**31 - 1)


def settings_of_few_rows(spark: SparkSession, max_message_bytes: int) -> Mapping[str, str]:
    """Return Spark's settings for batches of :data:`ROWS`; empty if the session sets a bound itself.

    :param max_message_bytes: the largest of the topics. Above Kafka's default, batches have fewer rows, and
        Spark counts the bytes too: records may be larger still before compression.
    """
    if _has_bound(spark):
        return {}
    if max_message_bytes > MAX_MESSAGE_BYTES:
        return {_MOST_ROWS: str(max(1, ROWS * MAX_MESSAGE_BYTES // max_message_bytes))}
    return {_MOST_ROWS: str(ROWS), _MOST_BYTES: _NOT_COUNTED}


def settings_of_small_records(spark: SparkSession) -> Mapping[str, str]:
    """Return the settings for batches of :data:`ROWS_OF_SMALL_RECORDS`; empty as above."""
    if _has_bound(spark):
        return {}
    return {
        _MOST_ROWS: str(ROWS_OF_SMALL_RECORDS),
        _MOST_BYTES: _NOT_COUNTED,
        BOUND: str(MOST_BYTES_TOGETHER),
    }


class SmallRecords:
    """Compares the records that a read task yields with the bound of its job.

    :param most_bytes: of :data:`ROWS_OF_SMALL_RECORDS` records in a row; None: nothing is compared.
    """

    def __init__(self, most_bytes: int | None) -> None:
        self._most_bytes = most_bytes
        self._rows = self._size = 0

    @classmethod
    def of_task(cls) -> SmallRecords:
        """Return that of the task that calls this."""
        from pyspark import TaskContext

        context = TaskContext.get()
        bound = None if context is None else context.getLocalProperty(BOUND)
        return cls(None if bound is None else int(bound))

    def add(self, batch: pa.RecordBatch) -> None:
        """Take note of the next records.

        :raises RecordsAreLarge: they and those before them are too large.
        """
        if self._most_bytes is None:
            return
        if self._rows >= ROWS_OF_SMALL_RECORDS:
            self._rows = self._size = 0
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._size > self._most_bytes:
            raise RecordsAreLarge(f"{self._rows} records in a row have {self._size} bytes")


def _has_bound(spark: SparkSession) -> bool:
    return any(spark.conf.get(name, None) is not None for name in (_MOST_ROWS, _MOST_BYTES))
