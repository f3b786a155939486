"""The private folder of a server: connection with token, state, log, and the lock of its supervisor."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_eos.exceptions import ConfigurationError

CONN_ID = "spark_warm"
CLIENT_HOST = "localhost"
"""Spark's client sends a token without TLS to this name alone, not to 127.0.0.1."""
_LOG_LIMIT = 20_000_000
_LOCK_PATIENCE = 2.0


class Held(Exception):
    """Another supervisor has the folder."""


@dataclass(frozen=True)
class Access:
    """How clients reach the server."""

    port: int
    token: str = field(repr=False)

    @property
    def address(self) -> str:
        """``sc://host:port``, without the token."""
        return f"sc://{CLIENT_HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The address with the token: a secret."""
        return f"{self.address}/;token={self.token}"

    def connection(self) -> dict[str, Any]:
        """Return the JSON form of an Airflow connection, with the token."""
        return {
            "conn_type": "spark_connect",
            "host": CLIENT_HOST,
            "port": self.port,
            "password": self.token,
        }


class ServerFolder:
    """See the module. All files are of mode 0600 in a folder of mode 0700."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.log = self.path / "server.log"
        self.connection = self.path / "connection.json"
        self.launch = self.path / "launch.json"
        self.work = self.path / "work"
        self._state = self.path / "state.json"
        self._lock = self.path / "lock"

    def prepare(self) -> None:
        """Make the folder.

        :raises ConfigurationError: it belongs to somebody else, or cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_uid != os.getuid():
                raise ConfigurationError(f"{self.path} belongs to another user")
            self.path.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(f"folder of the Spark Connect server: {error}") from error

    # -- the lock ------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether a supervisor has it: of any container or host that shares the folder."""
        try:
            with self._lock.open("rb") as file:
                return not _locked(file.fileno(), fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it for the block; the kernel lets go when this process ends, however it does.

        :raises Held: somebody else has it.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Somebody who only looks has it for a moment.
            deadline = time.monotonic() + _LOCK_PATIENCE
            while not _locked(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise Held
                time.sleep(0.05)
            yield
        finally:
            os.close(descriptor)

    # -- connection ----------------------------------------------------------------------------------------

    def access(self) -> Access | None:
        """Return port and token of the last start, or of a file that somebody has put here."""
        given = read_json(self.connection).get(CONN_ID)
        if not isinstance(given, Mapping):
            return None
        port, token = given.get("port"), given.get("password")
        if not isinstance(port, int) or not isinstance(token, str) or not token:
            return None
        return Access(port, token)

    def write_access(self, port: int) -> Access:
        """Write the connection; the token is made once and stays, as the port may."""
        known = self.access()
        access = Access(port, known.token if known else secrets.token_urlsafe(32))
        self.write(self.connection, {CONN_ID: access.connection()})
        return access

    # -- files ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what the supervisor wrote last; empty: none did."""
        return read_json(self._state)

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Write what :meth:`state` returns."""
        self.write(self._state, state)

    def clear_state(self) -> None:
        """Forget a supervisor that has ended."""
        self._state.unlink(missing_ok=True)

    def write(self, path: Path, data: Any) -> None:
        """Replace a file in one step; nobody else can read it at any moment."""
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        staged.unlink(missing_ok=True)
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=2) + "\n")
        staged.replace(path)

    def open_log(self) -> int:
        """Return a descriptor that appends to the log."""
        return os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def roll_log(self, limit: int = _LOG_LIMIT) -> None:
        """Keep a log that has grown too long beside a new one; who has it open writes on at its beginning."""
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > limit:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                self.log.with_suffix(".log.1").chmod(0o600)
                os.truncate(self.log, 0)

    def log_end(self, length: int = 600) -> str:
        """Return the last characters of the log."""
        with suppress(OSError):
            return self.log.read_text("utf-8", errors="replace")[-length:].strip()
        return ""


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty where there is none."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
