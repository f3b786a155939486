"""Committed offsets and live members of a consumer group, and the partition that stores its commits.

The requests do not go through librdkafka: its admin client aborts the whole process when a broker goes away
during a request to a group's coordinator (an assertion in its coordinator requests, seen with 2.16). They
raise BrokersUnavailable after their time-out, with the last answer, and AuthorizationFailed if Describe on
the group, or on a topic in the request, is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kafka import OFFSETS_TOPIC, CommittedOffset, GroupDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import (
    METADATA_TIMEOUT,
    BrokerConnections,
    by_topic,
    operation_names,
    parts_of,
)
from airflow_eos.wire.coordinators import Coordinator
from airflow_eos.wire.error_codes import GROUP, SHARE_GROUP

_GROUP_ID_NOT_FOUND = 69
_UNSTABLE_OFFSET_COMMIT = 88
_EMPTY = "Empty"
_NOT_CLASSIC = ("", "Dead")
"""States of DescribeGroups for a group that is unknown, or a KIP-848 group."""


def fetch_committed_offsets(
    connections: BrokerConnections,
    group: str,
    partitions: Collection[TopicPartition] | None,
    *,
    stable: bool = True,
    timeout: float = METADATA_TIMEOUT,
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return committed offsets; partitions without one are absent.

    :param partitions: None for all partitions with a committed offset, in topics that this principal may
        Describe.
    :param stable: wait for offsets that are pending in an open transaction (``require_stable``, KIP-447);
        False returns the last committed ones at once.
    :param timeout: seconds, including all retries.
    """
    subject = f"committed offsets of group {group!r}"
    coordinator = Coordinator(connections, "group", group)

    async def attempt(node: int) -> dict[TopicPartition, CommittedOffset]:
        answer = await connections.send(_offsets_request(group, partitions, stable=stable), node)
        coordinator.check(GROUP, answer.error_code, subject)
        committed: dict[TopicPartition, CommittedOffset] = {}
        for tp, part in parts_of(answer):
            coordinator.check(GROUP, part.error_code, f"{subject} in {tp}")
            if part.committed_offset >= 0:
                # librdkafka commits the NUL that ends a C string along with the metadata.
                metadata = (part.metadata or "").removesuffix("\0")
                committed[tp] = CommittedOffset(part.committed_offset, metadata)
        return committed

    if partitions is not None and not partitions:
        return {}
    return coordinator.ask(attempt, subject, timeout)


def has_pending_offsets(
    connections: BrokerConnections,
    group: str,
    partitions: Collection[TopicPartition],
) -> bool:
    """Return whether an open transaction holds offsets of one of the partitions now (KIP-447)."""
    subject = f"pending offsets of group {group!r}"
    coordinator = Coordinator(connections, "group", group)

    async def attempt(node: int) -> bool:
        answer = await connections.send(_offsets_request(group, partitions, stable=True), node)
        codes = {answer.error_code, *(part.error_code for _, part in parts_of(answer))}
        for code in codes - {_UNSTABLE_OFFSET_COMMIT}:
            coordinator.check(GROUP, code, subject)
        return _UNSTABLE_OFFSET_COMMIT in codes

    if not partitions:
        return False
    return coordinator.ask(attempt, subject, METADATA_TIMEOUT)


def describe_group(connections: BrokerConnections, group: str) -> GroupDescription:
    """Return the number of live members, and which operations are allowed.

    :raises ConfigurationError: it is a share group.
    """
    subject = f"DescribeGroups of group {group!r}"
    coordinator = Coordinator(connections, "group", group)
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True, max_version=5)

    async def attempt(node: int) -> GroupDescription:
        described = (await connections.send(request, node)).groups[0]
        if described.error_code != _GROUP_ID_NOT_FOUND:
            coordinator.check(GROUP, described.error_code, subject)
        members = len(described.members)
        if not members and described.group_state in _NOT_CLASSIC:
            members = await _members_listed(coordinator, node, subject)
        elif not members and described.group_state != _EMPTY:
            members = 1
        return GroupDescription(group, members, operation_names(described.authorized_operations))

    return coordinator.ask(attempt, subject, METADATA_TIMEOUT)


async def _members_listed(coordinator: Coordinator, node: int, subject: str) -> int:
    """Return 1 if ListGroups shows a group with members: DescribeGroups knows classic groups only.

    :raises ConfigurationError: it is a share group (KIP-932).
    """
    request = ListGroupsRequest(states_filter=[], types_filter=[], max_version=5)
    listed = await coordinator.connections.send(request, node)
    coordinator.check(GROUP, listed.error_code, subject)
    entries = [entry for entry in listed.groups if entry.group_id == coordinator.key]
    if any(entry.group_type == "share" for entry in entries):
        raise ConfigurationError(f"{subject}: {SHARE_GROUP}")
    return sum(entry.group_state not in (*_NOT_CLASSIC, _EMPTY) for entry in entries)


def _offsets_request(group: str, partitions: Collection[TopicPartition] | None, *, stable: bool) -> Any:
    topic_class = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = by_topic(
        partitions or (), lambda name, numbers: topic_class(name=name, partition_indexes=numbers)
    )
    return OffsetFetchRequest(
        group_id=group,
        topics=None if partitions is None else topics,
        require_stable=stable,
        min_version=7,
        max_version=7,
    )


def offsets_partition(connections: BrokerConnections, group: str) -> TopicPartition:
    """Return the partition of ``__consumer_offsets`` that holds the group's commits.

    :raises AuthorizationFailed: Describe on ``__consumer_offsets`` is missing.
    """
    # FindCoordinator creates the topic on a cluster where no group has committed yet.
    connections.coordinator("group", group)
    # Brokers choose the partition by the number that they read when they started.
    topic = connections.known_topic(OFFSETS_TOPIC) or connections.topics([OFFSETS_TOPIC])[OFFSETS_TOPIC]
    return offsets_partition_of(group, len(topic.leaders))


def offsets_partition_of(group: str, partitions: int) -> TopicPartition:
    """Return the partition that holds the group's commits if ``__consumer_offsets`` has so many."""
    positive = abs(java_hash(group)) % (1 << 31)  # Kafka's Utils.abs: 0 for the smallest 32-bit integer
    return TopicPartition(OFFSETS_TOPIC, positive % partitions)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be")
    value = functools.reduce(
        lambda h, i: (31 * h + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF,
        range(0, len(units), 2),
        0,
    )
    return value - (1 << 32) if value >= 1 << 31 else value
