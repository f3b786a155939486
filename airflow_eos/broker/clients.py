"""confluent-kafka's clients, made from one client configuration. Only the driver makes them."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError

from airflow_eos.wire.client_config import ClientConfig, for_librdkafka

logger = logging.getLogger("airflow_eos.librdkafka")
"""Receives librdkafka's own log lines at DEBUG: what matters of them is in the raised errors."""

_OUR_OWN = frozenset({"error_cb", "log_cb", "logger", "statistics.interval.ms", "stats_cb", "throttle_cb"})
# Call-backs of the connection belong to the clients its user makes.

_RECONNECT_BACKOFF_MAX_MS = 1000

_LOST_CONNECTION = tuple(
    KafkaError(code).str()
    for code in (
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
    )
)
# A connection that breaks before the answer to SaslHandshake is reported as a failed authentication, with its
# true reason in the text (rd_kafka_broker_handle_SaslHandshake of librdkafka 2.16).


class QuietLog:
    """librdkafka logs refused connections and fencing as errors; here they are events of a normal run."""

    def log(self, _level: int, message: str, *args: Any) -> None:
        """Take a line as ``logging.Logger.log`` does."""
        logger.debug(message, *args)


class Refusals:
    """Keeps the errors that librdkafka retries for ever although no retry can help; an ``error_cb``."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def take(self, error: KafkaError) -> None:
        """Take an error event."""
        if error.code() not in (KafkaError._AUTHENTICATION, KafkaError._SSL):  # noqa: SLF001
            return
        if not any(reason in error.str() for reason in _LOST_CONNECTION):
            self.last = error

    def forget(self) -> None:
        """Take it that a broker has accepted this client."""
        self.last = None


def base_settings(config: ClientConfig) -> dict[str, Any]:
    """Return the settings every client starts from; the configuration wins over them.

    librdkafka asks where a coordinator has gone after each failed connection to the old one, and by default
    waits 10 s between two of them: two coordinators that move cost half a minute.
    """
    theirs = for_librdkafka(config)
    settings = {"client.id": "airflow-eos", **theirs}
    if "reconnect.backoff.ms" not in theirs:
        settings.setdefault("reconnect.backoff.max.ms", _RECONNECT_BACKOFF_MAX_MS)
    return {key: value for key, value in settings.items() if key not in _OUR_OWN}
