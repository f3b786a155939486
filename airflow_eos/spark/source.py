"""Reads the records of pinned offset ranges as Arrow batches, or as a DataFrame whose tasks read them.

The columns are those of Spark's Kafka source. The client configuration with its credentials travels inside
the serialised task, never as an option, which plans and the Spark UI would show.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_eos.exceptions import CorruptBatch, ProtocolViolation
from airflow_eos.recordbatch.decode import way_on
from airflow_eos.spark.arrow_batches import SmallRecords
from airflow_eos.spark.errors import ErrorMark
from airflow_eos.spark.read_counts import SliceCount, Tally
from airflow_eos.spark.running_task import job_property, tidy
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import decoded, fetch_answers
from airflow_eos.wire.fetch_together import first_answers

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.model.ranges import OffsetRange
    from airflow_eos.recordbatch.decode import DecodedBatch
    from airflow_eos.recordbatch.varint import Int64s
    from airflow_eos.wire.client_config import ClientConfig

USED_COLUMNS = "airflow_eos.used_columns"
"""Property of a job: the columns that its read tasks fill, joined by commas; without it, all."""
READ_TASK_NAME = f"ReadTask_{uuid.uuid4().hex[:12]}"
"""Name of the function that reads, in plans of this process."""
_MAX_MILLISECONDS = (2**63 - 1) // 1000
_RUNS_NAMED = 20  # of neighbouring offsets, in one error

_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
ARROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS_TYPE),
    ]
)
"""The columns of source records."""
# Record batches in a log may hold a handful of records each, or many times their compressed bytes: they are
# merged and split to about this size.
_ROWS = 16_384
_BYTES = 8 << 20
# Rows that only represent a slice are thrown away: fewer are generated than there are records.
_RECORDS_PER_ROW = 4


def source_schema() -> StructType:
    """Return the same columns as Spark's types.

    Not as text, whose meaning depends on the session: with ``spark.sql.timestampType=TIMESTAMP_NTZ`` the word
    timestamp is a type without a time zone, while Kafka's timestamps are instants.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(ARROW_SCHEMA)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The function that ``mapInArrow`` calls to read a task's slices; pickled with the plan.

    :param tasks: the slices of each task.
    :param starts: first row number of each task.
    :param tally: accumulator of the counts by slice number, over all tasks.
    :param late_before: records older than this count as late.
    """

    config: ClientConfig = field(repr=False)
    tasks: Sequence[Sequence[OffsetRange]]
    starts: Sequence[int]
    tally: Tally | None = None
    late_before: dt.datetime | None = None
    mark: ErrorMark = field(default_factory=ErrorMark)

    __name__ = READ_TASK_NAME  # of the function in plans, for PySpark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task's slices."""
        # Read all rows: otherwise Spark could not reuse the Python worker.
        rows = [batch.column(0)[0].as_py() for batch in batches if batch.num_rows]
        if not rows:
            return
        task = bisect_right(self.starts, min(rows)) - 1
        first = sum(map(len, self.tasks[:task]))
        counts: dict[int, tuple[int, int]] = {}
        columns, bound = job_property(USED_COLUMNS), SmallRecords.of_task()
        with self.mark.errors():
            for place, records in read_slices(self.config, self.tasks[task]):
                count = SliceCount(self.late_before)
                for batch in records:
                    count.add(batch)
                    filled = batch if columns is None else _others_null(batch, columns.split(","))
                    bound.add(filled)
                    yield filled
                if place != len(counts):
                    raise ProtocolViolation(f"slice {len(counts)} of read task {task} came as number {place}")
                counts[first + place] = (count.records, count.late)
            if len(counts) != len(self.tasks[task]):
                raise ProtocolViolation(
                    f"read task {task} has {len(self.tasks[task])} slices, {len(counts)} were read"
                )
        if self.tally is not None:
            self.tally.add(counts)
        tidy()


