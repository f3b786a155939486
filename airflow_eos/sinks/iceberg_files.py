"""Writes data files of an Iceberg table in Spark tasks, partitioned and compressed as the table says."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import SendError
from airflow_eos.model.table import DataFileMade
from airflow_eos.sinks.columns import check_row_count, check_types, refuse_far_times, table_columns
from airflow_eos.sinks.executor_extra import executor_extra
from airflow_eos.sinks.redaction import redacted

_MOST_IN_MEMORY = 128 << 20
_TARGET = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """Implements ``airflow_eos.ports.TableWriter``; pickled into tasks, with the storage's credentials.

    :param name: the table, in words.
    :param metadata: JSON of the table's metadata, without its history.
    :param properties: of the table's file storage.
    :param label: first part of the files' names.
    """

    name: str
    metadata: str = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    location: str
    label: str

    def columns(self, result: Any) -> pa.Table | None:
        """Return the rows of an Arrow process in the table's columns."""
        table = table_columns(result, self._schema(), self.name)
        if table is not None:
            refuse_far_times(table, self.name)
        return table

    def check(self, given: pa.Schema) -> None:
        """Compare columns and types before anything is read."""
        check_types(given, self._schema(), self.name)

    def write(self, table: pa.Table) -> Sequence[DataFileMade]:
        """Write rows of the table's columns.

        Names of data files are never used twice: what died leaves files that no commit names.

        :raises SendError: the storage refused a file, or the partitions do not hold each row once.
        """
        metadata = self._metadata()
        from pyiceberg.io import load_file_io
        from pyiceberg.utils.concurrent import ExecutorFactory

        try:
            # The layout of its buffers is relied on; columns of other types are cast.
            parts = _partitions(metadata, table.cast(self._schema()))
            write = partial(self._write, metadata, load_file_io(dict(self.properties), self.location))
            files = list(ExecutorFactory.get_or_create().map(write, count(), parts))
        except Exception as error:  # noqa: BLE001 - of any storage
            reason = redacted(f"{type(error).__name__}: {error}", self.properties)
            raise SendError(f"{self.name}: a data file cannot be written: {reason}") from None
        check_row_count(files, table, self.name)
        return files

    def _write(self, metadata: Any, io: Any, number: int, part: tuple[Any, pa.Table]) -> DataFileMade:
        from pyiceberg.io.pyarrow import ParquetFormatWriter, sanitize_column_names, schema_to_pyarrow
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.table.locations import load_location_provider
        from pyiceberg.typedef import Record

        key, rows = part
        schema = sanitize_column_names(metadata.schema())
        in_file = schema_to_pyarrow(schema)
        batches = [pa.record_batch(_Labelled(batch, in_file)) for batch in rows.to_batches()]
        locations = load_location_provider(self.location, metadata.properties)
        name = f"00000-{number}-{self.label}-{uuid.uuid4()}.parquet"
        output = io.new_output(locations.new_data_location(name, key))
        writer = ParquetFormatWriter(output, schema, metadata.properties)
        with writer:
            writer.write(pa.Table.from_batches(batches))
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=output.location,
            file_format=FileFormat.PARQUET,
            partition=key.partition if key else Record(),
            file_size_in_bytes=len(output),
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **writer.result().to_serialized_dict(),
        )
        return DataFileMade(pickle.dumps(file), file.record_count, file.file_size_in_bytes)

    @property
    def flush_bytes(self) -> int:
        """Bytes of rows that make up a file; many tasks hold as much at once."""
        wanted = json.loads(self.metadata).get("properties", {}).get(_TARGET)
        return min(int(wanted), _MOST_IN_MEMORY) if wanted else _MOST_IN_MEMORY

    def _metadata(self) -> Any:
        with executor_extra(self.name, "pyiceberg", "iceberg"):
            return _parsed(self.metadata)

    def _schema(self) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self._metadata().schema(), include_field_ids=False)


@dataclass(frozen=True, slots=True)
class _Labelled:
    """Rows with the names and field ids of a data file's columns, for the Arrow PyCapsule interface.

    The buffers stay as they are, null lists and maps too: pyiceberg makes empty ones of those of structs.

    :param schema: types of the same layout as those of the rows.
    """

    rows: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the schema and the rows as capsules."""
        return self.schema.__arrow_c_schema__(), self.rows.__arrow_c_array__()[1]


def unwritable_partitions(metadata: Any) -> str | None:
    """Return why rows cannot be divided as a table's partition spec says, None if they can.

    :param metadata: of the table, as pyiceberg has it.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DoubleType, FloatType

    if metadata.spec().is_unpartitioned():
        return None
    for partition in metadata.spec().fields:
        source = metadata.schema().find_field(partition.source_id)
        is_float = isinstance(source.field_type, (FloatType, DoubleType))
        if is_float and isinstance(partition.transform, IdentityTransform):
            return f"{source.name!r} is a {source.field_type}, where -0.0 equals 0.0 and NaN equals nothing"
    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    row = pa.table([pa.nulls(1, column.type) for column in schema], schema=schema)
    try:
        for key, _ in _partitions(metadata, row):
            key.to_path()
    except Exception as error:  # noqa: BLE001 - whatever pyiceberg has against the spec
        return f"{type(error).__name__}: {error}"
    return None


def _partitions(metadata: Any, table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """Yield the rows of each partition with its key, None for a table without partitions."""
    from pyiceberg.io.pyarrow import _determine_partitions

    if metadata.spec().is_unpartitioned():
        yield None, table
        return
    for part in _determine_partitions(metadata.spec(), metadata.schema(), table):
        yield part.partition_key, part.arrow_table_partition


@lru_cache(maxsize=4)
def _parsed(metadata: str) -> Any:
    from pyiceberg.table.metadata import TableMetadataUtil

    return TableMetadataUtil.parse_raw(metadata)
