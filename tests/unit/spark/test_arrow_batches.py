"""How many rows Spark gives to a seal task at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_eos.recordbatch.sealer import MAX_MESSAGE_BYTES
from airflow_eos.spark.arrow_batches import ROWS, settings_of_few_rows

MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.mark.parametrize(
    ("max_message_bytes", "rows"), [(MAX_MESSAGE_BYTES + 1, ROWS - 1), (20_000_000, 26), (2**31 - 1, 1)]
)
def test_batches_of_large_records_are_small(max_message_bytes, rows):
    """Half a gigabyte, and Spark's own bound of bytes stays."""
    session = SimpleNamespace(conf={})
    assert settings_of_few_rows(session, max_message_bytes) == {MOST_ROWS: str(rows)}


@pytest.mark.parametrize("max_message_bytes", [0, 1000, MAX_MESSAGE_BYTES])
def test_bytes_are_not_counted_where_records_are_small(max_message_bytes):
    """As topics have it by default."""
    settings = settings_of_few_rows(SimpleNamespace(conf={}), max_message_bytes)
    assert settings[MOST_ROWS] == str(ROWS)
    assert int(settings[MOST_BYTES]) == 2**31 - 1


@pytest.mark.parametrize("name", [MOST_ROWS, MOST_BYTES])
@pytest.mark.parametrize("max_message_bytes", [1000, 20_000_000])
def test_a_bound_of_the_session_stays(name, max_message_bytes):
    """Whoever sets one knows the records."""
    assert settings_of_few_rows(SimpleNamespace(conf={name: "7"}), max_message_bytes) == {}
