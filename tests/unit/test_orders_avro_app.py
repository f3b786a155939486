"""The function of spark_apps/orders_avro.py on fixed schemas: no registry, Kafka, Spark or Airflow."""

from __future__ import annotations

import datetime as dt
import io
import struct

import fastavro
import pytest

from airflow_eos import arrow_process
from airflow_eos_testing.trial import SourceRecord, try_process
from spark_apps.orders_avro import LARGE_ORDER, ORDER, large_orders

NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
WRITERS = {7: fastavro.parse_schema(ORDER), 300: fastavro.parse_schema(NEWER)}
LARGE_ID = 41


@arrow_process
def on_fixed_schemas(batch):
    return large_orders(batch, WRITERS.__getitem__, LARGE_ID, 100.0)


def confluent(schema_id, **order):
    """A value as Confluent's Avro serializer writes it: 0, the id in four bytes, the datum."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, WRITERS[schema_id], order)
    return b"\x00" + schema_id.to_bytes(4, "big") + body.getvalue()


def test_each_record_is_read_by_the_schema_that_it_names():
    """Versions are mixed in one batch; a tombstone, key and event time are passed on."""
    moment = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
    written = try_process(
        on_fixed_schemas,
        [
            SourceRecord(confluent(7, item="a", price=100.0), key=b"a", timestamp=moment),
            SourceRecord(confluent(7, item="b", price=99.0), key=b"b"),
            SourceRecord(confluent(300, item="c", price=250.5, note="new"), key=b"c"),
            SourceRecord(None, key=b"d"),
        ],
    )
    assert [record.key for record in written] == [b"a", b"c", b"d"]
    assert written[0].timestamp == int(moment.timestamp() * 1000)
    assert written[2].value is None
    read = []
    for record in written[:2]:
        assert struct.unpack_from(">bI", record.value) == (0, LARGE_ID)
        read.append(fastavro.schemaless_reader(io.BytesIO(record.value[5:]), LARGE_ORDER))
    assert read == [
        {"item": "a", "price": 100.0, "above": 0.0},
        {"item": "c", "price": 250.5, "above": 150.5},
    ]


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00\x01", b'{"item": "a"}', b"\x01\x00\x00\x00\x07rest"])
def test_a_value_that_names_no_schema_is_refused(value):
    """It is not read as something else."""
    with pytest.raises(ValueError, match="not in the registry's wire format"):
        try_process(on_fixed_schemas, [SourceRecord(value)])
