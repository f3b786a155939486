"""Writes data files of a Delta Lake table in Spark tasks, partitioned like the table."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_eos.exceptions import RecordRefused, SendError
from airflow_eos.model.table import DataFileMade
from airflow_eos.redaction import redacted
from airflow_eos.sinks.columns import (
    check_row_count,
    check_types,
    has_far_time,
    refuse_far_times,
    refuse_long_texts,
    table_columns,
)
from airflow_eos.sinks.delta_features import declared_length
from airflow_eos.sinks.executor_extra import executor_extra

_LONGEST_BOUND = 32  # characters, as in other Delta writers
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """Implements ``airflow_eos.table_ports.TableWriter``; pickled into tasks, with the storage's credentials.

    :param options: of the object store.
    :param indexed: number of columns with statistics.
    :param flush_bytes: bytes of rows per file; each of many concurrent tasks holds as much in memory.
    :param label: first part of the files' names; its end takes the place of a UUID's first 8 characters.
    """

    name: str
    uri: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema = field(repr=False)
    partitions: tuple[str, ...]
    indexed: int
    flush_bytes: int
    label: str

    def columns(self, result: Any) -> pa.Table | None:
        """Return the rows of an Arrow process in the table's columns."""
        table = table_columns(result, self.schema, self.name)
        if table is None:
            return None
        for name in self.partitions:
            column = table.column(name)
            if pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
                raise RecordRefused(
                    f"process returned an empty text in {name!r}, by which {self.name} is partitioned: Delta "
                    "Lake reads it as null; return null, or another text"
                )
        for column in self.schema:
            declared = declared_length(column)
            if declared is not None:
                kind, most = declared
                refuse_long_texts(table.column(column.name), most, column.name, kind, self.name)
        # Of partition columns the log has the values; of others only bounds, which may be left out.
        refuse_far_times(table.select(self.partitions), self.name)
        return table

    def check(self, given: pa.Schema) -> None:
        """Compare columns and types before anything is read."""
        check_types(given, self.schema, self.name)

    def write(self, table: pa.Table) -> Sequence[DataFileMade]:
        """Write rows of the table's columns, a file for each partition; raises SendError."""
        parts = self._parts(table)
        with executor_extra(self.name, "deltalake", "delta"):
            store = store_of(self.uri, self.options)
        try:
            files = [self._write(store, values, rows) for values, rows in parts]
        except Exception as error:  # noqa: BLE001 - of any object store
            reason = redacted(f"{type(error).__name__}: {error}", self.options)
            raise SendError(f"{self.name}: a data file cannot be written: {reason}") from None
        check_row_count(files, table, self.name)
        return files

    def _write(
        self, store: pa.fs.FileSystem, values: Mapping[str, str | None], rows: pa.Table
    ) -> DataFileMade:
        path = f"{self.label}{str(uuid.uuid4())[8:]}.snappy.parquet"
        with store.open_output_stream(path) as stream:
            pq.write_table(rows, stream, compression="snappy")
            size = stream.tell()
        stats = statistics(rows.select(rows.column_names[: self.indexed]))
        action = {
            "path": path,
            "size": size,
            "partition_values": values,
            "modification_time": int(time.time() * 1000),
            "data_change": True,
            # Not escaped: deltalake reads surrogate pairs of most planes as other characters.
            "stats": json.dumps(stats, ensure_ascii=False),
        }
        return DataFileMade(json.dumps(action).encode(), rows.num_rows, size)

    def _parts(self, table: pa.Table) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
        """Yield the values of each partition, as the log has them, and its rows without those columns."""
        if not self.partitions:
            yield {}, table
            return
        # By position: a column of the table may have any name.
        keys = {str(position): name for position, name in enumerate(self.partitions)}
        texts = pa.table({key: partition_texts(table.column(name)) for key, name in keys.items()})
        numbered = texts.append_column("row", pa.array(np.arange(table.num_rows)))
        groups = numbered.group_by(list(keys), use_threads=False).aggregate([("row", "list")])
        rows = table.drop_columns(list(self.partitions))
        for group in range(groups.num_rows):
            values = {name: groups[key][group].as_py() for key, name in keys.items()}
            yield values, rows.take(groups["row_list"][group].values)


def store_of(uri: str, options: Mapping[str, str] | None) -> pa.fs.FileSystem:
    """Return the object store, or the folder, of a table."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(uri, dict(options or {})))


def partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of a partition column as the log has them (protocol, "Partition Value Serialization")."""
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return pc.cast(column, pa.string())
    text = pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())
    if kind.tz is None:
        return text
    # With the zone: otherwise some readers take it for local time.
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "Z", "")


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return counts and bounds of a file's columns (protocol, "Per-file Statistics").

    Return only the number of rows if a column has no bounds that all readers agree on: if other columns have
    bounds, a deltalake dataset takes its missing ones for null, and skips the file for every filter on it.
    """
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count == len(column) or pa.types.is_binary(column.type):
            continue
        bounds = _bounds(column)
        if bounds is None:
            return {"numRecords": rows.num_rows}
        smallest[name], largest[name] = bounds
    return {"numRecords": rows.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value in JSON form; None if JSON cannot represent them exactly."""
    types, kind = pa.types, column.type
    if types.is_timestamp(kind):
        # The protocol truncates bounds to milliseconds: the upper bound must be rounded up.
        column = pa.chunked_array([*column.chunks, *pc.ceil_temporal(column, unit="millisecond").chunks])
    if (types.is_date(kind) or types.is_timestamp(kind)) and has_far_time(column):
        return None
    if types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None
    smallest, largest = pc.min_max(column).as_py().values()
    if types.is_date(kind):
        return smallest.isoformat(), largest.isoformat()
    if types.is_timestamp(kind):
        first, last = (value.isoformat(timespec="milliseconds") for value in (smallest, largest))
        return first.replace("+00:00", "Z"), last.replace("+00:00", "Z")
    if types.is_floating(kind):
        return smallest or -0.0, largest or 0.0
    if types.is_decimal(kind):
        numbers = _number(smallest), _number(largest)
        return None if None in numbers else numbers
    if types.is_string(kind):
        return _text_bounds(smallest, largest)
    return smallest, largest


def _number(value: Decimal) -> float | int | None:
    """Return the JSON number with all digits of a decimal and without an exponent; None if there is none."""
    number = int(value) if int(value) == value else float(value)
    text = repr(number)
    return number if "e" not in text and Decimal(text) == value else None


def _text_bounds(smallest: str, largest: str) -> tuple[str, str] | None:
    """Return text bounds truncated like in other Delta writers; None if the upper one cannot be truncated."""
    if len(largest) <= _LONGEST_BOUND:
        return smallest[:_LONGEST_BOUND], largest
    if largest[_LONGEST_BOUND] == _LAST_CHARACTER:
        return None
    return smallest[:_LONGEST_BOUND], largest[:_LONGEST_BOUND] + _LAST_CHARACTER
