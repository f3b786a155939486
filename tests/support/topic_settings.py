"""Topic settings, changed by hand as an administrator does, and settings for early compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.patience import wait_until

COMPACTED_SOON = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
    "segment.ms": "200",
}
"""Compacts soon; a segment rolls by age when the next record arrives, and the active one is never cleaned."""


def change_topic(admin: Any, topic: str, settings: Mapping[str, str]) -> None:
    """Set some settings of a topic."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def change_topic_and_wait(admin: Any, topic: str, settings: Mapping[str, str]) -> None:
    """Set some settings, and wait until brokers show them: the controller applies them first."""
    change_topic(admin, topic, settings)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def shown() -> bool:
        configs = admin.describe_configs([resource])[resource].result(30)
        return all(configs[name].value == value for name, value in settings.items())

    wait_until(shown)
