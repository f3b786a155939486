"""DescribeConfigs: settings of topics and brokers (KIP-133)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections

TOPIC, BROKER = 2, 4
"""``ConfigResource.Type`` of Kafka's protocol."""


def topic_settings(
    connections: BrokerConnections,
    topics: Collection[str],
    settings: Collection[str] | None = None,
) -> dict[str, dict[str, str]]:
    """Return settings per topic; omits topics that do not exist, or whose settings may not be read.

    :param settings: names of settings; None for all.
    :raises BrokersUnavailable: no broker answered within :data:`METADATA_TIMEOUT` seconds.
    """
    request = configs_request(TOPIC, topics, settings)
    answer: Any = connections.run(
        connections.retry_async(
            lambda: connections.ask_any_async(request), subject="settings of topics", timeout=METADATA_TIMEOUT
        )
    )
    return {
        result.resource_name: {
            config.name: config.value for config in result.configs if config.value is not None
        }
        for result in answer.results
        if not result.error_code
    }


def configs_request(
    kind: int, names: Collection[str], settings: Collection[str] | None
) -> DescribeConfigsRequest:
    """Return the request for settings of some resources.

    :param kind: :data:`TOPIC` or :data:`BROKER`, which only that broker answers.
    """
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if settings is None else list(settings),
            )
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
        max_version=4,
    )
