"""Zigzag varints of the Kafka record format, whole columns at a time.

Kafka writes lengths, deltas and counts of magic v2 records as zigzag varints (KIP-98; the same encoding as
Protocol Buffers' ``sint32`` and ``sint64``): seven bits a byte, least significant first, the high bit set on
every byte but the last. One value takes 1 to 10 bytes; lengths and deltas of real logs nearly always take 1
or 2, so that case is the fast one here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]

CONTINUED = 0x80
"""Bit that is set on every byte of a varint but the last."""

_MORE = np.uint64(CONTINUED)
_SEVEN = np.uint64(0x7F)
_MAX_BYTES = 10
_INT32_BITS = 28  # of a varint's bytes but the last
_WORD = 8  # bytes of ``low``


class PackedVarints(NamedTuple):
    """Encoded varints of a column, ready to be laid into byte rows.

    ``low`` holds the first eight bytes of each varint, little endian; ``high`` the ninth and tenth, or
    ``None`` when no varint is that long; ``width`` the number of bytes of each varint, one ``int`` when all
    are equally wide.
    """

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64] | None
    width: Int64s | int

    @property
    def max_width(self) -> int:
        """Bytes of the widest varint of the column."""
        if isinstance(self.width, int):
            return self.width
        return int(self.width.max())


def zigzag(values: Int64s) -> npt.NDArray[np.uint64]:
    """Map signed to unsigned so that small magnitudes get small numbers: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((values << np.int64(1)) ^ (values >> np.int64(63))).view(np.uint64)


def pack_varints(values: Int64s) -> PackedVarints:
    """Encode a column."""
    unsigned = zigzag(values)
    largest = int(unsigned.max()) if len(unsigned) else 0
    if largest < 1 << 7:
        return PackedVarints(unsigned, None, 1)
    if largest < 1 << 14:
        return _pack_two(unsigned)
    return _pack_many(unsigned, widest=-(-largest.bit_length() // 7))


def _pack_two(unsigned: npt.NDArray[np.uint64]) -> PackedVarints:
    long = unsigned >= _MORE
    packed = (unsigned & _SEVEN) | ((unsigned >> np.uint64(7)) << np.uint64(8))
    packed |= long.astype(np.uint64) << np.uint64(7)
    return PackedVarints(packed, None, 1 + long.astype(np.int64))


def _pack_many(unsigned: npt.NDArray[np.uint64], widest: int) -> PackedVarints:
    low = unsigned & _SEVEN
    high = np.zeros_like(unsigned) if widest > _WORD else None
    width = np.ones(len(unsigned), np.int64)
    for index in range(1, widest):
        rest = unsigned >> np.uint64(7 * index)
        continued = rest != 0
        width += continued
        word, previous, at, before = low, low, 8 * index, 8 * (index - 1)
        if index >= _WORD:
            assert high is not None
            word, at = high, at - 64
            if index > _WORD:
                previous, before = high, before - 64
        previous |= (continued.astype(np.uint64) << np.uint64(7)) << np.uint64(before)
        word |= (rest & _SEVEN) << np.uint64(at)
    return PackedVarints(low, high, width)


def varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode one varint of an int32, without zigzag: its value, and the position after it.

    :raises IndexError: it runs over the end
    :raises ValueError: it is longer than five bytes
    """
    value = shift = 0
    while (byte := data[at]) >= CONTINUED:
        if shift == _INT32_BITS:
            raise ValueError("a length is longer than an int32")
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def read_varints(buffer: UInt8s, at: Int64s) -> tuple[Int64s, Int64s]:
    """Decode one varint at each position: the values, and the positions after them.

    :param at: positions, each the first byte of a varint
    :raises IndexError: a varint runs over the end of the buffer
    :raises ValueError: a varint is longer than ten bytes
    """
    first = buffer[at]
    more = first >> 7
    if not more.any():
        return _signed(first, np.int8), at + 1
    behind = at + 1
    second = buffer[behind if behind[-1] < len(buffer) else np.minimum(behind, len(buffer) - 1)]
    low = (first & 0x7F) | (((second & 0x7F) * more).astype(np.uint16) << 7)
    behind += more
    more &= second >> 7
    if not more.any():
        return _signed(low, np.int16), behind
    values = low.astype(np.uint64)
    _read_rest(buffer, values, behind, np.flatnonzero(more))
    return _signed(values, np.int64), behind


def _signed(unsigned: npt.NDArray[Any], kind: type[np.signedinteger[Any]]) -> Int64s:
    """Undo :func:`zigzag`."""
    return ((unsigned >> 1).view(kind) ^ -(unsigned & 1).view(kind)).astype(np.int64, copy=False)


def _read_rest(
    buffer: UInt8s, values: npt.NDArray[np.uint64], behind: Int64s, active: npt.NDArray[np.intp]
) -> None:
    """Add third and later bytes of the rows in ``active``, in place."""
    for index in range(2, _MAX_BYTES):
        byte = buffer[behind[active]]
        values[active] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        behind[active] += 1
        active = active[byte >= CONTINUED]
        if not len(active):
            return
    raise ValueError("a varint is longer than ten bytes")
