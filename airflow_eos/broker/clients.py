"""confluent-kafka's clients, made from one client configuration. Only the driver makes them."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from airflow_eos.wire.client_config import ClientConfig, for_librdkafka

logger = logging.getLogger("airflow_eos.librdkafka")
"""Receives librdkafka's own log lines at DEBUG: what matters of them is in the raised errors."""


class QuietLog:
    """librdkafka logs refused connections and fencing as errors; here they are events of a normal run."""

    def log(self, _level: int, message: str, *args: Any) -> None:
        """Take a line as ``logging.Logger.log`` does."""
        logger.debug(message, *args)


def base_settings(config: ClientConfig) -> dict[str, Any]:
    """Return the settings every client starts from."""
    return {"client.id": "airflow-eos", **for_librdkafka(config)}


def admin_client(config: ClientConfig) -> AdminClient:
    """Return an admin client; it connects in the background."""
    return AdminClient(base_settings(config), logger=QuietLog())


def member_less_group(group: str) -> Any:
    """Return the ``ConsumerGroupMetadata`` of a non-member: generation -1, empty member id (KIP-447).

    The consumer it is taken from has no servers, so it opens no connection and joins nothing.
    """
    consumer = Consumer({"group.id": group, "log_level": 0}, logger=QuietLog())
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
