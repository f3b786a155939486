"""Writes the records sections of record batches, magic v2 (KIP-98), from Arrow columns.

::

    record = length varint | attributes 1 (= 0) | timestamp delta varint | offset delta varint
             | key length varint (-1: null) | key | value length varint (-1: null) | value
             | header count varint | header*
    header = key length varint | key | value length varint (-1: null) | value

No Python object per record: varints are computed in columns, strings are copied by one Arrow ``take``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import RecordRefused
from airflow_eos.recordbatch.segments import Interleaved, Segments, interleave, segments_of
from airflow_eos.recordbatch.sink_columns import Strings, strings
from airflow_eos.recordbatch.varint import Int64s, PackedVarints, pack_varints

_NO_HEADERS = b"\x00"
_NULL = PackedVarints(np.array([1], np.uint64), None, 1)  # zigzag of -1


class RecordColumns(NamedTuple):
    """Columns to encode, row by row in input order; their types: :mod:`airflow_eos.recordbatch.sink_columns`.

    ``key`` is ``None`` when every key is null. ``tail`` holds header count and headers of each row as they
    are at the end of the record; ``None`` when no record has headers.
    """

    key: pa.Array | None
    value: pa.Array
    timestamp: Int64s
    tail: pa.Array | None

    def slice(self, start: int, end: int) -> RecordColumns:
        """Rows ``[start, end)``, not copied."""
        rows = end - start
        return RecordColumns(
            None if self.key is None else self.key.slice(start, rows),
            self.value.slice(start, rows),
            self.timestamp[start:end],
            None if self.tail is None else self.tail.slice(start, rows),
        )

    def take(self, rows: Int64s) -> RecordColumns:
        """The given rows, in that order."""
        indices = pa.array(rows)
        return RecordColumns(
            None if self.key is None else self.key.take(indices),
            self.value.take(indices),
            self.timestamp[rows],
            None if self.tail is None else self.tail.take(indices),
        )


def encode_records(columns: RecordColumns, cuts: Int64s, order: Int64s | None = None) -> Interleaved:
    """Records sections of consecutive batches.

    Offset deltas count from the first record of each batch, timestamp deltas from that record's timestamp.

    :param cuts: rows at which batches begin, in output order, and the number of rows at the end
    :param order: input row of each output row; ``None`` when they are the same
    :returns: buffer and offset of each record in it; batch ``i`` is ``data[offsets[cuts[i]] : offsets[cuts[i
        + 1]]]``
    :raises OverflowError: 2 GB or more; pass fewer rows
    """
    rows = len(columns.timestamp)
    starts = cuts[:-1]
    sizes = np.diff(cuts)
    timestamp = columns.timestamp if order is None else columns.timestamp[order]
    time_delta = pack_varints(timestamp - np.repeat(timestamp[starts], sizes))
    offset_delta = pack_varints(np.arange(rows, dtype=np.int64) - np.repeat(starts, sizes))
    key = None if columns.key is None else _ordered(strings(columns.key), order)
    value = _ordered(strings(columns.value), order)
    key_length = _NULL if key is None else pack_varints(key.lengths)
    value_length = pack_varints(value.lengths)

    size = np.maximum(value.lengths, 0)
    size += time_delta.width + offset_delta.width + key_length.width + value_length.width
    if key is not None:
        size += np.maximum(key.lengths, 0)
    tail: Segments | bytes = _NO_HEADERS
    if columns.tail is None:
        size += 2  # attributes, header count
    else:
        tail = segments_of(columns.tail)
        lengths = np.diff(tail.offsets)
        size += 1 + (lengths if order is None else lengths[order])
    length = pack_varints(size)
    # The attributes byte is 0, as is the byte behind a varint shorter than eight: one write for both.
    length = length._replace(width=length.width + 1)

    if key is None:
        return interleave(
            [[length, time_delta, offset_delta, key_length, value_length]], [value.segments, tail], order
        )
    lead = [[length, time_delta, offset_delta, key_length], [value_length]]
    return interleave(lead, [key.segments, value.segments, tail], order)


def _ordered(column: Strings, order: Int64s | None) -> Strings:
    return column if order is None else Strings(column.segments, column.lengths[order])


def encode_headers(headers: pa.Array) -> pa.Array:
    """Header count and headers of each row, as they are at the end of a record: a binary array.

    :param headers: ``list<struct<key: string, value: binary>>``; a null list is no headers, repeated keys are
        kept
    :raises RecordRefused: a header or its key is null, or a key is not UTF-8
    """
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = headers.flatten()
    keys, values = flat.field("key"), flat.field("value")
    if flat.null_count or keys.null_count:
        raise RecordRefused(
            "process returned a header without a key; Kafka allows a null value, but no null key"
        )
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raise RecordRefused(
            "process returned a header whose key is not UTF-8: header keys of Kafka are text, and some "
            "clients cannot read others; decode its bytes in process"
        ) from None
    keys = keys.cast(pa.binary())
    key, value = strings(keys), strings(values)
    lengths = [[pack_varints(key.lengths)], [pack_varints(value.lengths)]]
    encoded = interleave(lengths, [key.segments, value.segments])
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    per_row = Segments(np.frombuffer(encoded.data, np.uint8), encoded.offsets[ends])
    tails = interleave([[pack_varints(counts)]], [per_row])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(np.ascontiguousarray(tails.offsets)), tails.data]
    )
