"""Compressed record sections in unusual forms: joined, padded, with optional fields, damaged."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable

import lz4.frame
import pyarrow as pa

from airflow_eos.recordbatch.compression import Codec, Compressor

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"notes"  # the same in zstd and lz4


def xerial_blocks(data: bytes, block: int = 32_768) -> bytes:
    """Return length-prefixed raw snappy blocks, without the header."""
    codec = pa.Codec("snappy")
    parts = [codec.compress(data[at : at + block], asbytes=True) for at in range(0, len(data), block)]
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


def xerial(data: bytes, block: int = 32_768) -> bytes:
    """Return data in snappy-java's format: a header, then blocks."""
    return XERIAL_HEADER + xerial_blocks(data, block)


def gzip_with(data: bytes, flags: int, fields: bytes, crc: bytes = b"") -> bytes:
    """Return one gzip member with optional fields in its header."""
    header = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + fields
    if flags & 2 and not crc:
        crc = struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    body = zlib.compressobj(1, zlib.DEFLATED, -15)
    deflated = body.compress(data) + body.flush()
    return header + crc + deflated + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def joined(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that concatenates two halves, each compressed."""
    return lambda data: compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


def behind(compress: Callable[[bytes], bytes], padding: bytes) -> Callable[[bytes], bytes]:
    """Return a function that appends padding to the compressed data."""
    return lambda data: compress(data) + padding


def _zstd(data: bytes) -> bytes:
    return bytes(Compressor("zstd").compress(data))


def _lz4(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False))


def _snappy(data: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(data, asbytes=True))


TEXT = b"".join(b'{"id": %d}' % number for number in range(20_000))
_MEMBER = gzip.compress(b"")
ODD_FORMS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip, zero bytes behind": (Codec.GZIP, behind(gzip.compress, bytes(8))),
    "gzip, many zero bytes behind": (Codec.GZIP, behind(gzip.compress, bytes(70_000))),
    "gzip, words behind": (
        Codec.GZIP,
        behind(gzip.compress, b"these are no gzip member, but they are many words"),
    ),
    "gzip, a magic number behind": (Codec.GZIP, behind(gzip.compress, b"\x1f\x8b")),
    "gzip, half a header behind": (Codec.GZIP, behind(gzip.compress, _MEMBER[:9])),
    "gzip, another method behind": (Codec.GZIP, behind(gzip.compress, b"\x1f\x8b\x07" + bytes(40))),
    "gzip, two members": (Codec.GZIP, joined(gzip.compress)),
    "gzip, two members and zero bytes": (Codec.GZIP, behind(joined(gzip.compress), bytes(30))),
    "gzip, an empty member behind": (Codec.GZIP, behind(gzip.compress, _MEMBER)),
    "gzip, an empty member in front": (Codec.GZIP, lambda data: _MEMBER + gzip.compress(data)),
    "gzip, many empty members behind": (Codec.GZIP, behind(gzip.compress, _MEMBER * 1_000)),
    "gzip, a member with damaged data behind": (
        Codec.GZIP,
        behind(gzip.compress, _MEMBER[:10] + b"\xff" * 60),
    ),
    "gzip, a member with a wrong checksum": (
        Codec.GZIP,
        lambda data: gzip.compress(data)[:-8] + bytes(4) + gzip.compress(data)[-4:],
    ),
    "gzip, a wrong size": (Codec.GZIP, lambda data: gzip.compress(data)[:-4] + bytes(4)),
    "gzip, cut trailer": (Codec.GZIP, lambda data: gzip.compress(data)[:-1]),
    "gzip, name and comment": (
        Codec.GZIP,
        lambda data: gzip_with(data, 8 | 16, b"records.bin\0as it is\0"),
    ),
    "gzip, extra field": (Codec.GZIP, lambda data: gzip_with(data, 4, struct.pack("<H", 6) + b"AB\2\0xy")),
    "gzip, checksum of the header": (Codec.GZIP, lambda data: gzip_with(data, 2, b"")),
    "gzip, wrong checksum of the header": (Codec.GZIP, lambda data: gzip_with(data, 2, b"", b"\1\2")),
    "gzip, marked as text": (Codec.GZIP, lambda data: gzip_with(data, 1, b"")),
    "gzip, zlib data": (Codec.GZIP, zlib.compress),
    "gzip, deflate data": (Codec.GZIP, lambda data: gzip.compress(data)[10:-8]),
    "xerial, two streams": (Codec.SNAPPY, joined(xerial)),
    "xerial, three streams, one empty": (
        Codec.SNAPPY,
        lambda data: XERIAL_HEADER + joined(xerial)(data) + XERIAL_HEADER,
    ),
    "xerial, blocks of 7 bytes": (Codec.SNAPPY, lambda data: XERIAL_HEADER + xerial_blocks(data, 7)),
    **{
        f"xerial, {count} zero bytes behind": (Codec.SNAPPY, behind(xerial, bytes(count)))
        for count in (1, 2, 3, 4, 5, 8)
    },
    "xerial, words behind": (Codec.SNAPPY, behind(xerial, b"words")),
    "xerial, half a header behind": (Codec.SNAPPY, behind(xerial, XERIAL_HEADER[:9])),
    "xerial, the first four bytes of a header behind": (Codec.SNAPPY, behind(xerial, XERIAL_HEADER[:4])),
    "xerial, another magic number behind": (Codec.SNAPPY, behind(xerial, b"\x82SNACKS\0" + bytes(8))),
    "xerial, another magic number, then data": (
        Codec.SNAPPY,
        behind(xerial, b"\x82SNACKS\0" + bytes(8) + xerial_blocks(b"more")),
    ),
    "xerial, version 0 behind": (Codec.SNAPPY, behind(xerial, b"\x82SNAPPY\0" + bytes(8))),
    "xerial, version 0": (Codec.SNAPPY, lambda data: b"\x82SNAPPY\0" + bytes(8) + xerial_blocks(data)),
    "snappy, zero bytes behind": (Codec.SNAPPY, behind(_snappy, bytes(8))),
    "snappy, two blocks": (Codec.SNAPPY, joined(_snappy)),
    "lz4, zero bytes behind": (Codec.LZ4, behind(_lz4, bytes(8))),
    "lz4, words behind": (Codec.LZ4, behind(_lz4, b"these are no frame")),
    "lz4, an empty frame behind": (Codec.LZ4, behind(_lz4, _lz4(b""))),
    "lz4, a frame behind": (Codec.LZ4, behind(_lz4, _lz4(b"more"))),
    "lz4, two frames": (Codec.LZ4, joined(_lz4)),
    "lz4, a skippable frame behind": (Codec.LZ4, behind(_lz4, _SKIPPABLE)),
    "lz4, linked blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4, no end mark": (Codec.LZ4, lambda data: _lz4(data)[:-4]),
    "zstd, zero bytes behind": (Codec.ZSTD, behind(_zstd, bytes(8))),
    "zstd, two zero bytes behind": (Codec.ZSTD, behind(_zstd, bytes(2))),
    "zstd, words behind": (Codec.ZSTD, behind(_zstd, b"these are no frame")),
    **{
        f"zstd, {count} bytes of a frame behind": (Codec.ZSTD, behind(_zstd, _zstd(b"more")[:count]))
        for count in range(1, len(_zstd(b"more")) + 1)
    },
    **{
        f"zstd, {count} bytes of a skippable frame behind": (Codec.ZSTD, behind(_zstd, _SKIPPABLE[:count]))
        for count in (1, 4, 7, 8, len(_SKIPPABLE) - 1)
    },
    "zstd, frames and a part of one": (Codec.ZSTD, behind(joined(_zstd), _zstd(b"")[:5])),
    "zstd, half a frame of many bytes behind": (Codec.ZSTD, behind(_zstd, _zstd(TEXT)[:200])),
    **{
        f"zstd, without its last {count} bytes": (Codec.ZSTD, lambda data, count=count: _zstd(data)[:-count])
        for count in (1, 4, 200)
    },
    "zstd, a skippable frame and a part of one": (
        Codec.ZSTD,
        lambda data: _SKIPPABLE + _zstd(data)[:-1],
    ),
    "zstd, two frames": (Codec.ZSTD, joined(_zstd)),
    "zstd, an empty frame in front": (Codec.ZSTD, lambda data: _zstd(b"") + _zstd(data)),
    "zstd, an empty frame behind": (Codec.ZSTD, behind(_zstd, _zstd(b""))),
    "zstd, a skippable frame in front": (Codec.ZSTD, lambda data: _SKIPPABLE + _zstd(data)),
    "zstd, a skippable frame behind": (Codec.ZSTD, behind(_zstd, _SKIPPABLE)),
    "zstd, a skippable frame between": (
        Codec.ZSTD,
        lambda data: _zstd(data[:9]) + _SKIPPABLE + _zstd(data[9:]),
    ),
}
"""Codec and function that compresses a record section, by description."""
