"""What this client may do, and how topics are kept: asked of the brokers, for checks before a first run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource

from airflow_eos.broker.librdkafka import Admin
from airflow_eos.exceptions import AuthorizationFailed, UnknownTopic
from airflow_eos.wire.client_config import ClientConfig

ASK_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class TopicCare:
    """How a topic is kept, and what this client may do with it.

    :param replicas: smallest number of replicas of its partitions.
    :param operations: allowed operations (``READ``, ``WRITE``, ``DESCRIBE``, ...), KIP-430.
    :param settings: settings of the topic; None where they may not be read.
    """

    topic: str
    partitions: int
    replicas: int
    operations: frozenset[str]
    settings: Mapping[str, str] | None


class Permissions:
    """Asks the brokers what the principal of a client configuration may do.

    :param config: client configuration in librdkafka's names.
    """

    def __init__(self, config: ClientConfig | Mapping[str, Any]) -> None:
        self._admin = Admin(ClientConfig.of(config))

    def brokers(self) -> int:
        """Return the number of brokers."""
        cluster = self._admin.ask(
            "DescribeCluster",
            lambda left: self._admin.client.describe_cluster(request_timeout=left).result(),
            timeout=ASK_TIMEOUT,
        )
        return len(cluster.nodes)

    def topics(self, names: Collection[str]) -> Mapping[str, TopicCare | None]:
        """Return how each topic is kept; None for one that does not exist or may not be seen."""
        return {name: self._topic(name) for name in names}

    def group(self, group: str) -> frozenset[str]:
        """Return the allowed operations on a consumer group; empty where it may not even be described."""

        def question(left: float) -> Any:
            asked = self._admin.client.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=left
            )
            return asked[group].result()

        try:
            found = self._admin.ask(f"DescribeGroups of {group!r}", question, timeout=ASK_TIMEOUT)
        except AuthorizationFailed:
            return frozenset()
        return _names(found.authorized_operations)

    def _topic(self, name: str) -> TopicCare | None:
        def question(left: float) -> Any:
            asked = self._admin.client.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=left
            )
            return asked[name].result()

        try:
            found = self._admin.ask(f"DescribeTopics of {name!r}", question, timeout=ASK_TIMEOUT)
        except (UnknownTopic, AuthorizationFailed):
            return None
        return TopicCare(
            topic=name,
            partitions=len(found.partitions),
            replicas=min((len(one.replicas) for one in found.partitions), default=0),
            operations=_names(found.authorized_operations),
            settings=topic_settings(self._admin, name, timeout=ASK_TIMEOUT),
        )


def topic_settings(admin: Admin, name: str, *, timeout: float) -> Mapping[str, str] | None:
    """Return the settings of a topic; None where there is none, or they may not be read."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)

    def question(left: float) -> Any:
        return admin.client.describe_configs([resource], request_timeout=left)[resource].result()

    try:
        found = admin.ask(f"DescribeConfigs of {name!r}", question, timeout=timeout)
    except (AuthorizationFailed, UnknownTopic, KafkaException):
        return None
    return {key: str(entry.value) for key, entry in found.items() if entry.value is not None}


def _names(operations: Any) -> frozenset[str]:
    return frozenset(one.name for one in operations or ())
