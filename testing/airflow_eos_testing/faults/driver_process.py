"""A Spark driver in a process of its own, which a test may kill or freeze with its descendants."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.closeable import Closeable
from airflow_eos.spark.encryption import local_defaults
from airflow_eos_testing.exceptions import DriverDied, EmbeddedDriverError
from airflow_eos_testing.faults.attempt import Attempt
from airflow_eos_testing.faults.channel import SOCKET, Channel
from airflow_eos_testing.faults.points import point_names
from airflow_eos_testing.session import Session, kill_session, session_members

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.run.states import State

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
}
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 10.0
_POLL = 0.02


class DriverProcess(Closeable):
    """A fresh interpreter with one Spark session, in which runs are attempted one after the other.

    Guarantee: after the ``with`` block, and after the death of the process that created it, no process or
    file is left; with ``local[...]`` that includes the JVM and the Python workers.

    :param master: Spark master of a classic session.
    :param remote: URL of a Spark Connect server, in place of ``master``.
    :param conf: Spark settings of a classic session.
    """

    def __init__(
        self, master: str = "local[2]", *, remote: str | None = None, conf: Mapping[str, str] | None = None
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-driver-"))
        self._attempt: Attempt | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._application_id = ""
        self._log_file = self._home / "driver.log"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self._home / SOCKET))
            server.listen(1)
            server.settimeout(_START_TIMEOUT)
            self._session = Session(
                [sys.executable, "-m", "airflow_eos_testing.faults.driver", str(self._home)],
                env=_environment(),
                home=self._home,
                log_path=self._log_file,
            )
            threading.Thread(target=self._watch_start, args=(server,), daemon=True).start()
            try:
                connection, _ = server.accept()
            except OSError as error:
                self.close()
                raise EmbeddedDriverError(f"The driver process did not start\n{self.log_tail()}") from error
        connection.settimeout(None)
        self._channel = Channel(connection)
        settings = {**_CONF, **local_defaults(master), **(conf or {})}
        self._channel.send("session", {"master": master, "remote": remote, "conf": settings})
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """End the process and its descendants; a second call does nothing."""
        self._keep_log()
        self._session.end()
        shutil.rmtree(self._home, ignore_errors=True)
        with suppress(AttributeError):
            self._channel.close()

    # -- runs ---------------------------------------------------------------------------------------------

    def wait_ready(self, timeout: float = _START_TIMEOUT) -> None:
        """Wait until the Spark session is ready.

        :raises EmbeddedDriverError: it is not ready in time.
        """
        if not self._ready.wait(timeout) or self._ended.is_set():
            raise EmbeddedDriverError(f"The driver's Spark session is not ready\n{self.log_tail()}")

    @property
    def application_id(self) -> str:
        """Spark's application id; empty with Spark Connect."""
        self.wait_ready()
        return self._application_id

    def run(
        self,
        spec: RunSpec,
        process: Callable[..., Any],
        *,
        stop_at: State | str | Collection[State | str] | None = None,
    ) -> Attempt:
        """Start an attempt; it stops at each of the given points until it is released.

        :raises EmbeddedDriverError: the last attempt has not ended.
        :raises DriverDied: the process is gone.
        """
        if self.is_busy:
            raise EmbeddedDriverError("The driver's last run has not ended: release it, take its result")
        if not self.is_alive:
            raise DriverDied("The driver process is dead; start another one")
        points = point_names(stop_at)
        self._attempt = Attempt(points, self._release, self.log_tail)
        self._channel.send("run", _pickled(spec, process), points)
        return self._attempt

    @property
    def is_busy(self) -> bool:
        """Whether an attempt has not ended."""
        return self._attempt is not None and not self._attempt.is_over

    def _release(self, for_good: bool) -> None:
        # Also to a frozen process: it reads the message when it is resumed.
        with suppress(OSError):
            self._channel.send("release", for_good)

    # -- faults -------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether the driver itself exists; true while it is frozen."""
        return self._session.is_alive

    @property
    def pid(self) -> int:
        """Process id of the driver's Python."""
        return self._session.leader_pid

    def processes(self) -> list[int]:
        """Ids of all its processes: Python, the JVM, and with ``local[...]`` the Python workers."""
        return session_members(self._session.leader_pid)

    def kill(self) -> None:
        """SIGKILL the driver and its descendants, and wait until they are gone."""
        self._keep_log()
        kill_session(self._session.leader_pid)
        self._ended.wait(_STOP_TIMEOUT)

    def pause(self) -> None:
        """Freeze the driver and its descendants (SIGSTOP); wait until all are stopped."""
        deadline = time.monotonic() + _STOP_TIMEOUT
        while running := [pid for pid in self.processes() if _state(pid) != "T"]:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise EmbeddedDriverError(f"Processes {running} do not stop")
            time.sleep(_POLL)

    def resume(self) -> None:
        """Continue frozen processes (SIGCONT)."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # -- log ----------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """What the process has logged; also after its end."""
        try:
            return self._log_file.read_text(errors="replace")
        except FileNotFoundError:
            return self._kept_log

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(["--- end of the driver's log ---", *self.log.splitlines()[-lines:]])

    _kept_log = ""

    def _keep_log(self) -> None:
        # The log's folder is removed with the process.
        with suppress(FileNotFoundError):
            self._kept_log = self._log_file.read_text(errors="replace")

    # -- messages -----------------------------------------------------------------------------------------

    def _watch_start(self, server: socket.socket) -> None:
        """Stop waiting for a process that died before it connected."""
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            if not self._session.is_alive:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                return
            if server.fileno() < 0:
                return
            time.sleep(_POLL)

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            if message[0] == "ready":
                self._application_id = message[1]
                self._ready.set()
            elif self._attempt is not None:
                self._attempt.take(message)
        self._ended.set()
        self._ready.set()
        if self._attempt is not None:
            self._attempt.lost()


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        # The fresh interpreter imports what this one can, tests included.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _pickled(spec: RunSpec, process: Callable[..., Any]) -> bytes:
    from pyspark import cloudpickle

    from airflow_eos.spark.by_value import pickled_by_value

    with pickled_by_value(process):
        data: bytes = cloudpickle.dumps((spec, process))
    return data


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "T"  # gone: nothing to stop
