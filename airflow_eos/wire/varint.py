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

_MORE = np.uint64(0x80)
_SEVEN = np.uint64(0x7F)
_MAX_BYTES = 10


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
    """Encode a column of int64.

    :param values: one-dimensional int64 array, may be empty
    """
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
    high = np.zeros_like(unsigned) if widest > 8 else None  # noqa: PLR2004 - eight bytes fit ``low``
    width = np.ones(len(unsigned), np.int64)
    for index in range(1, widest):
        rest = unsigned >> np.uint64(7 * index)
        continued = rest != 0
        width += continued
        word, previous, at, before = low, low, 8 * index, 8 * (index - 1)
        if index >= 8:  # noqa: PLR2004
            assert high is not None
            word, at = high, at - 64
            if index > 8:  # noqa: PLR2004
                previous, before = high, before - 64
        previous |= (continued.astype(np.uint64) << np.uint64(7)) << np.uint64(before)
        word |= (rest & _SEVEN) << np.uint64(at)
    return PackedVarints(low, high, width)


def varint_width(value: int) -> int:
    """Bytes of one zigzag varint."""
    unsigned = value << 1 if value >= 0 else ~(value << 1)
    return max(1, -(-unsigned.bit_length() // 7))


def read_varints(buffer: UInt8s, at: Int64s) -> tuple[Int64s, Int64s]:
    """Decode one varint at each position: the values, and the positions behind them.

    :param buffer: the bytes
    :param at: positions, each the first byte of a varint
    :raises IndexError: a varint runs over the end of the buffer
    :raises ValueError: a varint is longer than ten bytes
    """
    first = buffer[at]
    values = (first & 0x7F).astype(np.int64)
    behind = at + 1
    more = first >= 0x80  # noqa: PLR2004 - the continuation bit
    if more.any():
        _read_rest(buffer, values, behind, np.flatnonzero(more))
    return (values >> 1) & np.int64(0x7FFFFFFFFFFFFFFF) ^ -(values & 1), behind


def _read_rest(buffer: UInt8s, values: Int64s, behind: Int64s, active: npt.NDArray[Any]) -> None:
    """Add second and later bytes of the rows in ``active``, in place."""
    for index in range(1, _MAX_BYTES):
        everything = len(active) == len(values)
        byte = buffer[behind] if everything else buffer[behind[active]]
        seven = (byte & 0x7F).astype(np.int64) << np.int64(7 * index)
        if everything:
            values |= seven
            behind += 1
        else:
            values[active] |= seven
            behind[active] += 1
        more = byte >= 0x80  # noqa: PLR2004
        if not more.any():
            return
        active = active[more]
    raise ValueError("a varint is longer than ten bytes")
