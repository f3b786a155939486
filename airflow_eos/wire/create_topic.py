"""CreateTopics: a topic with its settings (KIP-4)."""

from __future__ import annotations

from collections.abc import Mapping

import kafka.errors as kafka_errors
from kafka.protocol.admin import CreateTopicsRequest

from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, RequestRefused
from airflow_eos.wire.backoff import is_transient
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections

_BROKERS_TIMEOUT_MS = 8_000
"""Brokers answer before :meth:`BrokerConnections.ask_any_async` gives up on them."""


def create_topic(
    connections: BrokerConnections,
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
) -> bool:
    """Create a topic; return False if it exists already.

    :param replication_factor: -1 for the brokers' default.
    :raises AuthorizationFailed: Create on the cluster or the topic is missing.
    :raises RequestRefused: the brokers refuse the topic, with their reason.
    :raises BrokersUnavailable: no broker has created it after :data:`METADATA_TIMEOUT` seconds; or there
        are fewer brokers than replicas, perhaps because the cluster is starting.
    """
    topic_class = CreateTopicsRequest.CreatableTopic
    topic = topic_class(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[topic_class.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=_BROKERS_TIMEOUT_MS, validate_only=False, min_version=4, max_version=7
    )
    subject = f"creating the topic {name!r}"

    async def attempt() -> bool:
        answer = (await connections.ask_any_async(request)).topics[0]
        error = kafka_errors.for_code(answer.error_code)(answer.error_message)
        if is_transient(error):  # also from a broker that is not the controller: the retry asks another one
            raise error
        if isinstance(error, kafka_errors.AuthorizationError):
            raise AuthorizationFailed(
                f"{subject} is refused: grant this principal Create on the topic by an ACL"
            )
        if isinstance(error, kafka_errors.InvalidReplicationFactorError):
            raise BrokersUnavailable(
                f"{subject}: {error}. Retry when all brokers have started, or create it with fewer replicas: "
                "'airflow eos init --replication-factor' or LedgerSettings(replication_factor=...)"
            )
        if answer.error_code and not isinstance(error, kafka_errors.TopicAlreadyExistsError):
            raise RequestRefused(f"{subject}: {error}")
        return not answer.error_code

    return connections.run(connections.retry_async(attempt, subject=subject, timeout=METADATA_TIMEOUT))
