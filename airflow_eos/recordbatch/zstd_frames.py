"""The structure of zstd frames (RFC 8878, 3.1): content size and end."""

from __future__ import annotations

import struct

_MAGIC = struct.pack("<I", 0xFD2FB528)
_SKIPPABLE = bytes.fromhex("2a4d18")  # after a byte from 0x50 to 0x5F
_SINGLE_SEGMENT, _CHECKSUM = 0x20, 0x04
_RLE_BLOCK = 1


def zstd_content_size(data: bytes) -> int | None:
    """Return the content size in a frame header (3.1.1.1), or ``None`` where the writer left it out."""
    (descriptor,) = struct.unpack_from("B", data, len(_MAGIC))
    if not data.startswith(_MAGIC):
        return None
    at, width = _size_field(descriptor)
    if not width:
        return None
    return int.from_bytes(data[at : at + width], "little") + (256 if descriptor >> 6 == 1 else 0)


def end_of_whole_frames(data: bytes) -> int | None:
    """Return the end of the last complete frame, if a truncated one follows it; else ``None``.

    The Java client ignores such a remainder. It refuses anything else after a frame, and a single frame that
    is truncated.
    """
    at = 0
    while at < len(data):
        if not _begins_frame(data, at):
            return None
        end = _frame_end(data, at)
        if end is None or end > len(data):
            return at or None
        at = end
    return None


def _begins_frame(data: bytes, at: int) -> bool:
    """Return whether a frame, or the truncated start of one, begins here."""
    magic = data[at : at + len(_MAGIC)]
    is_skippable = magic[0] & 0xF0 == 0x50 and _SKIPPABLE.startswith(magic[1:])  # noqa: PLR2004
    return _MAGIC.startswith(magic) or is_skippable


def _frame_end(data: bytes, at: int) -> int | None:
    """Return the end of the frame that begins here, perhaps beyond the data; None if it is unknown."""
    begin = at
    if len(data) < at + 5:
        return None
    if not data.startswith(_MAGIC, at):
        if len(data) < at + 8:
            return None
        return at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    descriptor = data[begin + 4]
    at = begin + sum(_size_field(descriptor))
    is_last = False
    while not is_last:
        if len(data) < at + 3:
            return None
        header = int.from_bytes(data[at : at + 3], "little")
        is_last = bool(header & 1)
        at += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
    return at + (4 if descriptor & _CHECKSUM else 0)


def _size_field(descriptor: int) -> tuple[int, int]:
    """Return the position of the content size in a frame, and its width in bytes; the blocks follow it."""
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    at = len(_MAGIC) + 1 + (0 if is_single else 1) + (0, 1, 2, 4)[descriptor & 3]
    return at, (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
