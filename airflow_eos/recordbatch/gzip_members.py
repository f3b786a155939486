"""gzip (RFC 1952) of one or several members, read as the broker and the Java client read it.

``java.util.zip.GZIPInputStream`` reads member after member. After the first one, bytes that are not the
header of a member end the data: padding is ignored. After a header, damage is an error. librdkafka ignores
everything after the first member.
"""

from __future__ import annotations

import struct
import zlib

from airflow_eos.recordbatch.limits import OverBudget

_MAGIC = b"\x1f\x8b\x08"  # the last byte: deflate, the only method there is
_FIXED_HEADER = 10
_HEADER_CRC, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16
_TRAILER = struct.Struct("<II")  # CRC-32 and size, modulo 2^32, of what was compressed
# zlib copies the input that it does not consume. So later members are fed in pieces that start small and
# double: the work stays proportional to the data, however many members there are.
_FIRST_PIECE = 256
_LAST_PIECE = 1 << 20


def decompress_members(data: bytes, budget: int) -> bytes:
    """Return the content of all members.

    :param budget: maximum size decompressed, in bytes; at most one more is allocated.
    :raises OverBudget: it is larger.
    :raises ValueError: the first header, or the data after any header, is damaged or truncated.
    :raises zlib.error: the same, of deflate data.
    """
    view = memoryview(data)
    start = _deflate_start(data, 0)
    if start is None:
        raise ValueError("gzip data cannot be decompressed: it does not begin with a header")
    parts: list[bytes] = []
    left = budget
    while start is not None:
        member, end = _inflated(view, start, left, _FIRST_PIECE if parts else len(data))
        left -= len(member)
        if left < 0:
            raise OverBudget(budget)
        if len(data) < end + _TRAILER.size:
            raise ValueError("gzip data is cut off")
        if _TRAILER.unpack_from(view, end) != (zlib.crc32(member), len(member) & 0xFFFFFFFF):
            raise ValueError("gzip data has a member with a wrong checksum or size")
        parts.append(member)
        start = _deflate_start(data, end + _TRAILER.size)
    return b"".join(parts)


def _inflated(view: memoryview, start: int, left: int, piece: int) -> tuple[bytes, int]:
    """Return the content of one member, at most ``left`` + 1 bytes, and the end of its deflate data.

    :param piece: bytes that zlib gets first.
    """
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    parts: list[bytes] = []
    size, at = 0, start
    while not inflate.eof and size <= left:
        if at == len(view):
            raise ValueError("gzip data is cut off")
        chunk = view[at : at + piece]
        part = inflate.decompress(chunk, left + 1 - size)
        size += len(part)
        parts.append(part)
        at += len(chunk)
        piece = min(2 * piece, _LAST_PIECE)
    return b"".join(parts), at - len(inflate.unused_data)


def _deflate_start(data: bytes, at: int) -> int | None:
    """Return the start of the deflate data of the member at this position; None if it has no header."""
    if data[at : at + len(_MAGIC)] != _MAGIC or len(data) < at + _FIXED_HEADER:
        return None
    flags = data[at + len(_MAGIC)]
    end = at + _FIXED_HEADER
    if flags & _EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            zero = data.find(b"\0", end)
            if zero < 0:
                return None
            end = zero + 1
    if flags & _HEADER_CRC:
        crc = zlib.crc32(memoryview(data)[at:end]) & 0xFFFF
        if crc != int.from_bytes(data[end : end + 2], "little"):
            return None
        end += 2
    return end if end <= len(data) else None
