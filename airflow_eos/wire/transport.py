"""Transports and connection manager for kafka-python: no socket leaks, large reads, writes without copies.

kafka-python reads 4 KB at a time, copies the rest of a request for every TLS record that it writes, and
leaves the socket of a refused connection to the garbage collector, with a ``ResourceWarning`` each.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterable
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

# Below malloc's mmap threshold, above which every read would map new pages.
_TCP_READ_BYTES = 64 << 10
_TLS_READ_BYTES = 16 << 10  # one TLS record, the most that one read returns
_UNDERWAY = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_NOTHING_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


async def connect(
    net: Any, host: str, port: int, options: Iterable[tuple[int, int, int]], timeout_at: float | None
) -> socket.socket:
    """Connect to the first address of a host that answers; one that drops packets leaves time for the others.

    :param timeout_at: deadline, in seconds of the monotonic clock.
    :raises KafkaConnectionError: no address answered; names each error.
    """
    reasons = []
    addresses = _addresses(host, port)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003
            for option in options:
                sock.setsockopt(*option)
            now = time.monotonic()
            share = None if timeout_at is None else now + (timeout_at - now) / (len(addresses) - number)
            await _connected(net, sock, address, share)
        except (OSError, kafka_errors.KafkaTimeoutError) as error:
            sock.close()
            reasons.append(f"{address[0]}:{address[1]}: {error}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    reason = "; ".join(reasons) or "the name does not resolve"
    raise kafka_errors.KafkaConnectionError(f"cannot connect to {host}:{port}: {reason}")


def _addresses(host: str, port: int) -> list[Any]:
    try:
        return list(socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM))
    except socket.gaierror:
        return []


async def _connected(net: Any, sock: socket.socket, address: Any, timeout_at: float | None) -> None:
    while (code := sock.connect_ex(address)) not in (0, errno.EISCONN):
        if code not in _UNDERWAY:
            raise OSError(code, os.strerror(code))
        if timeout_at is not None and time.monotonic() >= timeout_at:
            raise kafka_errors.KafkaTimeoutError("no answer in time")
        await net.wait_write(sock, timeout_at=timeout_at)


class _LargeReads:
    """Reads all available bytes, in large pieces.

    It must read all of them: the event loop does not wake for bytes that OpenSSL has already decrypted.
    """

    _sock: Any
    _read_bytes: int

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        pieces: list[bytes] = []
        failure: Exception | None = None
        while True:
            try:
                piece = self._sock.recv(self._read_bytes)
            except _NOTHING_NOW:
                break
            except OSError as error:
                failure = kafka_errors.KafkaConnectionError(str(error))
                failure.__cause__ = error
                break
            if not piece:
                failure = kafka_errors.KafkaConnectionError("socket disconnected")
                break
            pieces.append(piece)
        # An answer and the end of the connection may arrive together, as after a refused login. Return the
        # answer; the next read sees the end again.
        return b"".join(pieces), None if pieces else failure

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; raise interrupts, which kafka-python takes for a lost connection during a send."""
        super().abort(error)  # type: ignore[misc]
        for cause in () if error is None else error.args:
            if isinstance(cause, BaseException) and not isinstance(cause, Exception):
                raise cause


class TcpTransport(_LargeReads, KafkaTCPTransport):
    """A plain connection."""

    _read_bytes = _TCP_READ_BYTES


class TlsTransport(_LargeReads, KafkaSSLTransport):
    """An encrypted connection."""

    _read_bytes = _TLS_READ_BYTES

    def write(self, data: bytes) -> None:
        """Queue bytes as a view, so that the rest after each 16 KB TLS record is a slice, not a copy."""
        super().write(memoryview(data))

    async def handshake(self, timeout_at: float | None = None) -> None:
        """Agree on keys; kafka-python would wait for ever for a broker that hangs.

        :param timeout_at: deadline, in seconds of the monotonic clock.
        :raises KafkaTimeoutError: the broker did not answer by then.
        """
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:  # noqa: PERF203 - rare
                await self._net.wait_read(self._sock, timeout_at=timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at=timeout_at)
            else:
                return


DEFAULTS: dict[str, Any] = {
    # An answer contains at least one batch, however large (KIP-74).
    "receive_message_max_bytes": 1_000_000_000,
    # kafka-python fails requests beyond its limit instead of queueing them; the windows here are far smaller.
    "max_in_flight_requests_per_connection": 1000,
    "reconnect_backoff_max_ms": 1000,
    # acks=all waits for a dead follower to leave the ISR (about 10 s); a timeout closes the connection.
    "request_timeout_ms": 30_000,
    "client_id": "airflow-eos",
}
"""Default settings; the client configuration overrides them."""


class EventLoop(NetworkSelector):
    """A loop that the time-out of an Airflow task, or Ctrl-C, ends: kafka-python would only log it."""

    def _task_done(self, task: Any) -> None:
        error = sys.exc_info()[1]  # the one being handled; StopIteration is the normal end of a task
        if error is not None and not isinstance(error, Exception):
            raise error
        super()._task_done(task)


class Manager(KafkaConnectionManager):
    """A connection manager that uses the transports above and can close a connection without flushing."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await connect(self._net, node.host, node.port, self.config["socket_options"], timeout_at)
        transport: Any = None
        try:
            if self.ssl_enabled:
                context = self.config["ssl_context"]
                transport = TlsTransport(self._net, sock, host=node.host, ssl_context=context)
                await transport.handshake(timeout_at)
            else:
                transport = TcpTransport(self._net, sock, host=node.host)
                await transport.handshake()
        except BaseException as error:
            (sock if transport is None else transport).close()
            if isinstance(error, (OSError, kafka_errors.KafkaTimeoutError)):
                raise kafka_errors.KafkaConnectionError(
                    f"TLS handshake with {node.host}:{node.port} failed: {error}"
                ) from error
            raise
        transport.node = node
        connection = self._conns.get(node.node_id)
        if connection is not None:
            # kafka-python leaks the open transport if a request that it has queued cannot be encoded.
            connection.close_future.add_errback(lambda _: transport.abort())
        return transport

    def close(self, node_id: Any = None, timeout_ms: float | None = None) -> None:
        """Close one connection, or all; closing all discards unsent bytes, because the loop ends too.

        Otherwise the socket of a broker that hangs and does not read would stay open.
        """
        if node_id is None:
            for node in list(self._conns):
                self.abort(node)
        super().close(node_id, timeout_ms)

    def abort(self, node: Any) -> None:
        """Close a connection without flushing unsent bytes."""
        connection = self._conns.get(node)
        if connection is not None:
            connection.close(kafka_errors.KafkaConnectionError("given up"))

    def hang_up_moved(self) -> None:
        """Close connections to addresses that their brokers have left: another broker may listen there."""
        for node, connection in list(self._conns.items()):
            now, then = self.cluster.broker_metadata(node), getattr(connection.transport, "node", None)
            if now and then and (now.host, now.port) != (then.host, then.port):
                self.abort(node)
