"""Try a process function: on records made by hand, without Kafka, or on the first records a run would read.

::

    from airflow_eos_testing.trial import SourceRecord, try_process

    def test_large_orders_pass(spark):
        written = try_process(process, [SourceRecord(b'{"n": 7}', key=b"a")], spark=spark)
        assert [record.value for record in written] == [b'{"n": 7}']

The function's result is checked by the sink contract of a run, columns and rows. Properties of a topic are
not: its existence, number of partitions, maximum record size. Nothing is written anywhere.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError, RecordRefused
from airflow_eos.model.ranges import Interval, OffsetRange, PartitionInterval, interval_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.model.spec import RunSpec
    from airflow_eos.spark.process import RunContext

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_CREATE_TIME = 0
_ANY_SIZE = (1 << 31) - 1

Headers = Sequence[tuple[str, "bytes | None"]]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record as a run reads it.

    :param topic: default: the first source topic.
    :param offset: default: the next one in its partition.
    :param timestamp: aware; default: 2026-01-01 UTC.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    topic: str | None = None
    partition: int = 0
    offset: int | None = None
    timestamp: dt.datetime = _EPOCH


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record as a run would write it.

    :param partition: None: chosen by the key.
    :param timestamp: milliseconds since the epoch; None: the time of the run.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp: int | None


def try_process(
    process: Callable[..., Any],
    records: Sequence[SourceRecord],
    *,
    spark: SparkSession | None = None,
    source_topics: Sequence[str] = ("source",),
    sink_topic: str | None = "sink",
    interval: Interval | None = None,
) -> list[WrittenRecord]:
    """Return what a run would write for these records, in the order in which the function returns it.

    :param process: ``process(df)`` or ``process(df, run)``, or one decorated with ``@arrow_process``, which
        gets one batch per source partition.
    :param spark: a session, classic or Connect; an ``@arrow_process`` needs none.
    :param interval: value of ``run.interval`` in the function.
    :raises ProcessFailed: what the function returned cannot be written.
    :raises RecordRefused: the function returned a value that cannot be written.
    :raises ConfigurationError: the function takes DataFrames and there is no session.

    The function's own exceptions are raised unchanged, or as Spark's exception.
    """
    from airflow_eos.spark.process import RunContext

    parts = _parts(records, source_topics)
    context = RunContext(
        pipeline="trial",
        run_id="trial",
        mode="cursor" if interval is None else "interval",
        ranges=tuple(_range_of(part) for part in parts),
        source_topics=tuple(source_topics),
        sink_topic=sink_topic,
        interval=interval,
    )
    return _tried(process, parts, context, spark)


def try_range(
    process: Callable[..., Any], spec: RunSpec, *, spark: SparkSession | None = None, records: int = 10
) -> list[WrittenRecord]:
    """Return what a run that started now would write for the first records that it would read.

    Nothing is fenced, pinned, committed or written. The records are fetched into this process.

    :param spec: of the run; ``ranges`` define what is read.
    :param records: maximum number of records per partition; committed ones only.
    :raises PlanError: what the run would raise: no starting point, a moved cursor, an interval not over, ...
    :raises ProcessFailed: what the function returned cannot be written.
    :raises RecordRefused: the function returned a value that cannot be written.
    """
    from airflow_eos.operations.preview import preview
    from airflow_eos.spark.process import RunContext

    if records < 1:
        raise ConfigurationError(f"records must be at least 1, got {records}")
    planned = preview(spec)
    parts = [part for offsets in planned.plan.ranges if (part := _first(spec, offsets, records)) is not None]
    context = RunContext(
        pipeline=spec.pipeline,
        run_id=spec.run_id,
        mode=planned.plan.mode,
        ranges=tuple(_range_of(offsets) for offsets in parts),
        source_topics=spec.source_topics,
        sink_topic=spec.sink_topic,
        interval=interval_of(spec.ranges),
        partition_key=spec.ranges.key if isinstance(spec.ranges, PartitionInterval) else None,
    )
    return _tried(process, parts, context, spark)


def _first(spec: RunSpec, wanted: OffsetRange, records: int) -> pa.Table | None:
    """Return the first records of a range, or None if it has none."""
    import pyarrow as pa

    from airflow_eos.spark.source import read_slices
    from airflow_eos.wire.client_config import ClientConfig

    batches: list[pa.RecordBatch] = []
    left = records
    with closing(read_slices(ClientConfig.of(spec.kafka), [wanted])) as slices:
        for batch in next(slices)[1]:
            batches.append(batch.slice(0, left))
            left -= batches[-1].num_rows
            if not left:
                break
    table = pa.Table.from_batches(batches) if batches else None
    return table if table is not None and table.num_rows else None


def _parts(records: Sequence[SourceRecord], source_topics: Sequence[str]) -> list[pa.Table]:
    """Return the records as a run reads them, one table per partition, in offset order."""
    import pyarrow as pa

    from airflow_eos.spark.source import ARROW_SCHEMA

    rows: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        topic = record.topic or source_topics[0]
        if topic not in source_topics:
            raise ConfigurationError(f"a record is of {topic!r}, which is none of {tuple(source_topics)}")
        part = rows[topic, record.partition]
        offset = record.offset if record.offset is not None else (part[-1]["offset"] + 1 if part else 0)
        if part and offset <= part[-1]["offset"]:
            raise ConfigurationError(f"offset {offset} of {topic}-{record.partition} does not ascend")
        headers = record.headers
        part.append(
            {
                "key": record.key,
                "value": record.value,
                "topic": topic,
                "partition": record.partition,
                "offset": offset,
                "timestamp": record.timestamp,
                "timestampType": _CREATE_TIME,
                "headers": [{"key": key, "value": value} for key, value in headers] if headers else None,
            }
        )
    return [pa.Table.from_pylist(rows[tp], ARROW_SCHEMA) for tp in sorted(rows)]


def _range_of(part: pa.Table) -> OffsetRange:
    offsets = part.column("offset")
    first = part.slice(0, 1).to_pylist()[0]
    return OffsetRange(first["topic"], first["partition"], first["offset"], offsets[-1].as_py() + 1)


def _tried(
    process: Callable[..., Any], parts: Sequence[pa.Table], context: RunContext, spark: SparkSession | None
) -> list[WrittenRecord]:
    from airflow_eos.spark.process import is_arrow_process

    if is_arrow_process(process):
        tables = _by_arrow(process, parts, context)
    else:
        tables = [_by_frame(process, parts, context, spark)]
    return [row for table in tables for row in _rows(table, context)]


def _by_arrow(process: Callable[..., Any], parts: Sequence[pa.Table], context: RunContext) -> list[pa.Table]:
    from airflow_eos.spark.arrow_contract import sink_rows
    from airflow_eos.spark.process import call_process

    tables = []
    for part in parts:
        result = call_process(process, part.combine_chunks().to_batches()[0], context)
        table = sink_rows(result, context.sink_topic, context.source_topics)
        tables += [] if table is None else [table]
    return tables


def _by_frame(
    process: Callable[..., Any], parts: Sequence[pa.Table], context: RunContext, spark: SparkSession | None
) -> pa.Table:
    import pyarrow as pa

    from airflow_eos.spark.by_value import pickled_by_value
    from airflow_eos.spark.frame_contract import check_frame, sink_columns
    from airflow_eos.spark.process import call_process
    from airflow_eos.spark.source import ARROW_SCHEMA, source_schema

    if spark is None:
        raise ConfigurationError("give spark=..., a session: only an @arrow_process can be tried without")
    records: Any = pa.concat_tables([*parts, ARROW_SCHEMA.empty_table()])
    frame = spark.createDataFrame(records, source_schema())
    with pickled_by_value(process):
        result = call_process(process, frame, context)
        check_frame(result, spark)
        return sink_columns(result, context.sink_topic, context.source_topics).toArrow()


def _rows(table: pa.Table, context: RunContext) -> list[WrittenRecord]:
    """Return the rows of a result; seals them once, to detect rows that no batch can hold."""
    import numpy as np

    from airflow_eos.recordbatch.sealer import seal
    from airflow_eos.recordbatch.sink_columns import distinct_topics

    columns = {name: table.column(name) for name in table.column_names}
    sealed = seal(
        columns["value"],
        np.zeros(table.num_rows, np.int32),
        topic=context.sink_topic or "the rows' topics",
        key=columns.get("key"),
        timestamp=columns.get("timestamp"),
        headers=columns.get("headers"),
        compressor="none",
        max_message_bytes=_ANY_SIZE,
    )
    for _ in sealed:
        pass
    if "topic" in columns:
        distinct_topics(columns["topic"])
    rows = table.to_pylist()
    written = [
        WrittenRecord(
            topic=row.get("topic") or context.sink_topic or "",
            value=row["value"],
            key=row.get("key"),
            headers=tuple((item["key"], item["value"]) for item in row.get("headers") or ()),
            partition=row.get("partition"),
            timestamp=row.get("timestamp"),
        )
        for row in rows
    ]
    if not all(item.topic for item in written):
        raise RecordRefused(
            "process returned rows whose 'topic' is null and there is no sink topic; fill the column, or set "
            "sink_topic"
        )
    wrong = next((item for item in written if item.partition is not None and item.partition < 0), None)
    if wrong is not None:
        raise RecordRefused(f"process returned partition {wrong.partition} for {wrong.topic}")
    return written
