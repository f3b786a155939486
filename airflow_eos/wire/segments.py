"""Gathers byte strings from many places into one buffer: the inner loop of encoding and decoding.

Arrow's ``take`` on a binary array copies byte strings in C++ at memory speed. A binary array is only a buffer
and the offsets at which strings begin, so *any* cut of a buffer can be presented as one: the pieces wanted
are taken, the bytes between them are strings that nobody takes. Records are written and read by this one
trick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.wire.varint import Int64s, PackedVarints

Int32s = npt.NDArray[np.int32]


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


class VarintRows:
    """Rows of varints of equal stride, each row cut into ``groups`` of adjoining varints.

    Varints are laid from left to right and always eight bytes wide: what is too much is overwritten by the
    next one, or lies in the gap behind the group. So no masks and no compaction are needed.

    ::

        row = | length attributes ts-delta offset-delta key-length | gap | value-length | gap |
                `------------------ group 0 -------------------'         `- group 1 --'
    """

    def __init__(self, rows: int, groups: Sequence[Sequence[PackedVarints]]) -> None:
        self.rows = rows
        self.groups = len(groups)
        starts: list[int] = []
        stride = 0
        for group in groups:
            starts.append(stride)
            # Eight bytes are written at the last varint's place whatever its width.
            stride += sum(field.max_width for field in group) + 8
        self.data = np.zeros(rows * stride + 8, np.uint8)
        self.offsets = np.empty(2 * self.groups * rows + 1, np.int64)
        base = np.arange(rows, dtype=np.int64) * stride
        words = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))
        for index, (group, start) in enumerate(zip(groups, starts, strict=True)):
            at = base + start
            self.offsets[2 * index : -1 : 2 * self.groups] = at
            for field in group:
                words[at] = field.low
                if field.high is not None:
                    words[at + 8] = field.high
                at = at + field.width
            self.offsets[2 * index + 1 : -1 : 2 * self.groups] = at
        self.offsets[-1] = len(self.data)

    @property
    def segments(self) -> Segments:
        """All groups and gaps; group ``g`` of row ``r`` is number ``2 * (groups * r + g)``."""
        return Segments(self.data, self.offsets)


class Interleaved(NamedTuple):
    """Rows written one after the other: row ``i`` is ``data[offsets[i] : offsets[i + 1]]``."""

    data: pa.Buffer
    offsets: Int32s


def interleave(
    rows: VarintRows, columns: Sequence[Segments | bytes], order: Int64s | None = None
) -> Interleaved:
    """Write group 0, column 0, group 1, column 1, ... of every row, row after row.

    :param rows: varints of each row *in output order*
    :param columns: strings of each row in input order, or one string that is the same in every row
    :param order: input row of each output row; ``None`` when they are the same
    :raises OverflowError: the sources hold 2 GB or more: pass fewer rows
    """
    count = rows.rows
    data = [rows.data]
    cuts = [rows.offsets]
    filled = len(rows.data)
    position = np.arange(count, dtype=np.int32)
    source = position if order is None else order.astype(np.int32)
    width = sum(1 for _ in range(rows.groups)) + len(columns)
    picks = np.empty((count, width), np.int32)
    segment = 2 * rows.groups * count
    slot = 0
    for index in range(max(rows.groups, len(columns))):
        if index < rows.groups:
            picks[:, slot] = position * np.int32(2 * rows.groups) + np.int32(2 * index)
            slot += 1
        if index < len(columns):
            column = columns[index]
            if isinstance(column, bytes):
                data.append(np.frombuffer(column, np.uint8))
                cuts.append(np.array([filled + len(column)]))
                picks[:, slot] = segment
                filled += len(column)
                segment += 1
            else:
                first, last = int(column.offsets[0]), int(column.offsets[-1])
                data.append(column.data[first:last])
                cuts.append(column.offsets[1:].astype(np.int64) + (filled - first))
                picks[:, slot] = source + np.int32(segment)
                filled += last - first
                segment += len(column.offsets) - 1
            slot += 1
    if filled >= 1 << 31:
        raise OverflowError(f"{filled} bytes do not fit 32-bit offsets")
    pool = binary_array(np.concatenate(data), np.concatenate(cuts).astype(np.int32))
    taken = pool.take(pa.array(picks.ravel()))
    offsets = np.frombuffer(taken.buffers()[1], np.int32, count * width + 1)[::width]
    return Interleaved(taken.buffers()[2], offsets)
