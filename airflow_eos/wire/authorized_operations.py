"""Asks brokers which operations this principal may perform on topics and groups (KIP-430)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.metadata import MetadataRequest

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.coordinators import Coordinator

_CODES = {"READ": 3, "WRITE": 4, "DESCRIBE": 8}  # of AclOperation
_FORBIDDEN = frozenset({29, 30})  # TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED


def topic_operations(
    connections: BrokerConnections, topics: Collection[str], *, timeout: float
) -> Mapping[str, frozenset[str] | None]:
    """Return which of READ, WRITE and DESCRIBE are allowed on each topic; None if a broker does not say.

    :param timeout: seconds.
    """
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
        max_version=12,
    )

    async def attempt() -> Mapping[str, frozenset[str] | None]:
        answer = await connections.ask_any_async(request)
        return {topic.name: _named(topic.error_code, topic.authorized_operations) for topic in answer.topics}

    subject = f"permissions on {', '.join(sorted(topics))}"
    return connections.run(connections.retry_async(attempt, subject=subject, timeout=timeout))


def group_operations(connections: BrokerConnections, group: str, *, timeout: float) -> frozenset[str] | None:
    """Return the operations that are allowed on a group; values as in :func:`topic_operations`."""
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True, max_version=5)

    async def attempt(node: int) -> frozenset[str] | None:
        described = (await connections.send(request, node)).groups[0]
        return _named(described.error_code, described.authorized_operations)

    subject = f"permissions on group {group!r}"
    try:
        return Coordinator(connections, "group", group).ask(attempt, subject, timeout)
    except AuthorizationFailed:  # without Describe, brokers do not even name the coordinator
        return frozenset()


def _named(error_code: int, codes: Collection[int] | None) -> frozenset[str] | None:
    if error_code in _FORBIDDEN:
        return frozenset()
    if error_code or codes is None:
        return None
    return frozenset(name for name, code in _CODES.items() if code in codes)
