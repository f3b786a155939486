"""Seals Arrow columns into compressed record batches, each for one target partition.

A sealed batch is complete except for producer id, epoch, base sequence and CRC, which
:func:`airflow_eos.recordbatch.stamp.stamp` writes when the batch is sent. The transactional bit is
always set: a batch without it would be visible after an abort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_eos.exceptions import RecordTooLarge
from airflow_eos.recordbatch.compression import Codec, Compressor
from airflow_eos.recordbatch.encode import RecordColumns, encode_headers, encode_records
from airflow_eos.recordbatch.header import (
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
)
from airflow_eos.recordbatch.sink_columns import (
    Column,
    binary_column,
    headers_column,
    strings,
    timestamp_column,
)
from airflow_eos.recordbatch.varint import Int64s

# Uncompressed, so that a batch fits Kafka's default ``max.message.bytes`` of 1,048,588 whatever the codec
# makes of it.
BATCH_BYTES = 900_000
MAX_MESSAGE_BYTES = 1_048_588

# Varints and attributes of a record whose key, value and offset delta are below 1 MB.
_RECORD_OVERHEAD = 24
# Rows encoded in one go: bounds the memory of temporaries, and 32-bit offsets.
_BLOCK_BYTES = 16_000_000
_INT32_MAX = (1 << 31) - 1


class SealedBatch(NamedTuple):
    """A record batch ready to be stamped and sent."""

    partition: int
    records: int
    max_timestamp: int  # milliseconds
    data: bytes


class _Limits(NamedTuple):
    topic: str
    compressor: Compressor
    max_message_bytes: int


def seal(
    value: Column,
    partition: npt.NDArray[np.int32],
    *,
    topic: str,
    key: Column | None = None,
    timestamp: Column | Int64s | None = None,
    headers: Column | None = None,
    compressor: Compressor | str = "zstd",
    batch_bytes: int | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> Iterator[SealedBatch]:
    """Batches of each target partition, partitions ascending, records of a partition in input order.

    :param value: any Arrow bytes or string type without a dictionary; null is a tombstone
    :param partition: target partition of each row, see
        :func:`airflow_eos.recordbatch.partitioner.partitions_for`
    :param key: as ``value``; ``None`` when every key is null
    :param timestamp: milliseconds; the current time where missing
    :param headers: ``list<struct<key: string, value: binary>>``; null is no headers
    :param compressor: made once per task, or a codec's name
    :param batch_bytes: bound of a batch's records before compression; a larger record gets a batch of its
        own. Default: 900,000, or less where ``max_message_bytes`` asks for it
    :param max_message_bytes: the topic's ``max.message.bytes``, or its ``segment.bytes`` if that is less:
        the broker's limit for the batch as it is sent
    :raises RecordTooLarge: one record alone exceeds ``max_message_bytes``, compressed
    :raises ProcessFailed: a column's type cannot be written
    """
    rows = len(value)
    if rows != len(partition):
        raise ValueError(f"{rows} values but {len(partition)} partitions")
    if not rows:
        return
    if isinstance(compressor, str):
        compressor = Compressor(compressor)
    if batch_bytes is None:
        # 1% less: a topic's own codec may enlarge data that is already compressed a little.
        batch_bytes = min(BATCH_BYTES, max_message_bytes * 99 // 100 - HEADER_BYTES)
    limits = _Limits(topic, compressor, max_message_bytes)
    listed = headers_column(headers)
    columns = RecordColumns(
        None if key is None or key.null_count == rows else binary_column(key, "key"),
        binary_column(value, "value"),
        timestamp_column(timestamp, rows),
        None if listed is None else encode_headers(listed),
    )
    order = _order(partition)
    target = partition if order is None else partition[order]
    sizes = _sizes(columns)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes if order is None else sizes[order])))
    cuts = plan_cuts(target, ends, batch_bytes)
    if ends[-1] <= _BLOCK_BYTES:
        yield from _seal_block(columns, order, cuts, target[cuts[:-1]], limits)
        return
    for first, last in _blocks(ends[cuts]):
        start, end = int(cuts[first]), int(cuts[last])
        part_of = target[cuts[first:last]]
        if last == first + 1 and ends[end] - ends[start] > _INT32_MAX:
            raise _too_large(limits, int(part_of[0]), int(ends[end] - ends[start]))
        block = columns.slice(start, end) if order is None else columns.take(order[start:end])
        yield from _seal_block(block, None, cuts[first : last + 1] - start, part_of, limits)


def _order(partition: npt.NDArray[np.int32]) -> Int64s | None:
    """Stable order by partition, ``None`` if the rows are already in it."""
    if (partition[1:] >= partition[:-1]).all():
        return None
    # NumPy sorts 8 and 16 bits by radix, ten times faster than 32 bits.
    largest = int(partition.max())
    narrow = np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32
    return np.argsort(partition.astype(narrow), kind="stable")


def _sizes(columns: RecordColumns) -> Int64s:
    """Upper bound of each record's bytes."""
    sizes = np.maximum(strings(columns.value).lengths, 0) + _RECORD_OVERHEAD
    if columns.key is not None:
        sizes += np.maximum(strings(columns.key).lengths, 0)
    if columns.tail is not None:
        sizes += strings(columns.tail).lengths
    return sizes