def _others_null(batch: pa.RecordBatch, columns: Collection[str]) -> pa.RecordBatch:
    arrays = [
        array if field.name in columns else pa.nulls(batch.num_rows, field.type)
        for field, array in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def source_frame(
    spark: SparkSession,
    config: ClientConfig,
    tasks: Sequence[Sequence[OffsetRange]],
    tally: Tally | None = None,
    late_before: dt.datetime | None = None,
    mark: ErrorMark | None = None,
) -> DataFrame:
    """Return a DataFrame with a partition for each task's slices, in order.

    It is a range of numbers whose tasks read Kafka: a Python data source would start three more Python
    processes for planning. The range has a number for every few records, so that Spark's size estimate grows
    with the source: a large one must not be taken for the small side of a join.
    """
    count = max(1, len(tasks))
    rows = max(count, sum(offsets.span for slices in tasks for offsets in slices) // _RECORDS_PER_ROW)
    starts = [number * rows // count for number in range(count)]
    task = ReadTask(config, tuple(map(tuple, tasks)), starts, tally, late_before, mark or ErrorMark())
    return spark.range(0, rows if tasks else 0, 1, count).mapInArrow(task, source_schema())


def read_slices(
    config: ClientConfig, slices: Sequence[OffsetRange]
) -> Generator[tuple[int, Iterator[pa.RecordBatch]], None, None]:
    """Yield the index and the records of each slice, in order; read each to its end.

    Slices share connections, and small ones requests.

    :raises ProtocolViolation: a slice was not read to its end, so its counts would be wrong.
    """
    ended: set[int] = set()
    with BrokerConnections(config) as connections:
        for place, first in first_answers(connections, slices):
            wanted = slices[place]
            start, end = wanted.start, wanted.end
            answers = fetch_answers(connections, wanted.topic_partition, start, end, first=first)
            batches = decoded(connections, answers, start, end, config.decode_limits)
            yield place, _marking_end(arrow_batches(batches, wanted.topic, wanted.partition), place, ended)
            if place not in ended:
                raise ProtocolViolation(f"{wanted} was not read to its end")


def _marking_end(records: Iterator[pa.RecordBatch], place: int, ended: set[int]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice; add its place to ``ended`` only after the last one was read."""
    yield from records
    ended.add(place)


def arrow_batches(batches: Iterable[DecodedBatch], topic: str, partition: int) -> Iterator[pa.RecordBatch]:
    """Merge decoded batches into larger ones in Spark's types, and split those that are too large."""
    waiting: list[DecodedBatch] = []
    have_rows = have_size = 0
    for batch in batches:
        waiting.append(batch)
        have_rows += len(batch)
        have_size += batch.key.nbytes + batch.value.nbytes
        if batch.headers is not None:
            have_size += batch.headers.nbytes
        if have_rows >= _ROWS or have_size >= _BYTES:
            yield from _cut(_record_batch(waiting, have_rows, topic, partition))
            waiting, have_rows, have_size = [], 0, 0
    if waiting:
        yield from _cut(_record_batch(waiting, have_rows, topic, partition))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in recursive halves until none is more than twice the target size."""
    rows = batch.num_rows
    if rows <= 1 or (rows <= 2 * _ROWS and batch.nbytes <= 2 * _BYTES):
        yield batch
        return
    yield from _cut(batch.slice(0, rows // 2))
    yield from _cut(batch.slice(rows // 2))


def _record_batch(batches: list[DecodedBatch], rows: int, topic: str, partition: int) -> pa.RecordBatch:
    milliseconds = np.concatenate([b.timestamp for b in batches])
    offsets = np.concatenate([b.offset for b in batches])
    _check_timestamps(milliseconds, offsets, topic, partition)
    columns = [
        pa.concat_arrays([b.key for b in batches]),
        pa.concat_arrays([b.value for b in batches]),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(offsets),
        pa.array(milliseconds * 1000).cast(ARROW_SCHEMA.field("timestamp").type),
        pa.array(np.concatenate([np.full(len(b), int(b.timestamp_type), np.int32) for b in batches])),
        _headers(batches),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _check_timestamps(milliseconds: Int64s, offsets: Int64s, topic: str, partition: int) -> None:
    wrong = np.flatnonzero((milliseconds > _MAX_MILLISECONDS) | (milliseconds < -_MAX_MILLISECONDS))
    if len(wrong):
        at = offsets[wrong]
        runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)[:_RUNS_NAMED]
        raise CorruptBatch(
            f"{topic}-{partition} at offset {at[0]} has timestamp {milliseconds[wrong[0]]} ms, which "
            f"Spark's microseconds cannot hold ({len(wrong)} such records here); "
            f"{way_on(topic, partition, [(int(run[0]), int(run[-1]) + 1) for run in runs])}"
        )


def _headers(batches: list[DecodedBatch]) -> pa.Array:
    if all(b.headers is None for b in batches):
        return pa.nulls(sum(len(b) for b in batches), _HEADERS_TYPE)
    return pa.concat_arrays(
        [
            pa.nulls(len(b), _HEADERS_TYPE) if b.headers is None else b.headers.cast(_HEADERS_TYPE)
            for b in batches
        ]
    )
