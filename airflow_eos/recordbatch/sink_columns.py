"""Converts the columns of a sink to the few Arrow types that the encoder reads.

Spark, Arrow and pandas deliver the same data as ``binary``, ``string``, their ``large`` and ``view`` forms,
dictionaries and chunks. Here they become one array of ``binary`` or ``large_binary`` (large where 32-bit
offsets might not suffice), int64 milliseconds, and one list array of headers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import ProcessFailed, RecordRefused
from airflow_eos.model.arrow_result import is_bytes, is_text
from airflow_eos.recordbatch.segments import Segments, segments_of
from airflow_eos.recordbatch.varint import Int64s

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_HEADER = ("key", "value")

Column: TypeAlias = "pa.Array | pa.ChunkedArray"

SMALL = (1 << 31) - 1
"""Size of a column, in bytes, up to which 32-bit offsets always suffice."""


class Strings(NamedTuple):
    """A binary column for the encoder: strings, and their lengths with -1 for null."""

    segments: Segments
    lengths: Int64s


def binary_column(column: Column, name: str) -> pa.Array:
    """One array of ``binary`` or ``large_binary`` with the same values.

    :raises ProcessFailed: the type holds no bytes; the message names column and type
    """
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    has_short = pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind)
    if not has_short and not is_text(kind) and not is_bytes(kind):
        raise _not_bytes(name, kind)
    is_large = not has_short or (isinstance(column, pa.ChunkedArray) and column.nbytes > SMALL)
    target = pa.large_binary() if is_large else pa.binary()
    try:
        return _one_array(column if kind == target else column.cast(target))
    except pa.ArrowNotImplementedError as error:  # early releases of pyarrow cannot cast views
        raise _not_bytes(name, kind) from error


def _not_bytes(name: str, kind: pa.DataType) -> ProcessFailed:
    return ProcessFailed(
        f"column {name!r} has type {kind}; cast it to binary or string, which is what Kafka stores"
    )


def strings(array: pa.Array) -> Strings:
    """Segments and lengths of a ``binary`` or ``large_binary`` array; null is empty, of length -1."""
    if array.null_count == 0:
        segments = segments_of(array)
        return Strings(segments, np.diff(segments.offsets).astype(np.int64))
    null = array.is_null().to_numpy(zero_copy_only=False)
    segments = segments_of(array)
    lengths = np.diff(segments.offsets).astype(np.int64)
    if lengths[null].any():  # legal in Arrow: bytes under a null
        segments = segments_of(array.fill_null(b""))
    lengths[null] = -1
    return Strings(segments, lengths)


def timestamp_column(column: Column | Int64s | None, rows: int) -> Int64s:
    """Milliseconds since 1970 as int64; missing ones become the current time.

    :param column: int64 milliseconds, or ``None``
    """
    if column is None:
        return np.full(rows, _now(), np.int64)
    if isinstance(column, np.ndarray):
        return column.astype(np.int64, copy=False)
    filled = column.fill_null(_now()) if column.null_count else column
    return np.asarray(_one_array(filled), np.int64)


def headers_column(column: Column | None) -> pa.Array | None:
    """Headers, as :func:`listed_headers` takes them, as one array; ``None`` when no record has any."""
    if column is None:
        return None
    array = _one_array(listed_headers(column))
    if not pc.sum(pc.list_value_length(array)).as_py():
        return None
    return array


def distinct_topics(column: Column) -> list[Any]:
    """Return the different names in a column of topics.

    :raises RecordRefused: one is not UTF-8; Spark casts bytes to text unchecked.
    """
    try:
        return list(pc.unique(column).to_pylist())
    except UnicodeDecodeError:
        raise RecordRefused(
            "process returned a 'topic' that is not UTF-8: return the name of a topic"
        ) from None


def listed_headers(column: Column) -> Column:
    """Return headers as :data:`HEADERS_TYPE`, from lists of structs with these fields, or from maps.

    Arrow's cast of others loses values: it fills a field of another name with null, and truncates list views.

    :raises pyarrow.ArrowException: another type.
    """
    kind = column.type
    if kind == HEADERS_TYPE:
        return column
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        header = kind.value_type
        named = pa.types.is_struct(header) and all(header.get_field_index(name) >= 0 for name in _HEADER)
        is_lossless = named or pa.types.is_null(header)
    else:
        is_lossless = pa.types.is_map(kind) or pa.types.is_null(kind)
    if not is_lossless:
        raise pa.ArrowTypeError("it is not a list of structs of key and value")
    return column.cast(HEADERS_TYPE)


def with_headers(table: pa.Table, added: Sequence[tuple[str, str]]) -> pa.Table:
    """Return the table with these headers appended to those of every row."""
    mark = pa.array([{"key": key, "value": value.encode()} for key, value in added], HEADERS_TYPE.value_type)
    count, each = table.num_rows, len(added)
    has_own = "headers" in table.column_names
    own = headers_column(table.column("headers")) if has_own else None
    if own is None:
        own = pa.nulls(count, HEADERS_TYPE)
    flat = own.flatten()  # the headers of rows that have some, in order
    lengths = pc.list_value_length(own).fill_null(0).to_numpy()
    ends = np.cumsum(lengths + each)
    order = np.empty(len(flat) + count * each, np.int64)
    is_mark = np.zeros(len(order), bool)
    for number in range(each):
        place = ends - each + number
        order[place] = len(flat) + number
        is_mark[place] = True
    order[~is_mark] = np.arange(len(flat))
    offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
    values = pa.concat_arrays([flat, mark]).take(pa.array(order))
    column = pa.ListArray.from_arrays(offsets, values, type=HEADERS_TYPE)
    without = table.drop_columns(["headers"]) if has_own else table
    return without.append_column("headers", column)


def _one_array(column: Column) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _now() -> int:
    return time.time_ns() // 1_000_000
