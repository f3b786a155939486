"""Reads the fields of records, all records of a section at once.

See :mod:`airflow_eos.recordbatch.encode` for the layout, :mod:`airflow_eos.recordbatch.record_starts` for
finding records. Every position is checked against the end of its record, so that damaged data raises and
never reads elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.recordbatch.columns import HEADERS_TYPE
from airflow_eos.recordbatch.record_starts import record_starts
from airflow_eos.recordbatch.segments import binary_array
from airflow_eos.recordbatch.varint import read_varints

if TYPE_CHECKING:
    from airflow_eos.recordbatch.varint import Int64s, UInt8s

Bools: TypeAlias = "npt.NDArray[np.bool_]"


class Frames(NamedTuple):
    """Fields in front of the key: one entry a record, positions in the records section."""

    start: Int64s
    time_delta: Int64s
    offset_delta: Int64s
    key: Int64s  # position of the key's length
    end: Int64s  # position behind the record

    def rows(self, first: int, last: int) -> Frames:
        """Records ``[first, last)``."""
        return Frames._make(column[first:last] for column in self)


class Strings(NamedTuple):
    """Keys, values and headers, copied out of the section; ``headers`` is ``None`` when no record has any."""

    key: pa.Array
    value: pa.Array
    headers: pa.Array | None


def read_frames(buffer: UInt8s, count: int) -> Frames:
    """Frames of the ``count`` records that fill the buffer.

    :raises ValueError: they do not fill it, or a field cannot be right
    :raises IndexError: a field runs over the end
    """
    start = record_starts(buffer, count)
    length, at = read_varints(buffer, start)
    end = at + length
    time_delta, at = read_varints(buffer, at + 1)  # behind the attributes, which have no meaning yet
    offset_delta, at = read_varints(buffer, at)
    return Frames(start, time_delta, offset_delta, at, end)


def read_strings(body: bytes | pa.Buffer, buffer: UInt8s, frames: Frames) -> Strings:
    """Keys, values and headers of these records.

    :param body: the records section
    :param buffer: the same as an array
    :raises ValueError: a length cannot be right
    :raises IndexError: a field runs over the end
    """
    key_length, key_at = read_varints(buffer, frames.key)
    key_end = _end(key_length, key_at, frames.end)
    value_length, value_at = read_varints(buffer, key_end)
    value_end = _end(value_length, value_at, frames.end)
    headers = _headers(body, buffer, value_end, frames.end)
    key, value = _key_and_value(
        body, (key_at, key_end, key_length < 0), (value_at, value_end, value_length < 0)
    )
    return Strings(key, value, headers)


def _end(length: Int64s, at: Int64s, ends: Int64s) -> Int64s:
    """Position behind strings of these lengths (-1: null) at these positions."""
    if len(length) and int(length.min()) < -1:
        raise ValueError(f"a key or value has length {int(length.min())}")
    behind = at + np.maximum(length, 0)
    if (behind > ends).any() or (behind < at).any():
        raise ValueError("a key or value is longer than its record")
    return behind


_Cut: TypeAlias = "tuple[Int64s, Int64s, Bools]"


def _key_and_value(body: bytes | pa.Buffer, key: _Cut, value: _Cut) -> tuple[pa.Array, pa.Array]:
    """Both columns, copied out of the body; a column without any non-null string costs nothing."""
    count = len(key[0])
    cuts = np.empty(4 * count + 1, np.int32)
    cuts[0:-1:4], cuts[1:-1:4], cuts[2:-1:4], cuts[3:-1:4] = key[0], key[1], value[0], value[1]
    cuts[-1] = cuts[-2] if count else 0
    pool = binary_array(body, cuts)
    first = np.arange(count, dtype=np.int32) * 4
    return _gather(pool, first, key[2]), _gather(pool, first + np.int32(2), value[2])


def _gather(pool: pa.Array, picks: npt.NDArray[np.int32], null: Bools) -> pa.Array:
    nulls = int(np.count_nonzero(null))
    if nulls == len(picks):
        return pa.nulls(nulls, pa.binary())
    taken = pc.take(pool, pa.array(picks), boundscheck=False)
    if not nulls:
        return taken
    _, offsets, data = taken.buffers()
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.BinaryArray.from_buffers(pa.binary(), len(picks), [validity, offsets, data], nulls)


def _headers(body: bytes | pa.Buffer, buffer: UInt8s, at: Int64s, ends: Int64s) -> pa.Array | None:
    """Headers column, or ``None`` without any. Rounds: first headers of all records, then second ones, ..."""
    if (at >= ends).any():
        raise ValueError("a record ends before its header count")
    if not buffer[at].any():
        if (at + 1 != ends).any():
            raise ValueError("a record is longer than its fields")
        return None
    counts, at = read_varints(buffer, at)
    if (counts < 0).any() or (counts > ends - at).any():
        raise ValueError("a record has an impossible number of headers")
    lists = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    total = int(lists[-1])
    cuts = np.zeros(4 * total + 1, np.int32)
    null = np.zeros(total, np.bool_)
    active = np.flatnonzero(counts)
    turn = 0
    while len(active):
        slot = lists[active] + turn
        limit = ends[active]
        key_length, key_at = read_varints(buffer, at[active])
        if int(key_length.min()) < 0:
            raise ValueError("a header has no key")
        key_end = _end(key_length, key_at, limit)
        value_length, value_at = read_varints(buffer, key_end)
        value_end = _end(value_length, value_at, limit)
        cuts[4 * slot], cuts[4 * slot + 1], cuts[4 * slot + 2], cuts[4 * slot + 3] = (
            key_at,
            key_end,
            value_at,
            value_end,
        )
        null[slot] = value_length < 0
        at[active] = value_end
        turn += 1
        active = active[counts[active] > turn]
    if (at != ends).any():
        raise ValueError("a record is longer than its fields")
    cuts[-1] = cuts[-2]
    pool = binary_array(body, cuts)
    first = np.arange(total, dtype=np.int32) * 4
    keys = _text(pool.take(pa.array(first)))
    values = _gather(pool, first + np.int32(2), null)
    fields = [HEADERS_TYPE.value_type.field("key"), HEADERS_TYPE.value_type.field("value")]
    flat = pa.StructArray.from_arrays([keys, values], fields=fields)
    return pa.ListArray.from_arrays(pa.array(lists.astype(np.int32)), flat, type=HEADERS_TYPE)


def _text(keys: pa.Array) -> pa.Array:
    """Header keys as text; bytes that are no UTF-8 are replaced, as Java does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
