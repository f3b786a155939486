"""Reads the fields of records, all records of a section at once.

See :mod:`airflow_eos.recordbatch.encode` for the layout, :mod:`airflow_eos.recordbatch.record_starts` for
finding records. Every position is checked against the end of its record, so that damaged data raises
ValueError or IndexError, and never reads elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.recordbatch.limits import HEADER_BYTES, OverBudget, TooManyHeaders
from airflow_eos.recordbatch.record_starts import record_starts
from airflow_eos.recordbatch.segments import binary_array
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE
from airflow_eos.recordbatch.varint import Int64s, UInt8s, read_varints, varint_at

Bools: TypeAlias = "npt.NDArray[np.bool_]"

_FEW_RECORDS = 64  # up to so many, a walk is faster than a round of array operations
_TEXTS = 65_536  # header keys converted to Python text at a time


class Frames(NamedTuple):
    """The fields before the key, one entry per record; positions are in the records section."""

    start: Int64s
    time_delta: Int64s
    offset_delta: Int64s
    key: Int64s  # position of the key's length
    end: Int64s  # position after the record

    def rows(self, first: int, last: int) -> Frames:
        """Records ``[first, last)``."""
        return Frames._make(column[first:last] for column in self)


def read_frames(buffer: UInt8s, count: int) -> Frames:
    """Frames of the ``count`` records that fill the buffer."""
    start = record_starts(buffer, count)
    length, at = read_varints(buffer, start)
    end = at + length
    time_delta, at = read_varints(buffer, at + 1)  # after the attributes, which have no meaning yet
    offset_delta, at = read_varints(buffer, at)
    return Frames(start, time_delta, offset_delta, at, end)


def read_strings(
    body: bytes | pa.Buffer, buffer: UInt8s, frames: Frames, max_headers: int | None, budget: int
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Keys, values and headers of these records, copied; ``None`` for headers when no record has any.

    :param body: the records section
    :param buffer: the same as an array
    :param max_headers: headers a record may have; ``None``: headers are not read
    :param budget: bytes of memory that all headers together may take
    :raises TooManyHeaders: a record has more
    :raises OverBudget: they take more
    """
    key_length, key_at = read_varints(buffer, frames.key)
    key_end = _end(key_length, key_at, frames.end)
    value_length, value_at = read_varints(buffer, key_end)
    value_end = _end(value_length, value_at, frames.end)
    if (value_end >= frames.end).any():
        raise ValueError("a record ends before its header count")
    headers = (
        None if max_headers is None else _headers(body, buffer, value_end, frames.end, max_headers, budget)
    )
    key, value = _key_and_value(
        body, (key_at, key_end, key_length < 0), (value_at, value_end, value_length < 0)
    )
    return key, value, headers


def _end(length: Int64s, at: Int64s, ends: Int64s) -> Int64s:
    """Position after strings of these lengths at these positions; negative is null, as Java reads it."""
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
    gathered = pc.take(pool, pa.array(picks), boundscheck=False)
    if not nulls:
        return gathered
    _, offsets, data = gathered.buffers()
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.BinaryArray.from_buffers(pa.binary(), len(picks), [validity, offsets, data], nulls)


def _headers(
    body: bytes | pa.Buffer, buffer: UInt8s, at: Int64s, ends: Int64s, max_headers: int, budget: int
) -> pa.Array | None:
    """Headers column, or ``None`` without any.

    Works in rounds: the first headers of all records, then the second ones, ... The few records with far more
    headers than the others are walked one by one.
    """
    if not buffer[at].any():
        if (at + 1 != ends).any():
            raise ValueError("a record is longer than its fields")
        return None
    counts, at = read_varints(buffer, at)
    if (counts < 0).any() or (counts > ends - at).any():
        raise ValueError("a record has an impossible number of headers")
    if int(counts.max()) > max_headers:
        raise TooManyHeaders(counts, max_headers)
    lists = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    total = int(lists[-1])
    if total * HEADER_BYTES > budget:
        raise OverBudget(budget, f"its {total} headers take")
    cuts = np.zeros(4 * total + 1, np.int32)
    null = np.zeros(total, np.bool_)
    active = np.flatnonzero(counts)
    turn = 0
    while len(active) > _FEW_RECORDS:
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
    data = buffer.tobytes() if len(active) else b""
    for record in active:
        low, high = int(lists[record]) + turn, int(lists[record + 1])
        walked, behind = _walk_headers(data, int(at[record]), int(ends[record]), high - low)
        rows = np.array(walked, np.int64).reshape(-1, 4)
        null[low:high] = rows[:, 3] < 0
        rows[:, 3] = np.maximum(rows[:, 3], rows[:, 2])
        cuts[4 * low : 4 * high] = rows.reshape(-1)
        at[record] = behind
    if (at != ends).any():
        raise ValueError("a record is longer than its fields")
    cuts[-1] = cuts[-2]
    pool = binary_array(body, cuts)
    first = np.arange(total, dtype=np.int32) * 4
    keys = _text(pool.take(pa.array(first)))
    values = _gather(pool, first + np.int32(2), null)
    fields = [HEADERS_TYPE.value_type.field("key"), HEADERS_TYPE.value_type.field("value")]
    flat = pa.StructArray.from_arrays([keys, values], fields=fields)
    # Null for records without headers, whatever others have, as in batches without headers.
    return pa.ListArray.from_arrays(
        pa.array(lists.astype(np.int32)), flat, type=HEADERS_TYPE, mask=pa.array(counts == 0)
    )


def _walk_headers(data: bytes, at: int, end: int, count: int) -> tuple[list[int], int]:
    """Key begin, key end, value begin, value end (-1: null) of each header, flat; and the position after."""
    cuts: list[int] = []
    for _ in range(count):
        length, at = _length(data, at)
        if length < 0:
            raise ValueError("a header has no key")
        behind = at + length
        length, value_at = _length(data, behind)
        if length < 0:
            cuts += (at, behind, value_at, -1)
            at = value_at
        else:
            cuts += (at, behind, value_at, value_at + length)
            at = value_at + length
        if at > end:
            raise ValueError("a header is longer than its record")
    return cuts, at


def _length(data: bytes, at: int) -> tuple[int, int]:
    """One zigzag varint, and the position after it."""
    value, behind = varint_at(data, at)
    return (value >> 1) ^ -(value & 1), behind


def _text(keys: pa.Array) -> pa.Array:
    """Header keys as text; bytes that are not UTF-8 are replaced, as Java does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        parts = (keys.slice(first, _TEXTS).to_pylist() for first in range(0, len(keys), _TEXTS))
        return pa.concat_arrays(
            [pa.array([key.decode("utf-8", "replace") for key in part], pa.string()) for part in parts]
        )
