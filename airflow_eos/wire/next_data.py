"""Finds the next offset with a record for ``read_committed`` readers.

Markers, aborted transactions and compaction leave offsets without records, sometimes many thousands in a row.
"""

from __future__ import annotations

from airflow_eos.model.ranges import OffsetRange
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import FetchedAnswer, fetch_answers

LOOK_BYTES = 64 << 20
"""Maximum number of bytes that the search reads in one partition."""


def next_data(connections: BrokerConnections, wanted: OffsetRange) -> int:
    """Return an offset of the range below which the range has no record; the range's end if it has none.

    Usually this costs one small request. After :data:`LOOK_BYTES` without a record the search stops and
    returns the offset that it has reached.

    Raises as :func:`~airflow_eos.wire.fetch.fetch_answers`.
    """
    tp = wanted.topic_partition
    first = next(
        fetch_answers(connections, tp, wanted.start, wanted.start + 1, max_bytes=1), None
    )  # brokers return at least one whole batch (KIP-74)
    if first is None:
        position = wanted.start + 1
    elif (begin := _begin(first)) is not None:
        return min(max(wanted.start, begin), wanted.end)
    else:
        position = first.next_position
    read_bytes = 0
    if position < wanted.end:
        for answer in fetch_answers(connections, tp, position, wanted.end):
            begin = _begin(answer)
            position = answer.next_position if begin is None else max(answer.position, begin)
            read_bytes += len(answer.data)
            if begin is not None or read_bytes >= LOOK_BYTES:
                return min(position, wanted.end)
    return wanted.end


def _begin(answer: FetchedAnswer) -> int | None:
    """Return the base offset of the first batch with a record that the reader may see."""
    return next(
        (
            batch.header.base_offset
            for batch in data_batches(answer.batches, answer.aborted)
            if batch.header.record_count
        ),
        None,
    )
