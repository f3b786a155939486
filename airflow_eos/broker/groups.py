"""Consumer groups: where their commits lie."""

from __future__ import annotations

import functools

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import BrokerConnections

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_partition(connections: BrokerConnections, group: str) -> TopicPartition:
    """Return the partition of ``__consumer_offsets`` that holds the group's commits.

    :raises AuthorizationFailed: without Describe on ``__consumer_offsets``.
    """
    # Looking for a coordinator makes the topic, on a cluster where no group has committed yet.
    connections.group_coordinator(group)
    count = connections.partition_counts([OFFSETS_TOPIC])[OFFSETS_TOPIC]
    return TopicPartition(OFFSETS_TOPIC, kafka_abs(java_hash(group)) % count)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be")
    value = functools.reduce(
        lambda h, i: (31 * h + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF,
        range(0, len(units), 2),
        0,
    )
    return value - (1 << 32) if value >= 1 << 31 else value


def kafka_abs(value: int) -> int:
    """Return Kafka's ``Utils.abs``: 0 for the one 32-bit number without a positive counterpart."""
    return 0 if value == -(1 << 31) else abs(value)
