"""Sockets for kafka-python's connections: connecting without leaks, large reads, writes that do not copy.

kafka-python reads 4 KB at a time, copies the rest of a request for every TLS record it writes, and leaves the
socket of a refused connection to the garbage collector (a ``ResourceWarning`` each).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

if TYPE_CHECKING:
    from collections.abc import Iterable

# Below malloc's threshold for mapping pages anew each time.
_TCP_READ_BYTES = 64 << 10
_TLS_READ_BYTES = 16 << 10  # one TLS record, the most that a read returns
_UNDERWAY = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_NOTHING_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


async def connect(
    net: Any, host: str, port: int, options: Iterable[tuple[int, int, int]], timeout_at: float | None
) -> socket.socket:
    """Connect to the first address of a host that answers.

    :param timeout_at: monotonic time to give up at.
    :raises KafkaConnectionError: with the last reason.
    """
    reason = "the name does not resolve"
    for family, kind, protocol, _, address in _addresses(host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003
            for option in options:
                sock.setsockopt(*option)
            await _connected(net, sock, address, timeout_at)
        except (OSError, kafka_errors.KafkaTimeoutError) as error:
            sock.close()
            reason = f"{address[0]}:{address[1]}: {error}"
        except BaseException:
            sock.close()
            raise
        else:
            return sock
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
    """Reads all that is there, in large pieces.

    All of it: what OpenSSL has decrypted ahead would not wake the event loop again.
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
                break
            if not piece:
                failure = kafka_errors.KafkaConnectionError("socket disconnected")
                break
            pieces.append(piece)
        # An answer and the end of the connection may come together, as after a refused login: answer first,
        # the end is found again by the next read.
        return b"".join(pieces), None if pieces else failure


class TcpTransport(_LargeReads, KafkaTCPTransport):
    """A plain connection."""

    _read_bytes = _TCP_READ_BYTES


class TlsTransport(_LargeReads, KafkaSSLTransport):
    """An encrypted connection."""

    _read_bytes = _TLS_READ_BYTES

    def write(self, data: bytes) -> None:
        """Queue bytes; a view makes what is left after each TLS record of 16 KB a slice instead of a copy."""
        super().write(memoryview(data))
