"""What the sealer must know of a target topic: its leaders and its largest batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.protocol.admin import DescribeConfigsRequest

from airflow_eos.recordbatch.sealer import MAX_MESSAGE_BYTES
from airflow_eos.wire.retry import is_transient

if TYPE_CHECKING:
    from airflow_eos.wire.connection import BrokerConnections

_LIMIT = "max.message.bytes"
_TOPIC_RESOURCE = 2  # ConfigResource.Type of Kafka's protocol


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic that is written.

    :param leaders: leader's node id per partition, at the time of asking.
    :param max_message_bytes: the topic's ``max.message.bytes``; Kafka's default where it may not be read.
    """

    topic: str
    leaders: Mapping[int, int]
    max_message_bytes: int

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.leaders)


def describe_targets(connections: BrokerConnections, topics: Iterable[str]) -> dict[str, TargetTopic]:
    """Ask for topics that are to be written.

    :raises UnknownTopic: naming the topic.
    :raises AuthorizationFailed: when it may not be described.
    """
    found = connections.topics(topics)
    node = next(
        (leader for topic in found.values() for leader in topic.leaders.values() if leader >= 0), None
    )
    limits = {} if node is None else _limits(connections, list(found), node)
    return {
        name: TargetTopic(name, dict(topic.leaders), limits.get(name, MAX_MESSAGE_BYTES))
        for name, topic in found.items()
    }


def _limits(connections: BrokerConnections, topics: list[str], node: int) -> dict[str, int]:
    """``max.message.bytes`` per topic; topics whose configuration may not be read are absent."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_LIMIT]
            )
            for topic in topics
        ],
        include_synonyms=False,
        include_documentation=False,
        max_version=4,
    )
    try:
        answer: Any = connections.call(request, node)
    except Exception as error:
        if not is_transient(error):
            raise
        return {}
    return {
        result.resource_name: int(config.value)
        for result in answer.results
        if not result.error_code
        for config in result.configs
        if config.name == _LIMIT and config.value is not None
    }
