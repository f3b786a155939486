"""Decoded batches become Spark's columns without changing a value."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.spark import source
from airflow_eos.spark.source import arrow_batches
from tests.support.record_batches import Record, raw, write

LAST = (2**63 - 1) // 1000  # ms that fit into microseconds


def columns(*timestamps):
    records = [Record(offset, timestamp, None, b"v") for offset, timestamp in enumerate(timestamps, 40)]
    decoded = decode_batch(raw(write(records, base_offset=40)))
    (batch,) = arrow_batches([decoded], "topic", 3)
    return batch


def test_milliseconds_become_microseconds():
    """Also times before 1970, and none (-1)."""
    moments = columns(0, 1_700_000_000_123, -1, -86_400_000).column("timestamp").to_pylist()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    assert [(moment - epoch) / dt.timedelta(milliseconds=1) for moment in moments] == [
        0,
        1_700_000_000_123,
        -1,
        -86_400_000,
    ]


@pytest.mark.parametrize("wrong", [LAST + 1, -LAST - 1, 2**62])
def test_a_time_that_microseconds_cannot_hold_is_refused(wrong):
    """2**62 ms would silently become 1970."""
    assert columns(LAST, -LAST).column("timestamp").cast("int64").to_pylist() == [LAST * 1000, -LAST * 1000]
    with pytest.raises(CorruptBatch) as raised:
        columns(0, wrong, 0, wrong, wrong, 0)
    assert raised.value.message == (
        f"topic-3 at offset 41 has timestamp {wrong} ms, which Spark's microseconds cannot hold "
        '(3 such records here); skip_offsets=[["topic", 3, 41, 42], ["topic", 3, 43, 45]] goes on behind it'
    )


def test_headers_count_where_batches_are_glued():
    """Thousands of records with large headers must not become one batch of gigabytes."""
    headers = (("k" * 1000, b"v" * 1000),) * 500
    decoded = decode_batch(raw(write([Record(0, 0, None, None, headers)])))
    sizes = [batch.nbytes for batch in arrow_batches([decoded] * 40, "topic", 3)]
    assert len(sizes) == 5
    assert max(sizes) < 10 << 20


def test_a_decoded_batch_that_is_much_larger_is_cut(monkeypatch):
    """Batches are grouped by their bytes in the log; compressed ones are many times larger when decoded."""
    monkeypatch.setattr(source, "_BYTES", 20_000)
    monkeypatch.setattr(source, "_ROWS", 100)
    sizes = [100] * 300 + [50_000] + [10_000] * 8 + [0] * 300
    headers = (("h", b"x"),)
    records = [Record(n, n, b"%d" % n, b"v" * size, headers) for n, size in enumerate(sizes)]
    decoded = decode_batch(raw(write(records)))
    batches = list(arrow_batches([decoded], "topic", 3))
    assert max(batch.num_rows for batch in batches) <= 200
    assert [batch.num_rows for batch in batches if batch.nbytes > 40_000] == [1]
    assert len(batches) < 20
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["offset"], row["key"], len(row["value"]), row["headers"]) for row in rows] == [
        (n, b"%d" % n, size, [{"key": "h", "value": b"x"}]) for n, size in enumerate(sizes)
    ]
