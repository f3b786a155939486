"""Converts the result of an Arrow process, a data frame of several libraries, to a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import ProcessFailed

_LARGE = {
    pa.string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


def returned_table(result: Any) -> pa.Table | None:
    """Return the result of an Arrow process as a table, None for no rows; raises ProcessFailed."""
    if result is None or isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    if type(result).__module__.split(".")[0] == "pandas" and hasattr(result, "columns"):
        return pa.Table.from_pandas(result, preserve_index=False)
    if hasattr(result, "__arrow_c_stream__"):
        return pa.table(result)
    raise ProcessFailed(
        f"an Arrow process returned {type(result).__name__}; it must return a pyarrow RecordBatch or Table, "
        "a pandas or polars data frame, or None"
    )


def own_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column that may be encoded by a dictionary or by views; both become large types.

    A few bytes of either may stand for many. Arrow casts views to 32-bit offsets, which overflow silently.
    Numbers and times are copied: they may be in a NumPy array that the function fills again in its next call,
    before they are written.
    """
    kind = column.type
    if pa.types.is_primitive(kind):
        return pa.chunked_array([pa.concat_arrays([part, part[:0]]) for part in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        values = _LARGE.get(kind.value_type, kind.value_type)
        return column.cast(pa.dictionary(kind.index_type, values)).cast(values)
    return column.cast(_LARGE[kind]) if kind in (pa.string_view(), pa.binary_view()) else column


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's three text types."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's three types for bytes of any length."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
