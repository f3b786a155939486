"""How many rows Spark gives to a seal task at once."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from airflow_eos.spark.arrow_batches import (
    ROWS_OF_SMALL_RECORDS,
    SmallRecords,
    settings_of_small_records,
)
from airflow_eos.spark.errors import RecordsAreLarge

MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def test_batches_of_small_records_have_more_rows():
    """Unless the session has a limit of its own."""
    settings = settings_of_small_records(SimpleNamespace(conf={}))
    assert settings[MOST_ROWS] == str(ROWS_OF_SMALL_RECORDS)
    assert int(settings[MOST_BYTES]) == 2**31 - 1
    assert settings_of_small_records(SimpleNamespace(conf={MOST_ROWS: "7"})) == {}


def records(count, size):
    return pa.record_batch({"value": [b"x" * size] * count})


def test_records_are_large_if_a_batch_of_them_would_be():
    """However they are distributed over a read task's batches."""
    bound = SmallRecords(1_000_000)
    for _ in range(100):
        bound.add(records(ROWS_OF_SMALL_RECORDS, 400))  # 0.8 MB, and 4 bytes more for each
    few = records(100, 5_000)
    bound.add(few)
    with pytest.raises(RecordsAreLarge, match=r"200 records in a row have 1000\d\d\d bytes"):
        bound.add(few)


def test_nothing_is_compared_without_a_bound():
    """Spark itself counts the bytes."""
    bound = SmallRecords(None)
    bound.add(records(1, 10_000_000))
