"""Finds where the records of a batch begin.

A record contains only its own length, so records must be walked one by one: the only loop over records in the
wire layer, and once its largest cost. Most batches hold small records without headers and with few zero bytes
in their payload; there, every record ends with a zero (no headers), and a zero (attributes) follows its
length. So the zeros are the candidates for record starts, found all at once, and the chain of lengths from
the first record on, followed by comparing arrays, confirms them. The result always equals that of the walk.
"""

from __future__ import annotations

import numpy as np

from airflow_eos.recordbatch.varint import CONTINUED, Int64s, UInt8s, varint_at

LEAST_BYTES = 7
"""Bytes of the smallest record: seven fields, none of them empty."""
# For larger records, a walk is faster than searching their bytes for zeros.
_SMALL_RECORD = 400
# With more zeros, or more breaks of the chain, per record than this, the search does not pay.
_ZEROS_EACH = 6
_BREAKS_EACH = 1 / 16


def record_starts(buffer: UInt8s, count: int) -> Int64s:
    """Position of the length of each record.

    :param buffer: records section
    :raises ValueError: the records cannot fit the buffer, or do not end where it ends
    :raises IndexError: a record runs over the end
    """
    if not count:
        if len(buffer):
            raise ValueError(f"{len(buffer)} bytes without a record")
        return np.empty(0, np.int64)
    if count * LEAST_BYTES > len(buffer):  # a damaged count must not size an allocation
        raise ValueError(f"{len(buffer)} bytes cannot hold them")
    if len(buffer) <= _SMALL_RECORD * count:
        starts = _search(buffer, count)
        if starts is not None:
            return starts
    begins, end = _walk(buffer.tobytes(), 0, count)
    if end != len(buffer):
        raise ValueError(f"its records end at byte {end} of {len(buffer)}")
    return np.array(begins, np.int64)


def _search(buffer: UInt8s, count: int) -> Int64s | None:
    """Starts found by zeros; ``None`` if that does not pay, or if anything is unusual."""
    zeros = np.flatnonzero(buffer == 0)
    if not count <= len(zeros) <= _ZEROS_EACH * count:
        return None
    # Position -1 acts as the zero at the end of a record before the first one.
    zeros = np.concatenate((np.array([-1]), zeros))
    apart = np.diff(zeros)
    one_byte, two_bytes = 2, 3  # distance of two zeros with a length of so many bytes between them
    chosen = np.flatnonzero((apart == one_byte) | (apart == two_bytes))
    apart = apart[chosen]
    starts = zeros[chosen] + 1
    first = buffer[starts].astype(np.int64)
    second = buffer[starts + 1].astype(np.int64)  # the zero itself after a length of one byte
    fits = (first >= CONTINUED) == (apart == two_bytes)
    behind = starts + _step(first, second)
    if not fits.all() or (second >= CONTINUED).any():
        fits &= second < CONTINUED
        starts, behind = starts[fits], behind[fits]
    if len(starts) < count:
        return None if len(starts) < count * (1 - _BREAKS_EACH) else _chain(buffer, starts, behind, count)
    if (
        len(starts) == count
        and starts[0] == 0
        and behind[-1] == len(buffer)
        and (behind[:-1] == starts[1:]).all()
    ):
        return starts
    return _chain(buffer, starts, behind, count)


def _step(first: Int64s, second: Int64s) -> Int64s:
    """Bytes of a record: its zigzag length, halved, and the one or two bytes of the length itself."""
    return (first >> 1) + np.where(first >= CONTINUED, (second << 6) - 62, 1)


def _chain(buffer: UInt8s, starts: Int64s, behind: Int64s, count: int) -> Int64s | None:
    """Follow the lengths from byte 0: whole runs of candidates that link, single steps between them."""
    breaks = np.flatnonzero(behind[:-1] != starts[1:])
    if len(breaks) > 2 + count * _BREAKS_EACH:
        return None
    breaks = np.append(breaks, len(starts) - 1)
    data = buffer.data
    runs: list[Int64s] = []
    at = records = 0
    turns = 2 * len(breaks) + 8
    while records < count:
        turns -= 1
        if not turns:
            return None
        index = int(np.searchsorted(starts, at))
        if index < len(starts) and starts[index] == at:
            last = int(breaks[np.searchsorted(breaks, index)])
            run = starts[index : last + 1]
            at = int(behind[last])
        else:
            begins, at = _walk(data, at, 1)
            run = np.array(begins, np.int64)
        runs.append(run)
        records += len(run)
    return np.concatenate(runs) if records == count and at == len(buffer) else None


def _walk(data: bytes | memoryview, at: int, count: int) -> tuple[list[int], int]:
    """Start of each of ``count`` records from ``at`` on, and the position after the last."""
    begins = [0] * count
    for index in range(count):
        begins[index] = at
        first = data[at]
        if first < CONTINUED:
            at += 1 + (first >> 1)
            continue
        second = data[at + 1]
        if second < CONTINUED:
            # ``first >> 1`` holds the continuation bit as 64; the varint's own two bytes are added.
            at += (first >> 1) + (second << 6) - 62
            continue
        length, at = varint_at(data, at)
        at += length >> 1
    return begins, at
