"""The sink contract for Arrow results: columns and rules of :mod:`airflow_eos.spark.frame_contract`.

It accepts wider Arrow types of the same meaning: large and view strings, dictionaries, any integer width that
fits a partition number, any timestamp unit with a time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import ProcessFailed, RecordRefused
from airflow_eos.model.arrow_result import is_bytes, is_text, own_values, returned_table
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE, SMALL, listed_headers
from airflow_eos.spark.frame_contract import check_names

_IN_A_MILLISECOND = {"us": 1_000, "ns": 1_000_000}


def sink_rows(result: Any, sink_topic: str | None, source_topics: Sequence[str]) -> pa.Table | None:
    """Return the result of an Arrow process in the sealer's types; None if there are no rows.

    :param result: a pyarrow record batch or table, a pandas or polars data frame, or None.
    :raises ProcessFailed: names column, type and next step.
    :raises RecordRefused: no record of Kafka holds a value.
    """
    table = returned_table(result)
    if table is None:
        return None
    names = table.column_names
    columns: dict[str, pa.ChunkedArray] = {}
    for name, convert in _COLUMNS.items():
        if name not in names:
            continue
        if names.count(name) > 1:
            raise ProcessFailed(f"process returned two columns named {name!r}; drop one")
        columns[name] = convert(name, own_values(table.column(name)))
    check_names(columns, names, sink_topic)
    if "topic" in columns and sink_topic is not None:
        columns["topic"] = _routed(columns["topic"], sink_topic, source_topics)
    return pa.table(columns) if table.num_rows else None


def _routed(topic: pa.ChunkedArray, sink_topic: str, source_topics: Sequence[str]) -> pa.ChunkedArray:
    """Replace source topics and missing topics by the sink topic."""
    others = pa.array([t for t in source_topics if t != sink_topic], pa.string())
    unrouted = pc.or_kleene(pc.is_null(topic), pc.is_in(topic, value_set=others))
    return pc.if_else(unrouted, sink_topic, topic)


def _bytes(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    has_bytes = is_text(kind) or is_bytes(kind) or pa.types.is_fixed_size_binary(kind)
    if not has_bytes and not pa.types.is_null(kind):
        raise _wrong(name, kind, "make it string or binary")
    return column.cast(pa.binary() if column.nbytes <= SMALL else pa.large_binary())


def _text(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if not is_text(kind) and not pa.types.is_null(kind):
        raise _wrong(name, kind, "make it string")
    return column.cast(pa.string())


def _partition(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise _wrong(name, kind, "make it int32")
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"process returned column {name!r} with no partition number: {error}") from None


def _headers(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return listed_headers(column)
    except pa.ArrowInvalid as error:
        raise RecordRefused(f"process returned a value in column {name!r} that is none: {error}") from None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise _wrong(name, column.type, f"make it {HEADERS_TYPE}") from None


def _milliseconds(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        raise _wrong(name, kind, "make it a timestamp with a time zone")
    if kind.unit in _IN_A_MILLISECOND:
        # Round down; Arrow's own function gives wrong times near the limits of 64 bits.
        value, per = column.cast(pa.int64()), _IN_A_MILLISECOND[kind.unit]
        whole = pc.divide(value, per)
        return pc.subtract(whole, pc.less(value, pc.multiply(whole, per)).cast(pa.int64()))
    return column.cast(pa.timestamp("ms", kind.tz)).cast(pa.int64())


def _wrong(name: str, kind: pa.DataType, wanted: str) -> ProcessFailed:
    return ProcessFailed(f"process returned column {name!r} as {kind}; {wanted}, or drop the column")


_COLUMNS: Mapping[str, Callable[[str, pa.ChunkedArray], pa.ChunkedArray]] = {
    "value": _bytes,
    "key": _bytes,
    "topic": _text,
    "partition": _partition,
    "headers": _headers,
    "timestamp": _milliseconds,
}
