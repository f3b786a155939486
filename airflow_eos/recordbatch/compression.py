"""Compression of the records section, as Java, librdkafka and other clients write it.

Written: zstd and snappy by Arrow, gzip by zlib, lz4 by ``lz4.frame`` with independent blocks (brokers refuse
linked blocks, which is all that Arrow can write). Read: what the broker, the Java client or librdkafka reads.
That is snappy raw and in xerial streams (Java), one or several joined; lz4 linked or not; zstd frames with
and without a content size (Java streams have none); gzip of several members. Trailing bytes
are accepted as by these clients: after gzip what is not a member, after xerial streams up to three bytes,
after lz4 anything, after zstd a truncated frame.

The size that a frame claims is not trusted: kilobytes that decompress to gigabytes raise an error in time.

Executors need lz4 only for records compressed with it, so it is imported with the first such batch.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from enum import IntEnum
from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import ConfigurationError, EnvironmentMismatch
from airflow_eos.recordbatch.gzip_members import decompress_members
from airflow_eos.recordbatch.limits import OverBudget
from airflow_eos.recordbatch.varint import varint_at
from airflow_eos.recordbatch.zstd_frames import end_of_whole_frames, zstd_content_size

# A content size is trusted up to this multiple of the compressed size plus _SMALL; beyond, data is streamed.
_USUAL_RATIO = 64
_SMALL = 1 << 20
_SNAPPY_RATIO = 22  # a copy of 64 bytes takes three
_CHUNK = 1 << 20  # bytes decompressed at a time where the size is not known

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_GZIP_WINDOW = 31  # zlib: 15 window bits + 16 for the gzip wrapper
# zlib's own default, 6, is nine times slower than 1 for some per cent of size.
_GZIP_LEVEL = 1


class Codec(IntEnum):
    """Compression codec as in bits 0-2 of the batch attributes; names as in ``compression.type``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Name in ``compression.type``."""
        return self.name.lower()


class Compressor:
    """Compresses records sections with one codec; make one per task, not per batch.

    Its levels are fast ones: zstd 1, gzip 1, lz4 0.

    :param codec: name in ``compression.type``
    :raises ConfigurationError: no such codec
    :raises EnvironmentMismatch: the codec is lz4, and its package is not installed here
    """

    def __init__(self, codec: str) -> None:
        try:
            self.codec = Codec[codec.upper()]
        except KeyError:
            labels = ", ".join(each.label for each in Codec)
            raise ConfigurationError(f"compression.type {codec!r} is not one of {labels}") from None
        self._arrow: Any = None
        self._lz4: Any = None
        if self.codec in (Codec.ZSTD, Codec.SNAPPY):
            self._arrow = pa.Codec(self.codec.label)
        elif self.codec is Codec.LZ4:
            self._lz4 = _lz4_frame()

    def compress(self, data: pa.Buffer | memoryview | bytes) -> bytes | memoryview:
        """Compressed form of ``data``; with codec ``none`` a view of it."""
        if self._arrow is not None:
            return bytes(self._arrow.compress(data, asbytes=True))
        if self.codec is Codec.GZIP:
            packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        if self.codec is Codec.LZ4:
            return bytes(self._lz4.compress(data, block_linked=False))
        return memoryview(data)


def decompress(codec: int, data: bytes, budget: int) -> bytes | pa.Buffer:
    """Records section as it was before compression.

    :param codec: bits 0-2 of the batch attributes
    :param budget: maximum size decompressed, in bytes; not much more is ever allocated
    :raises OverBudget: it is larger
    :raises ValueError: the codec is unknown, or the data is not what the codec writes
    :raises EnvironmentMismatch: the codec is lz4, and its package is not installed here
    """
    try:
        if codec == Codec.NONE:
            return data
        if codec == Codec.ZSTD:
            return _zstd(data, budget)
        if codec == Codec.LZ4:
            return _lz4(data, budget)
        if codec == Codec.SNAPPY:
            return _snappy(data, budget)
        if codec == Codec.GZIP:
            return decompress_members(data, budget)
    except (
        pa.ArrowException,
        OSError,
        RuntimeError,
        zlib.error,
        struct.error,
        IndexError,
        MemoryError,
    ) as error:
        raise ValueError(f"{Codec(codec).label} data cannot be decompressed: {error}") from error
    raise ValueError(f"compression codec {codec} is unknown")


def _lz4_frame() -> Any:
    """Return the module ``lz4.frame``, the only codec that comes neither with Arrow nor with Python."""
    try:
        import lz4.frame
    except ImportError as error:
        raise EnvironmentMismatch(
            f"lz4 is not installed on {os.uname().nodename} ({sys.executable}: {error}); install the "
            "package lz4 (4.4 or later) on every executor, or ship one with spark.archives and PYSPARK_PYTHON"
        ) from error
    return lz4.frame


_ZSTD = pa.Codec("zstd")
_SNAPPY = pa.Codec("snappy")


def _zstd(data: bytes, budget: int) -> bytes | pa.Buffer:
    size = zstd_content_size(data)
    if size is not None and size > budget:
        raise OverBudget(budget)
    if size is not None and size <= _USUAL_RATIO * len(data) + _SMALL:
        try:
            return _ZSTD.decompress(data, size)
        except (pa.ArrowException, OSError):
            pass  # several frames: the first one's size is not the total; the stream reads all, or fails
    try:
        return _zstd_stream(data, budget)
    except (pa.ArrowException, OSError):
        end = end_of_whole_frames(data)
        if end is None:
            raise
        return _zstd_stream(memoryview(data)[:end], budget)


def _zstd_stream(data: bytes | memoryview, budget: int) -> bytes | pa.Buffer:
    parts: list[pa.Buffer] = []
    left = budget
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        # Arrow's read() leaks the memory of its result if the data is damaged; read_buffer() does not.
        while len(part := stream.read_buffer(min(_CHUNK, left + 1))):
            left -= len(part)
            if left < 0:
                raise OverBudget(budget)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _lz4(data: bytes, budget: int) -> bytes:
    frame = _lz4_frame().LZ4FrameDecompressor()
    out = bytes(frame.decompress(data, max_length=budget + 1))
    if len(out) > budget:
        raise OverBudget(budget)
    if not frame.eof:
        raise ValueError("lz4 data is cut off")
    return out


def _snappy(data: bytes, budget: int) -> bytes | pa.Buffer:
    if not data.startswith(_XERIAL) or len(data) < _XERIAL_HEADER:
        return _snappy_block(data, budget, budget)
    view = memoryview(data)
    blocks = []
    left = budget
    at = _XERIAL_HEADER
    while at + 4 <= len(data):  # the Java client ignores up to three bytes after the last block
        if data[at : at + 4] == _XERIAL[:4]:  # another stream: as a block size, these bytes would be negative
            at += _XERIAL_HEADER
            if at > len(data):
                raise ValueError("the header of a joined snappy stream is cut off")
            continue
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0 or at + size > len(data):
            raise ValueError(f"snappy block of {size} bytes at {at} is cut off")
        block = _snappy_block(view[at : at + size], left, budget)
        left -= len(block)
        blocks.append(block)
        at += size
    return b"".join(blocks)


def _snappy_block(data: bytes | memoryview, left: int, budget: int) -> pa.Buffer:
    """One raw block of at most ``left`` bytes; a plain varint with its length precedes it."""
    size, _ = varint_at(data, 0)
    if size > left:
        raise OverBudget(budget)
    if size > _SNAPPY_RATIO * len(data):
        raise ValueError(f"snappy block of {len(data)} bytes claims {size}")
    return _SNAPPY.decompress(data, size)
