"""Base class of embedded servers that are one process with a folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from airflow_eos.exceptions import EosError

_POLL = 0.1


class EmbeddedServer:
    """Run a server in a folder of its own for the duration of a ``with`` block. Linux only.

    After the block no process and no file is left, also when this process is killed: the server's descendants
    end with it.
    """

    name: ClassVar[str]
    """Name for messages."""
    folder_prefix: ClassVar[str]
    start_timeout: ClassVar[float] = 60.0
    """Seconds within which it must answer."""
    error: ClassVar[type[EosError]] = EmbeddedServerError
    """Error that is raised if it does not start."""

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
    def home(self) -> Path:
        """The server's folder."""
        assert self._home is not None, f"{self.name} is not running"
        return self._home

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._session is not None, f"{self.name} is not running"
        return self._session.leader_pid

    def start(self) -> None:
        """Start the server and wait until it answers.

        :raises EosError: of type ``error``: it is not installed, or did not start; with the end of its log.
        """
        self._home = Path(tempfile.mkdtemp(prefix=self.folder_prefix))
        log = self._home / "server.log"
        try:
            self._session = Session(self._command(), env=self._environment(), home=self._home, log_path=log)
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

    def _command(self) -> list[str]:
        """Prepare the folder and return the server's argument vector."""
        raise NotImplementedError

    def _environment(self) -> Mapping[str, str]:
        """Return the environment of the server and its descendants."""
        return os.environ

    def _answers(self) -> bool:
        """Return whether the server serves clients."""
        raise NotImplementedError

    def _wait(self, session: Session, log: Path) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not self._answers():
            if not session.is_alive or time.monotonic() > deadline:
                end = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
                raise self.error(f"{self.name} did not start:\n{end}")
            time.sleep(_POLL)
