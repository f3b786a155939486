"""Finds the first record at or after a time; ListOffsets may answer with a marker, or miss it.

A marker has the time of the broker's clock, not that of the records around it. In a topic into which history
is loaded, ListOffsets would return the first transaction's marker for every later time of that history.

Brokers search one segment only, the first whose highest timestamp is not older. Its record of that time may
have been removed, by compaction (a producer's last batch stays, without records, but with its timestamp) or
DeleteRecords, or none of its records has a timestamp. Then they find nothing, whatever later segments hold.

A record of an aborted transaction counts like any other, except one of the far future, which would stop all
later intervals although no reader sees it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain

import numpy as np

from airflow_eos.exceptions import CorruptBatch, OffsetsOutOfRange
from airflow_eos.model.kafka import TimedOffset
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import first_since, list_offsets, max_timestamps

_MAX_ATTEMPTS = 5
_AHEAD_MS = 3_600_000  # brokers' default of message.timestamp.after.max.ms from Kafka 4 on


def first_records(
    connections: BrokerConnections,
    firsts: Mapping[TopicPartition, TimedOffset | None],
    timestamp: int,
    *,
    markers: bool = False,
) -> dict[TopicPartition, TimedOffset | None]:
    """Return the first record with timestamp >= ``timestamp`` ms in each partition; None if there is none.

    Covers the log up to the high watermark, including records of open and aborted transactions. If a broker
    returns a marker, or misses a record, the log is read until a record matches, at worst to its end.

    :param firsts: the brokers' answers to this time (:func:`~airflow_eos.wire.offsets.first_since`).
    :param markers: return a marker if a broker does.
    :raises OffsetsOutOfRange: the head of a log is deleted as fast as it is read.

    Other errors as :func:`~airflow_eos.wire.fetch.fetch_answers`.
    """
    idle = [tp for tp, first in firsts.items() if first is None]
    newest = max_timestamps(connections, idle) if idle else {}
    later = [tp for tp, highest in newest.items() if highest >= max(timestamp, 0)]
    # Such a record may have arrived since the first look-up.
    firsts = {**firsts, **(first_since(connections, later, timestamp) if later else {})}
    missed = {tp for tp in later if firsts[tp] is None}
    return {
        tp: first
        if tp not in missed and (markers or first is None)
        else _first_record(connections, tp, first, timestamp)
        for tp, first in firsts.items()
    }


def _first_record(
    connections: BrokerConnections, tp: TopicPartition, first: TimedOffset | None, timestamp: int
) -> TimedOffset | None:
    """Return the broker's answer if it is a record, else (also for None) search for the first record."""
    for attempts_left in reversed(range(_MAX_ATTEMPTS)):
        try:
            if first is None:
                start = list_offsets(connections, [tp], "earliest")[tp]
                return _search(connections, tp, start, timestamp)
            if first.timestamp > time.time() * 1000 + _AHEAD_MS:
                return _search(connections, tp, first.offset, timestamp)
            if _is_marker(connections, tp, first.offset):
                return _search(connections, tp, first.offset + 1, timestamp)
            break
        except OffsetsOutOfRange:  # deleted since the look-up
            if not attempts_left:
                raise
            first = first_since(connections, [tp], timestamp)[tp]
    return first


def _is_marker(connections: BrokerConnections, tp: TopicPartition, offset: int) -> bool:
    answers = fetch_answers(
        connections,
        tp,
        offset,
        offset + 1,
        isolation="read_uncommitted",
        max_bytes=1,  # brokers return at least one whole batch (KIP-74)
    )
    return any(
        batch.header.is_control
        for answer in answers
        for batch in answer.batches
        if batch.header.base_offset <= offset <= batch.header.last_offset
    )


def _search(
    connections: BrokerConnections, tp: TopicPartition, start: int, timestamp: int
) -> TimedOffset | None:
    """Read the log from ``start``; return the first record at or after the time that is not aborted.

    A batch that cannot be decoded counts by its header, with its first offset: a run skips all of it or none.
    """
    end = list_offsets(connections, [tp], "latest", isolation="read_uncommitted")[tp]
    stable = list_offsets(connections, [tp], "latest")[tp]
    decided = fetch_answers(connections, tp, start, stable)
    undecided = fetch_answers(connections, tp, max(start, stable), end, isolation="read_uncommitted")
    for answer in chain(decided, undecided):
        for batch in data_batches(answer.batches, answer.aborted):
            if batch.header.max_timestamp < timestamp:
                continue
            try:
                records = decode_batch(
                    batch, start=start, end=end, headers=False, limits=connections.config.decode_limits
                )
            except CorruptBatch:
                batch.check_crc()  # else its header proves nothing
                return TimedOffset(max(start, batch.header.base_offset), batch.header.max_timestamp)
            hits = np.flatnonzero(records.timestamp >= timestamp)
            if len(hits):
                first = int(hits[0])
                return TimedOffset(int(records.offset[first]), int(records.timestamp[first]))
    return None
