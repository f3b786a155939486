"""The function of dags/customers_masked.py, without Kafka, Spark or Airflow."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from spark_apps.customers import process

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_addresses_are_hidden_and_nothing_else_changes():
    """Values are bytes, null for a tombstone; the rest of a row is passed on."""
    values = [b'{"mail": "ann.b+c@example.com"}', None, b"\xff no address"]
    batch = pa.record_batch(
        {
            "key": pa.array([b"1", b"2", None]),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(3, HEADERS),
            "timestamp": pa.array(
                [dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)] * 3, pa.timestamp("us", tz="UTC")
            ),
        }
    )
    rows = process(batch)
    assert rows["value"].to_pylist() == [b'{"mail": "***@example.com"}', None, b"\xff no address"]
    assert rows.select(["key", "headers", "timestamp"]) == batch.select(["key", "headers", "timestamp"])
