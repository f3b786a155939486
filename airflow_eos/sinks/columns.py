"""The sink contract for tables: checks names, types and nulls of rows, and converts them to the columns.

Only safe widening converts a type: smaller integers, ``float32``, decimals of fewer digits, coarser times,
other encodings of text and bytes. Nothing is rounded, truncated or reinterpreted as another type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import ProcessFailed, RecordRefused, SendError
from airflow_eos.model.arrow_result import is_bytes, is_text, own_values, returned_table
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.model.table import DataFileMade

_FINER = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970-01-01."""


def check_types(given: pa.Schema, wanted: pa.Schema, name: str) -> None:
    """Compare the columns of a result with those of a table.

    :raises ProcessFailed: naming column, both types and the next step.
    """
    columns = given.names
    if not columns:
        raise ProcessFailed(
            f"process returned no columns, so that nobody knows how many rows; return columns of {name}, "
            "without rows to write nothing (an Arrow function: or None)"
        )
    for column in columns:
        if columns.count(column) > 1:
            raise ProcessFailed(f"process returned two columns named {column!r}; drop one")
        if column not in wanted.names:
            hint = did_you_mean(column, wanted.names)
            raise ProcessFailed(
                f"process returned column {column!r}, which {name} does not have{hint}; its columns are "
                f"{', '.join(wanted.names)}. Drop the column, or add it to the table"
            )
    for field in wanted:
        if field.name not in columns:
            if not field.nullable:
                raise ProcessFailed(
                    f"process returned no column {field.name!r}, which {name} requires; it returned "
                    f"{', '.join(columns) or 'none'}"
                )
            continue
        kind = given.field(field.name).type
        if not widens(kind, field.type):
            raise ProcessFailed(
                f"process returned column {field.name!r} as {kind}; {name} has {field.type}, and the one "
                "does not widen to the other: cast it, so that what a cast does to a value is your choice"
            )


def table_columns(result: Any, wanted: pa.Schema, name: str) -> pa.Table | None:
    """Return what a process returned in a table's columns and types; None when there are no rows.

    :param result: a pyarrow record batch or table, a pandas or polars data frame, or None.
    :param wanted: the table's columns.
    :raises ProcessFailed: see :func:`check_types`.
    :raises RecordRefused: a value is missing where the table requires one, or does not fit.
    """
    table = returned_table(result)
    if table is None:
        return None
    check_types(table.schema, wanted, name)
    if not table.num_rows:
        return None
    return pa.table([_column(table, field, name) for field in wanted], schema=wanted)


def _column(table: pa.Table, field: pa.Field, name: str) -> pa.ChunkedArray:
    optional = _optional(field.type)
    if field.name not in table.column_names:
        return _with_required(pa.chunked_array([pa.nulls(table.num_rows, optional)]), field.type)
    column = own_values(table.column(field.name))
    try:
        column = _cast(column, optional)
        # Spark casts bytes to text unseen, and readers refuse a file with text that is not UTF-8.
        column.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        way = "; decode its bytes in process, or make the column binary" if "UTF8" in str(error) else ""
        raise RecordRefused(
            f"process returned a value in column {field.name!r} that {name} cannot hold as {field.type}: "
            f"{error}{way}"
        ) from None
    missing = _missing(column, field)
    if missing:
        raise RecordRefused(
            f"process returned {missing[1]} rows without a value in {missing[0]!r}, which {name} requires; "
            "fill it, or leave the rows out"
        )
    return _with_required(column, field.type)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if isinstance(kind, pa.BaseExtensionType) and column.type != kind:  # such as pa.uuid()
        column = column.cast(kind.storage_type)
    return column if column.type == kind else column.cast(kind)


