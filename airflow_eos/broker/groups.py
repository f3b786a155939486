"""Consumer groups: committed offsets, members, and where the commits lie."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from airflow_eos.broker.admin import Admin
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.model.broker import CommittedOffset
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import BrokerConnections

OFFSETS_TOPIC = "__consumer_offsets"


def committed_offsets(
    admin: Admin, group: str, partitions: Collection[TopicPartition], *, timeout: float, stable: bool = True
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return committed offsets; partitions without one are absent.

    :param stable: wait for offsets that are pending in an open transaction (``require_stable``, KIP-447);
        False returns the last committed ones at once.
    """
    if not partitions:
        return {}
    wanted = [confluent_kafka.TopicPartition(where.topic, where.partition) for where in sorted(partitions)]

    def call(left: float) -> dict[TopicPartition, CommittedOffset]:
        request = ConsumerGroupTopicPartitions(group, wanted)
        futures = admin.client.list_consumer_group_offsets(
            [request], require_stable=stable, request_timeout=left
        )
        answer = futures[group].result().topic_partitions
        failed = [entry.error for entry in answer if entry.error is not None]
        if failed:
            raise KafkaException(failed[0])
        return {
            TopicPartition(entry.topic, entry.partition): CommittedOffset(entry.offset, entry.metadata or "")
            for entry in answer
            if entry.offset >= 0
        }

    return admin.ask(f"committed offsets of group {group!r}", call, timeout=timeout)


def live_members(admin: Admin, group: str, *, timeout: float) -> int:
    """Return how many members the group has, classic or KIP-848; a group nobody knows has none."""

    def call(left: float) -> int:
        try:
            description = admin.client.describe_consumer_groups([group], request_timeout=left)[group].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise
        return len(description.members)

    try:
        return admin.ask(f"DescribeGroups of group {group!r}", call, timeout=timeout)
    except AuthorizationFailed as error:
        raise AuthorizationFailed(
            f"this principal may not Describe consumer group {group!r}, so nobody can tell whether it has "
            f"members: grant Describe on group {group!r} by an ACL"
        ) from error


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
