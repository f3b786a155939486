"""Reads record batches, magic v2, into Arrow columns.

Many batches in a log are small (producers that do not linger write a few dozen records each), and the cost of
an array operation is the same for ten records and for a thousand. So neighbouring batches are read as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_eos.exceptions import CorruptBatch, EnvironmentMismatch
from airflow_eos.recordbatch.compression import decompress
from airflow_eos.recordbatch.header import BatchHeader, RawBatch, TimestampType
from airflow_eos.recordbatch.limits import (
    DEFAULT_LIMITS,
    MAX_BYTES_SETTING,
    RECORD_BYTES,
    DecodeLimits,
    OverBudget,
    TooManyHeaders,
)
from airflow_eos.recordbatch.record_fields import read_frames, read_strings
from airflow_eos.recordbatch.record_starts import LEAST_BYTES
from airflow_eos.recordbatch.varint import Int64s

# Limits of the batches that are decoded together: bytes as in the log, and records.
_GROUP_BYTES = 1_000_000
_GROUP_RECORDS = 8192


class DecodedBatch(NamedTuple):
    """Columns of the records of one batch, or of neighbouring ones, in offset order.

    ``headers`` is ``None`` if no record has any or they were not requested, else
    ``list<struct<key: string, value: binary>>``.
    """

    key: pa.Array
    value: pa.Array
    offset: Int64s
    timestamp: Int64s  # milliseconds
    timestamp_type: TimestampType
    headers: pa.Array | None

    def __len__(self) -> int:
        """Number of records."""
        return len(self.offset)


def decode_batch(
    batch: RawBatch,
    *,
    start: int | None = None,
    end: int | None = None,
    check_crc: bool = True,
    headers: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> DecodedBatch:
    """Records of a data batch with offsets in ``[start, end)``.

    Compacted batches have holes and may be empty; offsets are read, never counted.

    :param start: first offset wanted; ``None`` for all
    :param end: offset after the last one wanted; ``None`` for all
    :raises CorruptBatch: checksum, compression or framing are wrong; the message names topic, partition and
        offset
    :raises EnvironmentMismatch: the package of its codec is not installed here; the message names the same
    """
    return _decode_one(batch, _Wanted(start, end, check_crc, headers, limits))


def decode_batches(
    batches: Iterable[RawBatch],
    *,
    start: int | None = None,
    end: int | None = None,
    check_crc: bool = True,
    headers: bool = True,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Iterator[DecodedBatch]:
    """Records of data batches with offsets in ``[start, end)``, small neighbours together.

    Batches outside the range are skipped, results may be empty.

    Other parameters and errors as :func:`decode_batch`.

    :param batches: data batches of one partition, in log order
    :raises CorruptBatch: batches before the damaged one may not have been delivered
    """
    wanted = _Wanted(start, end, check_crc, headers, limits)
    group: list[RawBatch] = []
    size = count = 0
    for batch in batches:
        header = batch.header
        if (start is not None and header.last_offset < start) or (
            end is not None and header.base_offset >= end
        ):
            continue
        if group and (
            size + header.size > _GROUP_BYTES
            or count + header.record_count > _GROUP_RECORDS
            or header.timestamp_type is not group[0].header.timestamp_type
        ):
            yield from _decode_group(group, wanted)
            group, size, count = [], 0, 0
        group.append(batch)
        size += header.size
        count += header.record_count
    if group:
        yield from _decode_group(group, wanted)


class _Wanted(NamedTuple):
    """What to read from batches; see the parameters of :func:`decode_batch`."""

    start: int | None
    end: int | None
    check_crc: bool
    headers: bool
    limits: DecodeLimits


def way_on(topic: str, partition: int, ranges: Sequence[tuple[int, int]]) -> str:
    """End of an error message: the parameter with which a run continues after these offsets.

    :param ranges: start and end (exclusive) of each
    """
    offsets = [[topic, partition, start, end] for start, end in ranges]
    return f"skip_offsets={json.dumps(offsets)} goes on behind it"


def _decode_one(batch: RawBatch, wanted: _Wanted) -> DecodedBatch:
    if wanted.check_crc:
        batch.check_crc()
    try:
        return _decode([batch], wanted)
    except TooManyHeaders as error:
        raise CorruptBatch(
            f"record of {batch.topic}-{batch.partition} at offset {error.offset} is refused: {error}; "
            f"{way_on(batch.topic, batch.partition, [(error.offset, error.offset + 1)])}"
        ) from error
    except OverBudget as error:
        raise CorruptBatch(
            f"record batch of {batch.location()} is refused: {error}, see {MAX_BYTES_SETTING}; "
            f"{_way_on(batch)}"
        ) from error
    except (ValueError, IndexError, pa.ArrowException) as error:
        checksum = "is right, so its producer wrote it so" if wanted.check_crc else "was not compared"
        raise CorruptBatch(
            f"record batch of {batch.location()} with {batch.header.record_count} records cannot be read: "
            f"{error}; its checksum {checksum}; {_way_on(batch)}"
        ) from error


def _way_on(batch: RawBatch) -> str:
    return way_on(batch.topic, batch.partition, [(batch.header.base_offset, batch.header.next_offset)])


def _decode_group(group: Sequence[RawBatch], wanted: _Wanted) -> Iterator[DecodedBatch]:
    one_by_one = (_decode_one(batch, wanted) for batch in group)
    if len(group) == 1:
        yield from one_by_one
        return
    try:
        for batch in group if wanted.check_crc else ():
            batch.check_crc()
        together = _decode(group, wanted)
    except OverBudget:  # all together; each alone may fit
        yield from one_by_one
    except (ValueError, IndexError, pa.ArrowException) as error:
        for _ in one_by_one:  # the damaged one raises, and names itself
            pass
        raise CorruptBatch(f"{len(group)} record batches from {group[0].location()} on: {error}") from error
    else:
        yield together


def _decode(group: Sequence[RawBatch], wanted: _Wanted) -> DecodedBatch:
    headers = [batch.header for batch in group]
    counts = [header.record_count for header in headers]
    if min(counts) < 0:
        raise ValueError("the number is negative")
    bodies: list[bytes | pa.Buffer] = []
    left = wanted.limits.max_bytes
    for batch in group:
        bodies.append(_body(batch, left))
        left -= len(bodies[-1])
    body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    buffer = np.frombuffer(body, np.uint8) if len(body) else np.empty(0, np.uint8)
    records = sum(counts)
    left -= records * RECORD_BYTES
    if left < 0 and records * LEAST_BYTES <= len(body):  # else the number is wrong, and read_frames says so
        raise OverBudget(wanted.limits.max_bytes, f"its {records} records take")
    frames = read_frames(buffer, records)
    if len(bodies) > 1:
        _check_bounds(frames.start, counts, [len(each) for each in bodies])
    offset = _each(headers, "base_offset", counts) + frames.offset_delta
    if (offset[1:] <= offset[:-1]).any():
        raise ValueError("its offsets do not rise")
    first = 0 if wanted.start is None else int(np.searchsorted(offset, wanted.start))
    last = len(offset) if wanted.end is None else int(np.searchsorted(offset, wanted.end))
    kind = headers[0].timestamp_type
    if kind is TimestampType.LOG_APPEND_TIME:
        timestamp = _each(headers, "max_timestamp", counts)
    else:
        timestamp = _each(headers, "base_timestamp", counts) + frames.time_delta
    if first or last < len(offset):
        frames, offset, timestamp = frames.rows(first, last), offset[first:last], timestamp[first:last]
    most_headers = wanted.limits.max_record_headers if wanted.headers else None
    try:
        key, value, listed = read_strings(body, buffer, frames, most_headers, left)
    except TooManyHeaders as error:
        error.offset = int(offset[error.row])
        raise
    return DecodedBatch(key, value, offset, timestamp, kind, listed)


def _body(batch: RawBatch, budget: int) -> bytes | pa.Buffer:
    """Decompressed records section of a batch; at most ``budget`` bytes."""
    if not batch.header.record_count:
        return b""
    try:
        return decompress(batch.header.codec, bytes(batch.records), budget)
    except EnvironmentMismatch as missing:
        raise EnvironmentMismatch(
            f"record batch of {batch.location()} cannot be read: {missing}"
        ) from missing


def _each(headers: Sequence[BatchHeader], field: str, counts: Sequence[int]) -> Int64s:
    """A header field for each record of its batch."""
    return np.repeat(np.array([getattr(header, field) for header in headers], np.int64), counts)


def _check_bounds(starts: Int64s, counts: Sequence[int], sizes: Sequence[int]) -> None:
    """Check that each batch begins where the previous one ends: no record crosses the boundary."""
    ends = np.append(starts, sum(sizes))[np.cumsum(counts)]
    if (ends != np.cumsum(sizes)).any():
        raise ValueError("a record reaches over the end of its batch")
