"""DescribeConfigs: settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

# ConfigResource.Type of Kafka's protocol
TOPIC = 2
BROKER = 4


def configs_request(
    resource_type: int, names: Iterable[str], settings: Sequence[str]
) -> DescribeConfigsRequest:
    """Return a request for some settings of topics, or of a broker, which alone knows its own.

    :param resource_type: :data:`TOPIC` or :data:`BROKER`.
    :param names: topics, or the broker's node id.
    """
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=list(settings)
            )
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
        max_version=4,
    )


def readable_configs(results: Iterable[Any]) -> dict[str, Mapping[str, str]]:
    """Return the settings that have a value, by resource; omits resources whose settings may not be read."""
    return {
        result.resource_name: {
            config.name: config.value for config in result.configs if config.value is not None
        }
        for result in results
        if not result.error_code
    }