def plan_cuts(target: npt.NDArray[np.int32], ends: Int64s, batch_bytes: int) -> Int64s:
    """Rows at which batches begin, and the number of rows.

    :param target: partition of each row, ascending
    :param ends: bytes before each row, one entry more than rows
    """
    edges = np.concatenate(([0], np.flatnonzero(target[1:] != target[:-1]) + 1, [len(target)]))
    totals = ends[edges[1:]] - ends[edges[:-1]]
    inner: list[int] = []
    for index in np.flatnonzero(totals > batch_bytes).tolist():
        row, last = int(edges[index]), int(edges[index + 1])
        while row < last:
            fits = int(np.searchsorted(ends, ends[row] + batch_bytes, side="right")) - 1
            row = max(fits, row + 1)
            if row < last:
                inner.append(row)
    if not inner:
        return edges
    return np.sort(np.concatenate((edges, np.array(inner))))


def _blocks(ends: Int64s) -> Iterator[tuple[int, int]]:
    """Runs of consecutive batches of about ``_BLOCK_BYTES``; one batch at least."""
    first, count = 0, len(ends) - 1
    while first < count:
        fits = int(np.searchsorted(ends, ends[first] + _BLOCK_BYTES, side="right")) - 1
        last = min(max(fits, first + 1), count)
        yield first, last
        first = last


def _seal_block(
    columns: RecordColumns,
    order: Int64s | None,
    cuts: Int64s,
    targets: npt.NDArray[np.int32],
    limits: _Limits,
) -> Iterator[SealedBatch]:
    encoded = encode_records(columns, cuts, order)
    timestamp = columns.timestamp if order is None else columns.timestamp[order]
    starts = cuts[:-1]
    first_times = timestamp[starts].tolist()
    last_times = np.maximum.reduceat(timestamp, starts).tolist()
    positions = encoded.offsets[cuts].tolist()
    attributes = TRANSACTIONAL_BIT | limits.compressor.codec
    compress = limits.compressor.compress
    view = memoryview(encoded.data)
    for index, (partition, records) in enumerate(zip(targets.tolist(), np.diff(cuts).tolist(), strict=True)):
        body = compress(view[positions[index] : positions[index + 1]])
        size = HEADER_BYTES + len(body)
        if size > limits.max_message_bytes:
            start, end = int(cuts[index]), int(cuts[index + 1])
            rows = columns.slice(start, end) if order is None else columns.take(order[start:end])
            yield from _split(rows, partition, size, limits)
            continue
        header = HEADER.pack(
            0,
            size - LENGTH_END,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            attributes,
            records - 1,
            first_times[index],
            last_times[index],
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            records,
        )
        yield SealedBatch(partition, records, last_times[index], b"".join((header, body)))


def _split(columns: RecordColumns, partition: int, size: int, limits: _Limits) -> Iterator[SealedBatch]:
    """Seal the rows of a batch that is too large as two of about half its bytes each."""
    rows = len(columns.timestamp)
    if rows == 1:
        raise _too_large(limits, partition, size)
    ends = np.cumsum(_sizes(columns))
    middle = min(max(int(np.searchsorted(ends, ends[-1] // 2)), 1), rows - 1)
    targets = np.full(2, partition, np.int32)
    yield from _seal_block(columns, None, np.array([0, middle, rows]), targets, limits)


def _too_large(limits: _Limits, partition: int, size: int) -> RecordTooLarge:
    codec = limits.compressor.codec
    how = "uncompressed" if codec is Codec.NONE else f"compressed with {codec.label}"
    return RecordTooLarge(
        f"one record for {limits.topic}-{partition} takes {size} bytes {how}, more than the topic's "
        f"max.message.bytes of {limits.max_message_bytes}: raise it (and segment.bytes, if that is the lower "
        "one), or store the payload elsewhere and send a reference"
    )
