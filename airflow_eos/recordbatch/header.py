"""The 61-byte header of a record batch, magic v2 (KIP-98), its CRC-32C, and the batches of a Fetch answer.

::

    base offset 8 | length 4 | leader epoch 4 | magic 1 | CRC 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | records 4

``length`` counts the bytes after it; the CRC covers everything from the attributes on, so a broker may set
base offset and leader epoch without computing it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from airflow_eos.exceptions import CorruptBatch, UnsupportedMagic

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
LENGTH_END = 12  # bytes up to and including ``length``
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21  # the CRC begins here
PRODUCER_AT = 43  # producer id, producer epoch, base sequence

MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1


class TimestampType(IntEnum):
    """Who wrote the timestamps; numbers as in Spark's ``timestampType`` column."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """Fields of a batch header, in wire order; times are milliseconds since 1970."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def unpack(cls, data: bytes | memoryview, at: int = 0) -> BatchHeader:
        """Header at position ``at``; the caller has checked that 61 bytes are there."""
        return cls._make(HEADER.unpack_from(data, at))

    @property
    def codec(self) -> int:
        """Compression codec id, see :class:`~airflow_eos.recordbatch.compression.Codec`."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker wrote the timestamps."""
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME_BIT))

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker instead of records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset after the batch: where the next fetch begins."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_END + self.length


class RawBatch(NamedTuple):
    """A batch as stored in the log: header, all its bytes, and where it was read from."""

    header: BatchHeader
    data: memoryview
    topic: str
    partition: int

    @property
    def records(self) -> memoryview:
        """The records section, still compressed."""
        return self.data[HEADER_BYTES:]

    def location(self) -> str:
        """``topic-partition at offset N``."""
        return f"{self.topic}-{self.partition} at offset {self.header.base_offset}"

    def check_crc(self) -> None:
        """Compare the checksum.

        :raises CorruptBatch: it differs; the message names topic, partition and offset
        """
        actual = crc32c(bytes(self.data[ATTRIBUTES_AT:]))
        if actual != self.header.crc:
            raise CorruptBatch(
                f"record batch of {self.location()} has CRC {self.header.crc:#010x}, its bytes give "
                f"{actual:#010x}: the log or the connection is damaged; compare the replicas "
                "with kafka-dump-log"
            )


def iter_batches(blob: bytes | memoryview, topic: str, partition: int) -> Iterator[RawBatch]:
    """Batches of one partition in a Fetch answer, in order.

    A broker cuts its answer at a number of bytes, so the last batch may be incomplete: it is left out. The
    first one is always whole (KIP-74).

    :param blob: ``records`` of the answer; the batches are views of it
    :raises UnsupportedMagic: a batch has message format v0 or v1 (before Kafka 0.11), or one newer than v2
    :raises CorruptBatch: a length cannot be right
    """
    view = memoryview(blob)
    at, end = 0, len(view)
    while at + MAGIC_AT < end:
        base_offset, length = struct.unpack_from(">qi", view, at)
        magic = view[at + MAGIC_AT]
        if magic != MAGIC:
            raise UnsupportedMagic(
                f"{topic}-{partition} at offset {base_offset} has message format v{magic}; only v2 (Kafka "
                "0.11 and later) can be read: let the old segments expire, or copy the topic "
                "with a consumer and a producer"
            )
        if length < HEADER_BYTES - LENGTH_END:
            raise CorruptBatch(
                f"record batch of {topic}-{partition} at offset {base_offset} has length {length}"
            )
        size = LENGTH_END + length
        if at + size > end:
            return
        yield RawBatch(BatchHeader.unpack(view, at), view[at : at + size], topic, partition)
        at += size


def crc32c(data: bytes) -> int:
    """Checksum of ``data`` as an unsigned 32-bit number.

    :param data: ``bytes``; the C implementation takes no other buffer
    """
    return int(google_crc32c.value(data))
