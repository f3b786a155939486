"""Helpers of the wire tests: sealed batches, epochs, whole transactions, and waiting."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.limits import DEFAULT_LIMITS
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.wire.fetch import decoded, fetch_answers
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn
from tests.support.patience import wait_until

# A killed broker can register again, and others take over, only after its session has ended: 9 s by default.
QUICK_SESSIONS = {"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500"}


def fetch_range(connections, topic, partition, start, end, *, limits=DEFAULT_LIMITS, **options):
    """Return the records of a range, decoded."""
    answers = fetch_answers(connections, TopicPartition(topic, partition), start, end, **options)
    return decoded(connections, answers, start, end, limits)


def texts(prefix, count):
    """Return ``prefix-00000`` and so on."""
    return [f"{prefix}-{n:05d}" for n in range(count)]


def sealed(values, records_per_batch=10, compressor="none"):
    """Return (record count, batch) pairs of a list of texts, unstamped."""
    pairs = []
    for begin in range(0, len(values), records_per_batch):
        column = pa.array([v.encode() for v in values[begin : begin + records_per_batch]], pa.binary())
        batches = seal(column, np.zeros(len(column), np.int32), topic="t", compressor=compressor)
        pairs.extend((batch.records, batch.data) for batch in batches)
    return pairs


def append(connections, tp, batch):
    """Write a batch unchanged, outside a transaction."""
    topic_class = ProduceRequest.TopicProduceData
    part = topic_class.PartitionProduceData(index=tp.partition, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[topic_class(name=tp.topic, partition_data=[part])],
        max_version=9,
    )
    answer = connections.wait(
        connections.send(request, connections.topics([tp.topic])[tp.topic].leaders[tp.partition])
    )
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def take_epoch(connections, transactional_id, timeout_ms=60_000):
    """Take a new epoch of a transactional id; older ones are fenced and their transaction is aborted."""

    def initialise():
        node = connections.coordinator("transaction", transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        answer = connections.wait(connections.send(request, node))
        assert answer.error_code in (0, 14, 15, 16, 51), answer
        if answer.error_code:
            connections.forget_coordinator("transaction", transactional_id)
            return None
        return ProducerIdentity(transactional_id, answer.producer_id, answer.producer_epoch)

    return wait_until(initialise)


def open_transaction(connections, transactional_id, partitions, **options):
    """Take a new epoch and add these partitions to its transaction."""
    identity = take_epoch(connections, transactional_id, **options)
    add_partitions_to_txn(connections, identity, partitions)
    return identity


def transaction(connections, tp, values, *, commit=True, records_per_batch=10, transactional_id=None):
    """Write texts to one partition in a new transaction, wait for its marker; return the receipt."""
    identity = open_transaction(connections, transactional_id or f"tx-{tp}", [tp])
    batches = {tp: sealed(values, records_per_batch)}
    (receipt,) = send_partitions(connections, identity, batches)
    end_txn(connections, identity, commit=commit)
    wait_for_marker(connections, tp, receipt.last_offset)
    return receipt


def commit(connections, identity, receipts):
    """Commit, and wait until every written partition has the marker."""
    end_txn(connections, identity, commit=True)
    for receipt in receipts:
        if receipt.records:
            tp = partition(receipt.topic, receipt.partition)
            wait_for_marker(connections, tp, receipt.last_offset)


def wait_for_marker(connections, tp, last_offset):
    """Wait until the last stable offset has passed a transaction: its marker is written."""
    wait_until(lambda: list_offsets(connections, [tp], "latest")[tp] > last_offset + 1)


def end_of(connections, tp, isolation="read_committed"):
    """Return the last stable offset, or the high watermark for ``read_uncommitted``."""
    return list_offsets(connections, [tp], "latest", isolation=isolation)[tp]


def read(connections, tp, start=0, end=None, **options):
    """Return (offset, text) pairs of a range; default end: the last stable offset."""
    isolation = options.get("isolation", "read_committed")
    end = end_of(connections, tp, isolation) if end is None else end
    return [
        (int(offset), value.decode())
        for batch in fetch_range(connections, tp.topic, tp.partition, start, end, **options)
        for offset, value in zip(batch.offset, batch.value.to_pylist(), strict=True)
    ]


def values_of(pairs):
    """Return the texts without their offsets."""
    return [value for _, value in pairs]


def partition(topic, number=0):
    """Shorthand for a TopicPartition."""
    return TopicPartition(topic, number)


def during(seconds, act):
    """Start a thread that runs a fault after some seconds; the caller must join it."""
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def slowly(pairs, pause=0.02):
    """Yield batches slowly, so that faults hit an unfinished send."""
    for pair in pairs:
        time.sleep(pause)
        yield pair