def _optional(kind: pa.DataType) -> pa.DataType:
    """Return a type with all fields nullable: missing values are checked after the cast."""
    if pa.types.is_struct(kind):
        return pa.struct([(inner.name, _optional(inner.type)) for inner in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _optional(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_optional(kind.value_type))
    return pa.list_(_optional(kind.value_type)) if pa.types.is_list(kind) else kind


def _with_required(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in a type with required fields, of which no value is missing."""
    if column.type != kind and pa.types.is_nested(kind):
        shown = [_without_nulls(part, pa.field("", kind)) for part in column.chunks]
        column = pa.chunked_array(shown, column.type)
    return _cast(column, kind)


def _without_nulls(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values without nulls in required fields, where nulls around them hide any value.

    Neither Arrow's cast nor its Parquet writer takes a null there, and Spark writes one.
    """
    kind = field.type
    nulls = values.is_null() if field.nullable else None
    if pa.types.is_struct(kind):
        parts = [_without_nulls(values.field(number), inner) for number, inner in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=nulls)
    if pa.types.is_nested(kind):
        values = values.take(np.arange(len(values)))  # Arrow takes no mask beside offsets of a slice
        given = {"type": values.type, "mask": nulls}
        if pa.types.is_map(kind):
            items = _without_nulls(values.items, kind.item_field)
            return pa.MapArray.from_arrays(values.offsets, values.keys, items, **given)
        parts = _without_nulls(values.values, kind.value_field)
        return type(values).from_arrays(values.offsets, parts, **given)
    if field.nullable or not values.null_count:
        return values
    return pa.Array.from_buffers(values.type, len(values), [None, *values.buffers()[1:]], 0, values.offset)


def refuse_long_texts(values: pa.ChunkedArray, most: int, column: str, declared: str, name: str) -> None:
    """Raise RecordRefused for texts with more characters than the declared length of a column."""
    longest = pc.max(pc.utf8_length(values)).as_py() or 0
    if longest > most:
        raise RecordRefused(
            f"process returned a text of {longest} characters in column {column!r}, which {name} has as "
            f"{declared}: shorten it, or widen the column"
        )


def refuse_far_times(columns: pa.Table, name: str) -> None:
    """Raise RecordRefused for times outside the years 1 to 9999, the range of Python's types."""
    for column, values in zip(columns.column_names, columns.columns, strict=True):
        if has_far_time(values):
            raise RecordRefused(
                f"process returned a time outside of the years 1 to 9999 in {column!r}, which is not written "
                f"to {name}; return null, or check the unit that it was made from"
            )


def check_row_count(files: Sequence[DataFileMade], rows: pa.Table, name: str) -> None:
    """Raise SendError unless the data files hold all rows that were to be written; nothing is committed."""
    written = sum(file.rows for file in files)
    if written != rows.num_rows:
        raise SendError(f"{name}: data files hold {written} rows of {rows.num_rows}; none is committed")


def has_far_time(values: pa.ChunkedArray | pa.Array, last_day: int = _LAST_DAY) -> bool:
    """Return whether a date or timestamp, also a nested one, is outside the years 1 to 9999.

    :param last_day: the last valid day, for values that are not nested; days since 1970-01-01.
    """
    kind = values.type
    if pa.types.is_nested(kind):
        return any(has_far_time(part) for part, _ in _parts(values, kind))
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return False
    bounds = pc.min_max(values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())).as_py()
    if bounds["min"] is None:
        return False
    in_a_day = _DAY[str(kind.unit) if hasattr(kind, "unit") else "D"]
    return not _FIRST_DAY <= bounds["min"] // in_a_day <= bounds["max"] // in_a_day <= last_day


def _missing(column: pa.ChunkedArray | pa.Array, field: pa.Field, path: str = "") -> tuple[str, int] | None:
    """Return the first column or nested field that lacks a required value, and how many rows do."""
    place = f"{path}{field.name}"
    if not field.nullable and column.null_count:
        return place, column.null_count
    kind = field.type
    if not pa.types.is_nested(kind) or not len(column):
        return None
    for part, inner in _parts(column.filter(pc.is_valid(column)), kind):
        missing = _missing(part, inner, f"{place}.")
        if missing:
            return missing
    return None


def _parts(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> Iterator[tuple[pa.Array, pa.Field]]:
    """Yield the child arrays of nested values with their fields, without items behind nulls."""
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if pa.types.is_struct(kind):
            yield from zip(chunk.flatten(), kind, strict=True)
        elif pa.types.is_map(kind):
            pairs = chunk.filter(chunk.is_valid())  # a copy: a slice has the pairs of all rows
            yield from ((pairs.keys, kind.key_field), (pairs.items, kind.item_field))
        else:
            yield chunk.flatten(), kind.value_field


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:  # noqa: C901, PLR0911, PLR0912 - one rule per kind of type
    """Return whether every value of one type can be represented unchanged in another one, or the same."""
    types = pa.types
    if types.is_dictionary(given):
        return widens(given.value_type, wanted)
    if given == wanted or types.is_null(given):
        return True
    if isinstance(wanted, pa.BaseExtensionType):
        return widens(given, wanted.storage_type)
    if types.is_fixed_size_binary(wanted):  # the cast refuses another length
        return is_bytes(given)
    if is_text(given) or is_bytes(given):
        return (is_text(given) and is_text(wanted)) or (is_bytes(given) and is_bytes(wanted))
    if types.is_integer(given) and types.is_integer(wanted):
        unsigned = types.is_unsigned_integer(given)
        return given.bit_width < wanted.bit_width or (given.bit_width == wanted.bit_width and not unsigned)
    if types.is_floating(given) and types.is_floating(wanted):
        return given.bit_width <= wanted.bit_width
    if types.is_decimal(given) and types.is_decimal(wanted):
        return given.scale == wanted.scale and given.precision <= wanted.precision
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None) and _FINER[given.unit] <= _FINER[wanted.unit]
    if types.is_time(given) and types.is_time(wanted):
        # Spark has nanoseconds for every precision of its TIME; the cast refuses a value that it would round.
        return _FINER[given.unit] <= _FINER[wanted.unit] or wanted.unit == "us"
    if types.is_map(given) and types.is_map(wanted):
        return widens(given.key_type, wanted.key_type) and widens(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return widens(given.value_type, wanted.value_type)
    if types.is_struct(given) and types.is_struct(wanted):
        same = [inner.name for inner in given] == [inner.name for inner in wanted]
        return same and all(widens(a.type, b.type) for a, b in zip(given, wanted, strict=True))
    return False


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
