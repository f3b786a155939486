"""Lower bounds: the cost of broker and network if nothing is decoded, transformed or encoded."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.recordbatch.header import ATTRIBUTES_AT, LENGTH_END, TRANSACTIONAL_BIT
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.wire.client_config import ClientConfig


BASE_OFFSET_BYTES = 8


def whole_topic(config: ClientConfig, topic: str) -> tuple[OffsetRange, ...]:
    """Return the ranges of all records that a read_committed reader sees now."""
    with BrokerConnections(config) as connections:
        partitions = [
            TopicPartition(topic, number) for number in sorted(connections.topics([topic])[topic].leaders)
        ]
        starts = list_offsets(connections, partitions, "earliest")
        ends = list_offsets(connections, partitions, "latest")
    return tuple(OffsetRange(p.topic, p.partition, starts[p], ends[p]) for p in partitions)


def fetch_raw(config: ClientConfig, topic: str, sink: str) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Fetch a topic in one process, undecoded; return (records, batch) pairs per partition of ``sink``."""
    answers: dict[TopicPartition, list[tuple[int, bytes]]] = {}
    with BrokerConnections(config) as connections:
        for wanted in whole_topic(config, topic):
            batches = answers.setdefault(TopicPartition(sink, wanted.partition), [])
            for answer in fetch_answers(connections, wanted.topic_partition, wanted.start, wanted.end):
                for raw in answer.batches:
                    if not raw.header.is_control:
                        batches.append((raw.header.record_count, _as_new(raw.data)))
    return answers


def _as_new(batch: memoryview) -> bytes:
    """Return a batch as a producer makes it: transactional, without log fields; the sender sets the CRC."""
    changed = bytearray(batch)
    changed[:BASE_OFFSET_BYTES] = bytes(BASE_OFFSET_BYTES)
    changed[LENGTH_END : LENGTH_END + 4] = b"\xff" * 4  # no leader epoch
    changed[ATTRIBUTES_AT + 1] |= TRANSACTIONAL_BIT
    return bytes(changed)


def produce_raw(
    config: ClientConfig, servers: str, batches: Mapping[TopicPartition, list[tuple[int, bytes]]]
) -> float:
    """Send ready batches in one transaction and process; return the seconds of the send alone."""
    from confluent_kafka import Producer

    results: dict[str, Any] = {}
    name = f"floor-{uuid.uuid4().hex}"
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "statistics.interval.ms": 50,
            "stats_cb": lambda text: results.update(json.loads(text).get("eos", {})),
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    while results.get("txn_state") != "InTransaction":
        producer.poll(0.02)
    identity = ProducerIdentity(name, results["producer_id"], results["producer_epoch"])
    with BrokerConnections(config) as connections:
        add_partitions_to_txn(connections, identity, list(batches))
        begun = time.perf_counter()
        send_partitions(connections, identity, batches)
        taken = time.perf_counter() - begun
        end_txn(connections, identity, commit=True)
    return taken
