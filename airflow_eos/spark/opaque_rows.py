"""Sealed rows as bytes, for seals without a DataFrame.

An element is a head and the batch, if the row has one. The byte order of heads is the order of batches in the
log: topic, partition, seal task, number.

=======================  =====================================================================
topic                    UTF-8, then a zero byte, which no topic name has; empty in a trailer
partition, seal task     32 bits each, big endian
seq                      32 bits
attempt, records         64 bits each
whether there is a batch 8 bits
=======================  =====================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_eos.spark.sealed_rows import SCHEMA

_NUMBERS = struct.Struct(">iiiqq?")
_END = b"\0"
ROWS = 64
"""Elements put into one Arrow batch: a batch of records has up to 1 MB."""


class Head(NamedTuple):
    """The columns of a row except its batch, in the order of :mod:`airflow_eos.spark.sealed_rows`."""

    topic: str | None
    partition: int
    seal_partition: int
    attempt_id: int
    seq: int
    records: int
    size: int | None
    """Bytes of the batch; None: a trailer."""


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield (owner, element) for each sealed row."""
    for batch in batches:
        columns = [batch.column(name) for name in SCHEMA.names[:-1]]
        data = batch.column("batch")
        for row, (owner, topic, partition, task, attempt, seq, records) in enumerate(
            zip(*(column.to_pylist() for column in columns), strict=True)
        ):
            sealed = data[row].as_buffer()
            numbers = _NUMBERS.pack(partition, task, seq, attempt, records, sealed is not None)
            yield owner, b"".join(((topic or "").encode(), _END, numbers, sealed or b""))


def head(element: bytes) -> tuple[Head, int]:
    """Return the head of an element, and the position of its batch."""
    end = element.index(_END)
    partition, task, seq, attempt, records, has_batch = _NUMBERS.unpack_from(element, end + 1)
    start = end + 1 + _NUMBERS.size
    size = len(element) - start if has_batch else None
    return Head(element[:end].decode() or None, partition, task, attempt, seq, records, size), start


def unpacked(elements: Iterable[bytes], rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of sealed rows, without their owner."""
    waiting: list[tuple[Any, ...]] = []
    for element in elements:
        columns, start = head(element)
        # A copy: PyArrow (26) never releases a memoryview from which it made an array.
        batch = None if columns.size is None else element[start:]
        waiting.append((*columns[:-1], batch))
        if len(waiting) == rows:
            yield _arrow(waiting)
            waiting = []
    if waiting:
        yield _arrow(waiting)


_UNPACKED = pa.schema([SCHEMA.field(name) for name in (*Head._fields[:-1], "batch")])


def _arrow(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = dict(zip(_UNPACKED.names, zip(*rows, strict=True), strict=True))
    return pa.RecordBatch.from_pydict(columns, schema=_UNPACKED)
