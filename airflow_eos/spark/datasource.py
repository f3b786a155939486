"""The Python data source ``kafka_range``: pinned offset ranges for ``spark.read``, without a JVM connector.

For authors who want to look at ranges by themselves; a run reads by
:func:`airflow_eos.spark.source.source_frame`.
The client configuration, credentials included, travels inside the serialised class and its tasks: never as an
option, which plans and the Spark UI would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.errors import task_errors
from airflow_eos.spark.source import HEADERS, SCHEMA, read_slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.wire.client_config import ClientConfig


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
        with task_errors():
            yield from read_slice(self._config, wanted, headers=self._headers)


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
