"""Reads broker settings and request versions that decide which guarantees the brokers give."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from airflow_eos.broker.librdkafka import Admin, attempt
from airflow_eos.wire.backoff import NotYet, is_transient, translated
from airflow_eos.wire.connection import BrokerConnections

log = logging.getLogger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"
ID_EXPIRATION = "transactional.id.expiration.ms"
VERIFICATION = "transaction.partition.verification.enable"

_ADD_PARTITIONS_TO_TXN = 24
_VERIFYING_VERSION = 4
"""AddPartitionsToTxn version of brokers that verify partitions with the coordinator: Kafka 3.6 (KIP-890)."""
_VERIFYING_FEATURES = {"metadata.version": 12, "transaction.version": 1}
"""Lowest feature levels that only Kafka 3.6 and later support (3.6-IV0; TV_1, of 4.0)."""
_BROKER_TIMEOUT = 10.0
_FORBIDDEN = KafkaError.CLUSTER_AUTHORIZATION_FAILED


def transaction_max_timeout_ms(admin: Admin, *, timeout: float) -> int | None:
    """Return the smallest ``transaction.max.timeout.ms`` of all brokers; None if it may not be read."""
    values = _broker_settings(admin, MAX_TIMEOUT, timeout=timeout)
    return min(map(int, values)) if values else None


def transactional_id_expiration_ms(admin: Admin, *, timeout: float) -> int | None:
    """Return the smallest ``transactional.id.expiration.ms`` of all brokers; None if it may not be read."""
    values = _broker_settings(admin, ID_EXPIRATION, timeout=timeout)
    return min(map(int, values)) if values else None


def partition_verification(connections: BrokerConnections, admin: Admin, *, timeout: float) -> bool | None:
    """Return whether every broker refuses a batch for a partition that is not in its transaction (KIP-890).

    :returns: False if a broker is older than 3.6 or has it disabled; None if the setting may not be read.
    """
    if not all(_can_verify(answer) for answer in _api_versions(connections, admin, timeout=timeout)):
        return False
    values = _broker_settings(admin, VERIFICATION, timeout=timeout)
    return all(value.lower() == "true" for value in values) if values else None


def brokers_of(admin: Admin, left: float) -> list[int]:
    """Return the ids of all brokers; sends one request, the caller retries."""
    cluster = admin.client.describe_cluster(request_timeout=left).result()
    return sorted(node.id for node in cluster.nodes)


def _can_verify(answer: ApiVersionsResponse) -> bool:
    """Return whether the broker is Kafka 3.6 or later, by a request version or a feature level.

    AddPartitionsToTxn from version 4 on is for brokers only, and a broker may hide it from clients
    (KAFKA-15757). Every broker supports a finalised level.
    """
    # The list is empty if the broker rejects the request's version; such a broker is too old anyway.
    versions = {api.api_key: api.max_version for api in answer.api_keys}
    if versions.get(_ADD_PARTITIONS_TO_TXN, 0) >= _VERIFYING_VERSION:
        return True
    levels = [(feature.name, feature.max_version) for feature in answer.supported_features or ()]
    levels += [(feature.name, feature.max_version_level) for feature in answer.finalized_features or ()]
    return any(level >= _VERIFYING_FEATURES.get(name, level + 1) for name, level in levels)


def _api_versions(
    connections: BrokerConnections, admin: Admin, *, timeout: float
) -> list[ApiVersionsResponse]:
    """Ask all brokers at once; omits brokers that do not answer, as long as one does."""

    async def versions() -> list[ApiVersionsResponse]:
        request = {"client_software_name": "airflow-eos", "client_software_version": "0", "max_version": 3}
        asked = [
            connections.send(ApiVersionsRequest(**request), node, timeout=_BROKER_TIMEOUT)
            for node in admin.ask("DescribeCluster", lambda left: brokers_of(admin, left), timeout=timeout)
        ]
        answers: list[ApiVersionsResponse] = []
        last: Exception = NotYet("no broker is known")
        for future in asked:
            try:
                answer = await future
            except Exception as error:
                if not is_transient(error):
                    raise translated(error, "request versions of a broker") from error
                last = error
                continue
            answers.append(answer)
        if not answers:
            raise last
        return answers

    return connections.run(
        connections.retry_async(versions, subject="request versions of the brokers", timeout=timeout)
    )


def _broker_settings(admin: Admin, name: str, *, timeout: float) -> list[str]:
    """Return the setting of each broker that answers and has it; empty if settings may not be read."""

    def question(left: float) -> list[str]:
        # librdkafka accepts one broker per call.
        futures = [
            future
            for node in brokers_of(admin, left)
            for future in admin.client.describe_configs(
                [ConfigResource(ConfigResource.Type.BROKER, str(node))],
                request_timeout=min(left, _BROKER_TIMEOUT),
            ).values()
        ]
        answers = [attempt(future.result) for future in futures]
        if all(error is not None for _, error in answers):
            raise KafkaException(answers[0][1])
        if any(error is not None and error.code() == _FORBIDDEN for _, error in answers):
            raise KafkaException(KafkaError(_FORBIDDEN))
        entries = [settings.get(name) for settings, _ in answers if settings is not None]
        return [str(entry.value) for entry in entries if entry is not None and entry.value is not None]

    def allowed(left: float) -> list[str]:
        values, error = attempt(lambda: question(left))
        if error is None:
            return values or []
        if error.code() == _FORBIDDEN:
            log.info("Cannot read broker settings: DescribeConfigs on the cluster is not granted")
            return []
        raise KafkaException(error)

    return admin.ask(f"broker setting {name!r}", allowed, timeout=timeout)
