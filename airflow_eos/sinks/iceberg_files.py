"""Writes data files of an Iceberg table in Spark tasks, with the table's partition spec and compression."""

from __future__ import annotations

import errno
import json
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_eos.exceptions import EnvironmentMismatch, EosError, RecordRefused, SendError
from airflow_eos.model.table import DataFileMade
from airflow_eos.redaction import redacted
from airflow_eos.sinks.columns import check_row_count, check_types, refuse_far_times, table_columns
from airflow_eos.sinks.executor_extra import executor_extra

_MOST_IN_MEMORY = 128 << 20
_TARGET = "write.target-file-size-bytes"
_PARTITIONS_SHOWN = "write.summary.partition-limit"
_KEY_TOO_LONG = "KeyTooLong"
"""S3's error code for a key of more than 1,024 bytes."""
_OLDEST_PYARROW = 19
"""Earlier releases do not write the field ids of a map's keys and values."""


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """Implements ``airflow_eos.table_ports.TableWriter``; pickled into tasks, with the storage's credentials.

    :param metadata: JSON of the table's metadata, without its history.
    :param properties: properties of the table's file storage.
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

        :raises RecordRefused: a value has no partition or bound in a manifest, or its path is too long.
        :raises SendError: the storage refused a file, or the partitions do not hold each row once.
        """
        metadata = self._metadata()
        from pyiceberg.io import load_file_io
        from pyiceberg.utils.concurrent import ExecutorFactory

        try:
            # _write relies on the layout of these buffers; columns of other types are cast.
            parts = self._parts(metadata, _copied(metadata, table.cast(self._schema())))
            write = partial(self._write, metadata, load_file_io(dict(self.properties), self.location))
            files = list(ExecutorFactory.get_or_create().map(write, count(), parts))
        except EosError:
            raise
        except Exception as error:  # noqa: BLE001 - of any storage
            reason = redacted(f"{type(error).__name__}: {error}", self.properties)
            if getattr(error, "errno", None) == errno.ENAMETOOLONG or _KEY_TOO_LONG in reason:
                raise RecordRefused(
                    f"process returned a value whose partition has too long a path in {self.name}: {reason}; "
                    "shorten it, or partition by truncate[...] or bucket[...] of the column"
                ) from None
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
        with self._refusing_values():
            statistics = writer.result().to_serialized_dict()
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
            **statistics,
        )
        return DataFileMade(pickle.dumps(file), file.record_count, file.file_size_in_bytes)

    def _parts(self, metadata: Any, table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        with self._refusing_values():
            yield from _partitions(metadata, table)

    @contextmanager
    def _refusing_values(self) -> Iterator[None]:
        """Raise RecordRefused for values on which pyiceberg fails; the block must not access storage."""
        from pyiceberg.exceptions import NotInstalledError

        try:
            yield
        except (ImportError, NotInstalledError, MemoryError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - of a value, in any part of pyiceberg
            raise RecordRefused(
                f"process returned a value that has no partition or bound in {self.name}: "
                f"{type(error).__name__}: {error}; return another one, or change the partition spec or the "
                "column's statistics (write.metadata.metrics.column.NAME=counts)"
            ) from None

    @property
    def flush_bytes(self) -> int:
        """Bytes of rows per file; each of many concurrent tasks holds as much in memory."""
        wanted = json.loads(self.metadata).get("properties", {}).get(_TARGET)
        return min(int(wanted), _MOST_IN_MEMORY) if wanted else _MOST_IN_MEMORY

    def _metadata(self) -> Any:
        if int(pa.__version__.partition(".")[0]) < _OLDEST_PYARROW:
            raise EnvironmentMismatch(
                f"{self.name} is written by Spark's tasks, and pyarrow {pa.__version__} there writes maps "
                f"that readers do not recognise: install pyarrow {_OLDEST_PYARROW} or later on the executors"
            )
        with executor_extra(self.name, "pyiceberg", "iceberg"):
            return _parsed(self.metadata)

    def _schema(self) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self._metadata().schema(), include_field_ids=False)


@dataclass(frozen=True, slots=True)
class _Labelled:
    """Rows with the names and field ids of a data file's columns, for the Arrow PyCapsule interface.

    The buffers stay as they are, also null lists and maps: in structs pyiceberg would make them empty.

    :param schema: types of the same layout as those of the rows.
    """

    rows: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return capsules of the schema and of the rows."""
        return self.schema.__arrow_c_schema__(), self.rows.__arrow_c_array__()[1]


def unwritable_partitions(metadata: Any) -> str | None:
    """Return why a table's partition spec cannot be applied to rows; None if it can.

    :param metadata: pyiceberg's metadata of the table.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DoubleType, FloatType

    if metadata.spec().is_unpartitioned():
        return None
    for partition in metadata.spec().fields:
        if metadata.schema().find_column_name(partition.source_id) is None:  # left by format version 1
            return f"{partition.name!r} is made of a column that was dropped"
        source = metadata.schema().find_field(partition.source_id)
        is_float = isinstance(source.field_type, (FloatType, DoubleType))
        if is_float and isinstance(partition.transform, IdentityTransform):
            return f"{source.name!r} is a {source.field_type}, where -0.0 equals 0.0 and NaN equals nothing"
    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    rows = pa.table([pa.concat_arrays([pa.nulls(1, c.type), _zero(c.type)]) for c in schema], schema=schema)
    try:
        for _ in _partitions(metadata, rows):
            pass
    except Exception as error:  # noqa: BLE001 - whatever pyiceberg has against the spec
        return f"{', '.join(map(str, metadata.spec().fields))}: {type(error).__name__}: {error}"
    return None


def unwritable_properties(schema: Any, properties: Mapping[str, str]) -> str | None:
    """Return why no data file can be written with a table's columns and properties; None if one can.

    :param schema: pyiceberg's schema of the table.
    """
    from pyiceberg.io.pyarrow import ParquetFormatWriter, sanitize_column_names, schema_to_pyarrow

    try:
        names = sanitize_column_names(schema)
        in_file = schema_to_pyarrow(names)
        for number in (_TARGET, _PARTITIONS_SHOWN):
            int(properties.get(number, 0))
        with ParquetFormatWriter(_InMemory(), names, properties) as writer:
            writer.write(pa.table([_zero(column.type) for column in in_file], schema=in_file))
    except Exception as error:  # noqa: BLE001 - whatever pyiceberg or pyarrow has against a value
        return f"{type(error).__name__}: {error}"
    return None


class _InMemory:
    """An output file of pyiceberg in memory, which is thrown away."""

    def create(self, *, overwrite: bool) -> pa.BufferOutputStream:  # noqa: ARG002
        """Return the stream for the file's bytes."""
        return pa.BufferOutputStream()


def _partitions(metadata: Any, table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """Yield the rows of each partition with its key, None for a table without partitions."""
    from pyiceberg.io.pyarrow import _determine_partitions

    if metadata.spec().is_unpartitioned():
        yield None, table
        return
    for part in _determine_partitions(metadata.spec(), metadata.schema(), table):
        _check_key(part.partition_key)
        yield part.partition_key, part.arrow_table_partition


def _copied(metadata: Any, table: pa.Table) -> pa.Table:
    """Return the rows with copies of nested columns, and of decimals in the partition spec.

    A copy leaves out the items behind null lists, which pyarrow before 25 cannot write. It is aligned: Rust
    reads decimals only at multiples of 16 bytes, and Spark's batches align them to 8 bytes.
    """
    names = {metadata.schema().find_column_name(field.source_id) for field in metadata.spec().fields}
    for number, column in enumerate(table.schema):
        is_taken = pa.types.is_decimal(column.type) and column.name in names
        if is_taken or pa.types.is_nested(column.type):
            chunks = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in table.column(number).chunks]
            table = table.set_column(number, column, pa.chunked_array(chunks, column.type))
    return table


def _check_key(key: Any) -> None:
    """Raise if a manifest or a path cannot hold the values of a partition: else the commit would fail."""
    from pyiceberg.manifest import construct_partition_summaries
    from pyiceberg.transforms import TruncateTransform

    key.to_path()
    construct_partition_summaries(key.partition_spec, key.schema, [key.partition])
    for partition, value in zip(key.partition_spec.fields, key.partition, strict=True):
        width = partition.transform.width if isinstance(partition.transform, TruncateTransform) else 1
        if isinstance(value, int) and value % width:  # truncated below the smallest number of its type
            raise OverflowError(f"{value} is not a multiple of {width}")


def _zero(kind: pa.DataType) -> pa.Array:
    """Return an array of one zero or empty value of a type; of a list or map one null."""
    if isinstance(kind, pa.BaseExtensionType):  # such as pa.uuid()
        return pa.ExtensionArray.from_storage(kind, _zero(kind.storage_type))
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_zero(inner.type) for inner in kind], fields=list(kind))
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return pa.nulls(1, kind)
    width = kind.bit_width // 8 if pa.types.is_fixed_size_binary(kind) else 0
    buffers = [None, pa.py_buffer(bytes(max(width, 16))), pa.py_buffer(b"")]
    return pa.Array.from_buffers(kind, 1, buffers[: kind.num_buffers])


@lru_cache(maxsize=4)
def _parsed(metadata: str) -> Any:
    from pyiceberg.table.metadata import TableMetadataUtil

    return TableMetadataUtil.parse_raw(metadata)
