"""The number of rows in the Arrow batches that Spark gives to the seal task.

Spark ends a batch by its rows (10,000) or its bytes, and computes the bytes after each row. For a nested
column, such as ``headers``, that costs more than the rest of the work on the row. Rows with such columns are
therefore only counted, and a batch has few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_eos.recordbatch.sealer import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 512
"""Of a batch whose bytes are not counted: half a gigabyte if each is as large as Kafka's default allows."""

NESTED = ("array", "map", "struct")
"""Names of the types of such columns."""

_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_COUNTED = str(2**31 - 1)


def settings_of_few_rows(spark: SparkSession, max_message_bytes: int) -> Mapping[str, str]:
    """Return Spark's settings for batches of :data:`ROWS`; empty if the session sets a bound itself.

    :param max_message_bytes: the largest of the topics. Above Kafka's default, batches have fewer rows, and
        Spark counts the bytes too: records may be larger still before compression.
    """
    if any(spark.conf.get(name, None) is not None for name in (_MOST_ROWS, _MOST_BYTES)):
        return {}
    if max_message_bytes > MAX_MESSAGE_BYTES:
        return {_MOST_ROWS: str(max(1, ROWS * MAX_MESSAGE_BYTES // max_message_bytes))}
    return {_MOST_ROWS: str(ROWS), _MOST_BYTES: _NOT_COUNTED}
