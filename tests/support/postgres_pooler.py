"""A connection pooler in front of PostgreSQL that gives every client the same answers."""

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
    """Answer each message of a client with the next answer, then disconnect; yield libpq's properties."""

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
