"""A pooler before PostgreSQL that has the same answers for every client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message of PostgreSQL's protocol: kind, length, content."""
    return kind + (len(content) + 4).to_bytes(4, "big") + content


@contextmanager
def answering(*answers: bytes) -> Iterator[dict[str, str]]:
    """Send each client one answer after each of its messages, then hang up; yields properties for libpq."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    for answer in answers:
                        client.recv(4096)
                        client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            port = str(listener.getsockname()[1])
            plain = {"sslmode": "disable", "gssencmode": "disable"}
            yield {"host": "127.0.0.1", "port": port, "user": "loader", **plain}
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
