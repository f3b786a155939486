"""What the brokers allow and check: settings and request versions."""

from __future__ import annotations

import logging
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_eos.broker.admin import Admin
from airflow_eos.broker.failures import attempt
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.failures import NotYet

log = logging.getLogger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"
VERIFICATION = "transaction.partition.verification.enable"

_ADD_PARTITIONS_TO_TXN = 24
_VERIFYING_VERSION = 4
"""AddPartitionsToTxn of brokers that ask the coordinator about a partition: Kafka 3.6 (KIP-890)."""
_BROKER_TIMEOUT = 15.0


def transaction_max_timeout_ms(admin: Admin, *, timeout: float) -> int | None:
    """Return the smallest ``transaction.max.timeout.ms`` of all brokers, None where it may not be read."""
    values = _broker_settings(admin, MAX_TIMEOUT, timeout=timeout)
    return min(map(int, values)) if values else None


def partition_verification(connections: BrokerConnections, admin: Admin, *, timeout: float) -> bool | None:
    """Return whether every broker refuses a batch for a partition that is not in its transaction (KIP-890).

    :returns: False for brokers older than 3.6 and where it is switched off; None where nobody may read it.
    """
    if any(
        version < _VERIFYING_VERSION
        for version in _add_partitions_versions(connections, admin, timeout=timeout)
    ):
        return False
    values = _broker_settings(admin, VERIFICATION, timeout=timeout)
    return all(value.lower() == "true" for value in values) if values else None


def _nodes(admin: Admin, *, timeout: float) -> list[int]:
    cluster = admin.ask(
        "DescribeCluster",
        lambda left: admin.client.describe_cluster(request_timeout=left).result(),
        timeout=timeout,
    )
    return sorted(node.id for node in cluster.nodes)


def _add_partitions_versions(
    connections: BrokerConnections, admin: Admin, *, timeout: float
) -> Collection[int]:
    request_fields = {"client_software_name": "airflow-eos", "client_software_version": "0", "max_version": 3}
    versions = []
    for node in _nodes(admin, timeout=timeout):

        async def version_of(node: int = node) -> int:
            answer = await connections.send(
                ApiVersionsRequest(**request_fields), node, timeout=_BROKER_TIMEOUT
            )
            if answer.error_code:
                raise NotYet(f"error code {answer.error_code}")
            return max(
                (k.max_version for k in answer.api_keys if k.api_key == _ADD_PARTITIONS_TO_TXN), default=0
            )

        versions.append(
            connections.run(
                connections.retry_async(version_of, what=f"versions of broker {node}", timeout=timeout)
            )
        )
    return versions


def _broker_settings(admin: Admin, name: str, *, timeout: float) -> list[str]:
    """Return the setting of each broker that has it; empty where this principal may not read settings."""

    def call(left: float) -> list[str]:
        resources = [
            ConfigResource(ConfigResource.Type.BROKER, str(node)) for node in _nodes(admin, timeout=left)
        ]
        futures = admin.client.describe_configs(resources, request_timeout=min(left, _BROKER_TIMEOUT))
        entries = [future.result().get(name) for future in futures.values()]
        return [str(entry.value) for entry in entries if entry is not None and entry.value is not None]

    def allowed(left: float) -> list[str]:
        values, error = attempt(lambda: call(left))
        if error is not None and error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            log.info("Broker settings may not be read (DescribeConfigs on the cluster is not granted)")
            return []
        if error is not None:
            raise KafkaException(error)
        return values or []

    return admin.ask(f"broker setting {name!r}", allowed, timeout=timeout)
