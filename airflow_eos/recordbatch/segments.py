"""Gathers byte strings from many places into one buffer: the inner loop of encoding and decoding.

Arrow's ``take`` on a binary array copies byte strings in C++ at memory speed. A binary array is only a buffer
and the offsets at which strings begin, so *any* cut of a buffer can be presented as one: the wanted pieces
are taken, the bytes between them are strings that are not. Records are written and read in this way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.recordbatch.varint import Int64s, PackedVarints

Int32s = npt.NDArray[np.int32]

_WORD = 8
_INT32_MAX = (1 << 31) - 1


class Segments(NamedTuple):
    """Byte strings: ``data[offsets[i] : offsets[i + 1]]`` is string ``i``; ``offsets`` has one entry more."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32 | np.int64]


def segments_of(array: pa.Array) -> Segments:
    """Buffers of a ``binary`` or ``large_binary`` array, not copied; nulls keep whatever length they have."""
    kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    if not len(array):
        return Segments(np.empty(0, np.uint8), np.zeros(1, np.int32))
    cuts = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind().itemsize)
    if data is None or not data.size:
        return Segments(np.empty(0, np.uint8), cuts)
    return Segments(np.frombuffer(data, np.uint8), cuts)


def binary_array(data: npt.NDArray[np.uint8] | pa.Buffer | bytes, offsets: Int32s) -> pa.Array:
    """Arrow binary array over a buffer and int32 offsets, without copying."""
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


class Interleaved(NamedTuple):
    """Rows written one after the other: row ``i`` is ``data[offsets[i] : offsets[i + 1]]``."""

    data: pa.Buffer
    offsets: Int32s


class _Scratch(threading.local):
    """Memory that calls reuse: fresh pages would cost more than the work done in them."""

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, size: int, kind: type) -> npt.NDArray[Any]:
        """Array of ``size`` elements with arbitrary content; kept for the next call unless it is large."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = np.empty(size + size // 4, kind)
            if kept.nbytes <= _SCRATCH_BYTES:
                self._kept[name] = kept
        return kept[:size]


_SCRATCH_BYTES = 64_000_000
_scratch = _Scratch()


def interleave(
    groups: Sequence[Sequence[PackedVarints]],
    columns: Sequence[Segments | bytes],
    order: Int64s | None = None,
) -> Interleaved:
    """Write varint group 0, column 0, varint group 1, column 1, ... of every row, row after row.

    :param groups: adjoining varints, *in output order*; the very first one holds a value for each row
    :param columns: strings of each row in input order, or one string that is the same in every row
    :param order: input row of each output row; ``None`` when they are the same
    :raises OverflowError: the sources hold 2 GB or more: pass fewer rows
    """
    rows = len(groups[0][0].low)
    strides = [sum(varint.max_width for varint in group) + _WORD for group in groups]
    stride = sum(strides)
    varint_bytes = rows * stride + _WORD
    texts = [_as_segments(column) for column in columns]
    total = varint_bytes + sum(len(text.data) for text in texts)
    if total > _INT32_MAX:
        raise OverflowError(f"{total} bytes do not fit 32-bit offsets")
    strings = 2 * len(groups) * rows
    pool = _scratch.array("pool", total, np.uint8)
    cuts = _scratch.array("cuts", strings + sum(len(text.offsets) - 1 for text in texts) + 1, np.int32)
    start = 0
    for index, group in enumerate(groups):
        begins, ends = (
            cuts[2 * index : strings : 2 * len(groups)],
            cuts[2 * index + 1 : strings : 2 * len(groups)],
        )
        _write_varints(
            pool[:varint_bytes], group, np.arange(start, rows * stride + start, stride), begins, ends
        )
        start += strides[index]
    cuts[strings] = varint_bytes

    width = len(groups) + len(columns)
    picks = _scratch.array("picks", rows * width, np.int32).reshape(rows, width)
    row = np.arange(rows, dtype=np.int32)
    source = row if order is None else order.astype(np.int32)
    slot, filled = 0, varint_bytes
    for index in range(max(len(groups), len(columns))):
        if index < len(groups):
            np.multiply(row, 2 * len(groups), out=picks[:, slot])
            picks[:, slot] += 2 * index
            slot += 1
        if index < len(columns):
            text = texts[index]
            count = len(text.offsets) - 1
            picks[:, slot] = strings if isinstance(columns[index], bytes) else source + np.int32(strings)
            np.add(text.offsets[1:], filled, out=cuts[strings + 1 : strings + count + 1], casting="unsafe")
            pool[filled : filled + len(text.data)] = text.data
            filled, strings, slot = filled + len(text.data), strings + count, slot + 1
    gathered = pc.take(binary_array(pool, cuts), pa.array(picks.ravel()), boundscheck=False)
    offsets = np.frombuffer(gathered.buffers()[1], np.int32, rows * width + 1)[::width]
    return Interleaved(gathered.buffers()[2], offsets)


def _as_segments(column: Segments | bytes) -> Segments:
    """Strings that begin at byte 0 of their data and fill it."""
    if isinstance(column, bytes):
        return Segments(np.frombuffer(column, np.uint8), np.array([0, len(column)]))
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    return Segments(column.data[first:last], column.offsets - first if first else column.offsets)


def _write_varints(
    pool: npt.NDArray[np.uint8],
    group: Sequence[PackedVarints],
    at: Int64s,
    begins: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
) -> None:
    """Write a group's varints of every row at positions ``at``, side by side.

    Each is written eight bytes wide: the excess is overwritten by the next varint, or is in the gap after the
    group. So no masks and no compaction are needed.
    """
    words = np.ndarray((len(pool) - _WORD + 1,), "<u8", pool, strides=(1,))
    begins[:] = at
    for varint in group:
        words[at] = varint.low
        if varint.high is not None:
            words[at + _WORD] = varint.high
        at = at + varint.width
    ends[:] = at
