"""kafka-python's connection manager, as the wire layer uses it."""

from __future__ import annotations

import logging
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager

from airflow_eos.wire.transport import TcpTransport, TlsTransport, connect

DEFAULTS: dict[str, Any] = {
    # One answer holds at least one batch, however large (KIP-74).
    "receive_message_max_bytes": 1_000_000_000,
    # kafka-python fails requests beyond its limit instead of queueing them; our own windows are far below.
    "max_in_flight_requests_per_connection": 1000,
    "reconnect_backoff_max_ms": 1000,
    # acks=all waits for a dead follower to leave the ISR (about 10 s); a time-out closes the connection.
    "request_timeout_ms": 30_000,
    "client_id": "airflow-eos",
}
"""Settings of every connection; a client configuration wins over them."""


class Manager(KafkaConnectionManager):
    """A manager with transports of its own, that can drop a connection at once."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await connect(self._net, node.host, node.port, self.config["socket_options"], timeout_at)
        transport: Any = None
        try:
            if self.ssl_enabled:
                context = self.config["ssl_context"]
                transport = TlsTransport(self._net, sock, host=node.host, ssl_context=context)
            else:
                transport = TcpTransport(self._net, sock, host=node.host)
            await transport.handshake()
        except BaseException as error:
            (sock if transport is None else transport).close()
            if isinstance(error, OSError):
                raise kafka_errors.KafkaConnectionError(
                    f"TLS handshake with {node.host}:{node.port} failed: {error}"
                ) from error
            raise
        return transport

    def close(self, node_id: Any = None, timeout_ms: float | None = None) -> None:
        """Close one connection, or all; what all have not written is given up: the loop ends with them.

        Otherwise the socket of a broker that does not read, as one that hangs, would stay open.
        """
        if node_id is None:
            for node in list(self._conns):
                self.abort(node)
        super().close(node_id, timeout_ms)

    def abort(self, node: Any) -> None:
        """Close a connection without flushing what it has not written."""
        connection = self._conns.get(node)
        if connection is not None:
            connection.close(kafka_errors.KafkaConnectionError("given up"))


def quiet_logging() -> None:
    """Silence kafka-python, which logs every refused connection as an error, unless a level was chosen."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
