"""Asks brokers for permissions and topic settings, for checks before a first run."""

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
    """Replication and settings of a topic, and the operations that this client may perform on it.

    :param replicas: smallest number of replicas of a partition.
    :param operations: allowed operations (``READ``, ``WRITE``, ``DESCRIBE``, ...), KIP-430.
    :param settings: settings of the topic; None if they may not be read.
    """

    topic: str
    partitions: int
    replicas: int
    operations: frozenset[str]
    settings: Mapping[str, str] | None


class Permissions:
    """Asks the brokers for the permissions of a client configuration's principal.

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
        """Return each topic's replication, settings and operations; None if it is missing or not visible."""
        return {name: self._topic(name) for name in names}

    def group(self, group: str) -> frozenset[str]:
        """Return the allowed operations on a consumer group; empty if even Describe is missing."""

        def question(left: float) -> Any:
            asked = self._admin.client.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=left
            )
            return asked[group].result()

        try:
            description = self._admin.ask(f"DescribeGroups of {group!r}", question, timeout=ASK_TIMEOUT)
        except AuthorizationFailed:
            return frozenset()
        return _names(description.authorized_operations)

    def _topic(self, name: str) -> TopicCare | None:
        def question(left: float) -> Any:
            asked = self._admin.client.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=left
            )
            return asked[name].result()

        try:
            description = self._admin.ask(f"DescribeTopics of {name!r}", question, timeout=ASK_TIMEOUT)
        except (UnknownTopic, AuthorizationFailed):
            return None
        return TopicCare(
            topic=name,
            partitions=len(description.partitions),
            replicas=min((len(partition.replicas) for partition in description.partitions), default=0),
            operations=_names(description.authorized_operations),
            settings=topic_settings(self._admin, name, timeout=ASK_TIMEOUT),
        )


def topic_settings(admin: Admin, name: str, *, timeout: float) -> Mapping[str, str] | None:
    """Return the settings of a topic; None if it does not exist, or they may not be read."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)

    def question(left: float) -> Any:
        return admin.client.describe_configs([resource], request_timeout=left)[resource].result()

    try:
        entries = admin.ask(f"DescribeConfigs of {name!r}", question, timeout=timeout)
    except (AuthorizationFailed, UnknownTopic, KafkaException):
        return None
    return {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}


def _names(operations: Any) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())
