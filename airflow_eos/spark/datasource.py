"""The Python data source ``kafka_range``: pinned offset ranges as a DataFrame, without a JVM connector.

Columns are those of Spark's own Kafka source. The client configuration, credentials included, travels inside
the serialised class and its tasks: never as an option, which plans and the Spark UI would show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.errors import task_errors
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.wire.client_config import ClientConfig
    from airflow_eos.wire.decode import DecodedBatch

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
HEADERS = "headers array<struct<key:string,value:binary>>"

_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_ARROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
# Record batches in a log may hold a handful of records each; a batch per task step should not.
_ROWS = 16_384
_BYTES = 8 << 20


class Slice(InputPartition):
    """One task's part of the ranges."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(None)
        self.offsets = offsets


class RangeReader(DataSourceReader):
    """Plans one task per slice, in order, and reads each with a connection of its own."""

    def __init__(self, config: ClientConfig, slices: Sequence[OffsetRange], *, headers: bool) -> None:
        self._config = config
        self._slices = tuple(slices)
        self._headers = headers

    def partitions(self) -> list[InputPartition]:
        """Return the slices; Spark numbers its tasks in this order."""
        return [Slice(s) for s in self._slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one slice as Arrow batches."""
        if not isinstance(partition, Slice):
            return  # what Spark plans when there is no slice at all
        wanted = partition.offsets
        with task_errors(), BrokerConnections(self._config) as connections:
            batches = fetch_range(connections, wanted.topic, wanted.partition, wanted.start, wanted.end)
            yield from arrow_batches(batches, wanted.topic, wanted.partition, headers=self._headers)


def make_source(
    name: str, config: ClientConfig, slices: Sequence[OffsetRange], *, headers: bool
) -> type[DataSource]:
    """Return a data source class that carries everything it needs in its closure.

    The class is local on purpose: pickled by value, it takes the configuration with it.
    """

    class KafkaRange(DataSource):
        """Kafka offset ranges of one run."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return f"{SCHEMA}, {HEADERS}" if headers else SCHEMA

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by keyword
            return RangeReader(config, slices, headers=headers)

    return KafkaRange


def read_ranges(
    spark: SparkSession,
    name: str,
    config: ClientConfig,
    slices: Sequence[OffsetRange],
    *,
    headers: bool = True,
) -> DataFrame:
    """Return a DataFrame over the slices, one partition each, in order.

    :param name: name of the data source; one per run, because Spark Connect looks it up at every execution.
    :param headers: add the column ``headers``; null where a record has none.
    """
    spark.dataSource.register(make_source(name, config, slices, headers=headers))
    return spark.read.format(name).load()


def forget_source(spark: SparkSession, name: str) -> None:
    """Replace a source by an empty one: a session outlives the run and must not keep credentials."""
    from airflow_eos.wire.client_config import ClientConfig

    spark.dataSource.register(make_source(name, ClientConfig(()), (), headers=False))


def arrow_batches(
    batches: Iterable[DecodedBatch],
    topic: str,
    partition: int,
    *,
    headers: bool,
    rows: int = _ROWS,
    size: int = _BYTES,
) -> Iterator[pa.RecordBatch]:
    """Glue decoded batches to larger ones, in the types that Spark asks for.

    :param rows: records from which a batch is full; decoded batches are not cut.
    :param size: bytes of keys and values from which a batch is full.
    """
    waiting: list[DecodedBatch] = []
    have_rows = have_size = 0
    for batch in batches:
        waiting.append(batch)
        have_rows += len(batch)
        have_size += batch.key.nbytes + batch.value.nbytes
        if have_rows >= rows or have_size >= size:
            yield _record_batch(waiting, have_rows, topic, partition, headers=headers)
            waiting, have_rows, have_size = [], 0, 0
    if waiting:
        yield _record_batch(waiting, have_rows, topic, partition, headers=headers)


def _record_batch(
    batches: list[DecodedBatch], rows: int, topic: str, partition: int, *, headers: bool
) -> pa.RecordBatch:
    milliseconds = np.concatenate([b.timestamp for b in batches])
    columns = [
        pa.concat_arrays([b.key for b in batches]),
        pa.concat_arrays([b.value for b in batches]),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.array(np.full(rows, partition, np.int32)),
        pa.array(np.concatenate([b.offset for b in batches])),
        pa.array(milliseconds * 1000).cast(_ARROW_SCHEMA.field("timestamp").type),
        pa.array(np.concatenate([np.full(len(b), int(b.timestamp_type), np.int32) for b in batches])),
    ]
    schema = _ARROW_SCHEMA
    if headers:
        columns.append(_headers(batches))
        schema = schema.append(pa.field("headers", _HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _headers(batches: list[DecodedBatch]) -> pa.Array:
    if all(b.headers is None for b in batches):
        return pa.nulls(sum(len(b) for b in batches), _HEADERS_TYPE)
    return pa.concat_arrays(
        [
            pa.nulls(len(b), _HEADERS_TYPE) if b.headers is None else b.headers.cast(_HEADERS_TYPE)
            for b in batches
        ]
    )
