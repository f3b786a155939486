"""Chooses target partitions as Kafka's Java producer does, whole columns at a time.

An explicit partition wins; a key, also an empty one, is hashed by murmur2; null keys are spread. Java spreads
them by broker load; here they are spread in runs, so that a retried task chooses the same partitions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_eos.exceptions import RecordRefused
from airflow_eos.recordbatch.segments import Int32s, Segments, segments_of
from airflow_eos.recordbatch.sink_columns import Column, binary_column
from airflow_eos.recordbatch.varint import Int64s

UInt32s = npt.NDArray[np.uint32]

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_MASK = 0xFFFFFFFF
_POSITIVE = np.uint32(0x7FFFFFFF)
# Fewer rows than this are finished one by one: below it NumPy's overhead per step exceeds the work.
_FEW_ROWS = 16
_LONG_STEP = 65536

# Null keys change partition after this many rows: enough to fill batches, few enough to balance a task's
# output.
NULL_KEY_RUN = 1024


def murmur2(keys: Column) -> Int32s:
    """Hash of each key, equal to ``org.apache.kafka.common.utils.Utils.murmur2``; null as the empty key.

    Rows are ordered by length, so that each step hashes the next four bytes of exactly those that have them.
    """
    array = binary_column(keys, "key")
    if array.null_count:
        array = array.fill_null(b"")
    segments = segments_of(array)
    length = np.diff(segments.offsets).astype(np.int64)
    hashed = _SEED ^ length.astype(np.uint32)
    if not len(hashed) or not int(length.max()):
        return _finish(hashed).view(np.int32)
    start = segments.offsets[:-1].astype(np.int64)
    words = length >> 2
    order: Int64s | None = None
    if int(words.min()) != int(words.max()):
        order = np.argsort(words, kind="stable")[::-1]
        hashed, start, words = hashed[order], start[order], words[order]
    data = _padded(segments)
    _hash_words(data, start, words, hashed)
    _hash_rest(data, start + 4 * words, (length if order is None else length[order]) & 3, hashed)
    hashed = _finish(hashed)
    if order is not None:
        unordered = np.empty_like(hashed)
        unordered[order] = hashed
        hashed = unordered
    return hashed.view(np.int32)


def _padded(segments: Segments) -> npt.NDArray[np.uint32]:
    """The four bytes at each position as one little endian number; three bytes are added at the end."""
    data = np.concatenate((segments.data[: int(segments.offsets[-1])], np.zeros(4, np.uint8)))
    return np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))


def _mix(block: UInt32s) -> UInt32s:
    block = block * _M
    block ^= block >> np.uint32(24)
    return block * _M


def _hash_words(data: UInt32s, start: Int64s, words: Int64s, hashed: UInt32s) -> None:
    """All complete words, in place; rows come with the longest first."""
    rising = -words
    for index in range(int(words[0])):
        rows = int(np.searchsorted(rising, -index))  # the first ones: those with more than ``index`` words
        if rows < _FEW_ROWS:
            for row in range(rows):
                hashed[row] = _hash_long(data, int(start[row]), index, int(words[row]), int(hashed[row]))
            return
        block = _mix(data[start[:rows] + 4 * index])
        part = hashed[:rows]
        part *= _M
        part ^= block


def _hash_long(data: UInt32s, start: int, first: int, words: int, value: int) -> int:
    """Words ``first`` to ``words`` of one long key; only their mixing can be done ahead."""
    multiplier = int(_M)
    for index in range(first, words, _LONG_STEP):
        last = min(index + _LONG_STEP, words)
        for block in _mix(data[start + 4 * index : start + 4 * last : 4]).tolist():
            value = (value * multiplier & _MASK) ^ block
    return value


def _hash_rest(data: UInt32s, at: Int64s, rest: Int64s, hashed: UInt32s) -> None:
    """The last one to three bytes, in place."""
    rows = np.flatnonzero(rest)
    if not len(rows):
        return
    keep = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
    hashed[rows] = (hashed[rows] ^ (data[at[rows]] & keep[rest[rows]])) * _M


def _finish(hashed: UInt32s) -> UInt32s:
    hashed = (hashed ^ (hashed >> np.uint32(13))) * _M
    return hashed ^ (hashed >> np.uint32(15))


def partitions_for(
    rows: int,
    partitions: int,
    *,
    topic: str,
    key: Column | None = None,
    explicit: Column | None = None,
    seed: int = 0,
) -> Int32s:
    """Target partition of each row.

    :param key: keys; ``None`` when every key is null
    :param explicit: integer column of wanted partitions; null leaves the choice to the key
    :param seed: where the spread of null keys begins: the number of null keys spread before, or a number
        that identifies the task
    :raises RecordRefused: an explicit partition does not exist; the message names value and topic
    """
    if partitions < 1:
        raise ValueError(f"topic {topic!r} has {partitions} partitions")
    if explicit is not None and explicit.null_count < rows:
        wanted, missing = _explicit(explicit, partitions, topic)
        if missing is None:
            return wanted
        chosen = np.flatnonzero(missing)
        left = None if key is None else key.take(pa.array(chosen))
        wanted[chosen] = partitions_for(len(chosen), partitions, topic=topic, key=left, seed=seed)
        return wanted
    if key is None or key.null_count == rows:
        return _spread(rows, partitions, seed)
    array = binary_column(key, "key")
    target = (murmur2(array).view(np.uint32) & _POSITIVE).astype(np.int32) % np.int32(partitions)
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        target[null] = _spread(array.null_count, partitions, seed)
    return target


def _spread(rows: int, partitions: int, seed: int) -> Int32s:
    return ((np.arange(seed, seed + rows, dtype=np.int64) // NULL_KEY_RUN) % partitions).astype(np.int32)


def _explicit(column: Column, partitions: int, topic: str) -> tuple[Int32s, npt.NDArray[np.bool_] | None]:
    missing = np.asarray(column.is_null())
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    wrong = np.flatnonzero((values < 0) | (values >= partitions))
    if len(wrong):
        raise RecordRefused(
            f"process returned partition {values[wrong[0]]}, and topic {topic!r} has partitions 0 to "
            f"{partitions - 1}; leave the column null to let the key choose"
        )
    return values.astype(np.int32), missing if missing.any() else None
