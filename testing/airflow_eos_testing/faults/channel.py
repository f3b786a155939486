"""Messages between a test and its driver process: pickled tuples over a Unix domain socket."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

SOCKET = "control"
"""File name of the socket in the driver's folder."""

_LENGTH = struct.Struct(">I")


class Channel:
    """Message channel; any thread may send, only one may receive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message.

        :raises OSError: the other side is gone.
        """
        data = pickle.dumps(message)
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> tuple[Any, ...] | None:
        """Return the next message; None if the other side is gone."""
        try:
            head = self._reader.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            data = self._reader.read(size)
        except (OSError, ValueError):
            return None
        if len(data) < size:
            return None
        message: tuple[Any, ...] = pickle.loads(data)  # noqa: S301 - our own child, over our own socket
        return message

    def close(self) -> None:
        """Close the connection and wake its reader."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        # The socket stays open until its file object is closed, too; shutdown has woken the reader.
        self._reader.close()
        self._connection.close()
