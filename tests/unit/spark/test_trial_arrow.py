"""Trials of a process function without Kafka; an Arrow function needs no Spark either."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from airflow_eos import arrow_process
from airflow_eos.exceptions import ConfigurationError, ProcessFailed, RecordRefused
from airflow_eos.model.ranges import Interval, OffsetRange
from airflow_eos_testing.trial import SourceRecord, WrittenRecord, try_process
from spark_apps.customers import process as hide_addresses

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
NOT_UTF8 = pa.array([b"\xff"], pa.binary()).view(pa.string())
HEADER_NOT_UTF8 = pa.ListArray.from_arrays(
    [0, 1], pa.StructArray.from_arrays([NOT_UTF8, pa.array([b""])], ["key", "value"])
)


def test_an_apps_function_as_it_is():
    """It gets and returns bytes, with key, headers and timestamp."""
    given = SourceRecord(b"to ann@example.com", key=b"1", headers=[("h", b"x"), ("n", None)], timestamp=NOON)
    written = try_process(hide_addresses, [given, SourceRecord(None)])
    assert written == [
        WrittenRecord(
            "sink",
            b"to ***@example.com",
            b"1",
            (("h", b"x"), ("n", None)),
            None,
            int(NOON.timestamp()) * 1000,
        ),
        WrittenRecord("sink", None, None, (), None, 1767225600000),
    ]


def test_each_partition_is_a_batch_with_its_offsets():
    """As in a run: no batch has rows of two partitions."""
    seen = []

    @arrow_process
    def look(batch, run):
        seen.append(
            (run, [*zip(*(batch[n].to_pylist() for n in ("topic", "partition", "offset")), strict=True)])
        )

    records = [
        SourceRecord(b"", partition=1, offset=7),
        SourceRecord(b"", topic="b"),
        SourceRecord(b"", partition=1),
    ]
    interval = Interval(NOON, NOON + dt.timedelta(days=1))
    assert try_process(look, records, source_topics=("a", "b"), interval=interval) == []
    assert [rows for _, rows in seen] == [[("a", 1, 7), ("a", 1, 8)], [("b", 0, 0)]]
    run = seen[0][0]
    assert (run.interval, run.ranges) == (interval, (OffsetRange("a", 1, 7, 9), OffsetRange("b", 0, 0, 1)))


@pytest.mark.parametrize(
    ("columns", "sink", "says"),
    [
        ({"data": [b"x"]}, "sink", "no column 'value'"),
        ({"value": [1]}, "sink", "'value' as int64"),
        ({"value": [b"x"]}, None, "no column 'topic'"),
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, None, "'topic' is null"),
        ({"value": [b"x"], "partition": [-1]}, "sink", "partition -1"),
        ({"value": [b"x"], "timestamp": [5]}, "sink", "a timestamp with a time zone"),
        ({"value": [b"x"], "topic": NOT_UTF8}, "sink", "'topic' that is not UTF-8"),
        ({"value": [b"x"], "headers": HEADER_NOT_UTF8}, "sink", "header whose key is not UTF-8"),
    ],
)
def test_what_the_sink_cannot_write_fails_as_in_a_run(columns, sink, says):
    """Both columns and rows are checked."""

    @arrow_process
    def wrong(batch):
        return pa.table(columns)

    with pytest.raises((ProcessFailed, RecordRefused), match=says):
        try_process(wrong, [SourceRecord(b"")], sink_topic=sink)


def test_topics_of_rows_are_kept_and_read_ones_mean_the_sink():
    """Rows are routed as in a run."""

    @arrow_process
    def route(batch):
        return pa.table({"value": ["a", "b", "c"], "topic": ["dead", "source", None]})

    assert [record.topic for record in try_process(route, [SourceRecord(b"")])] == ["dead", "sink", "sink"]


def test_wrong_records_are_the_tests_own_mistake():
    """A function on DataFrames needs a session."""
    with pytest.raises(ConfigurationError, match="'other'"):
        try_process(hide_addresses, [SourceRecord(b"", topic="other")])
    with pytest.raises(ConfigurationError, match="does not ascend"):
        try_process(hide_addresses, [SourceRecord(b"", offset=3), SourceRecord(b"", offset=3)])
    with pytest.raises(ConfigurationError, match="give spark="):
        try_process(lambda df: df, [SourceRecord(b"")])
