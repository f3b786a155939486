"""A standalone Spark cluster on loopback, whose executors a test can find, kill and freeze."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos_testing.exceptions import EmbeddedDriverError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.session import Session, session_members

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_POLL = 0.05
_TIMEOUT = 90.0


class SparkCluster:
    """A master and workers; after the ``with`` block no process is left.

    Workers have host names of their own within 127/8, as speculative copies run on another host only.

    :param workers: number of workers.
    :param cores: cores that each worker offers; they need not exist.
    :param memory: memory that each worker offers to executors.
    :param home: folder for logs, work and blocks; default is a temporary one, removed at the end.
    """

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "1g", home: Path | None = None
    ) -> None:
        self._count = workers
        self._offer = ("--cores", str(cores), "--memory", memory)
        self._keep = home is not None
        self.home = Path(tempfile.mkdtemp(prefix="airflow-eos-spark-")) if home is None else home
        self.master = ""
        self._sessions: list[Session] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for session in reversed(self._sessions):
            session.end()
        self._sessions.clear()
        if not self._keep:
            shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        (port,) = free_ports(1)
        self.master = f"spark://{HOST}:{port}"
        place = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        self._spawn("master", f"{_DEPLOY}.master.Master", *place)
        for number in range(self._count):
            place = ["--host", f"127.0.0.{number + 1}", "--webui-port", "0"]
            work = ["--work-dir", str(self.home / f"work{number}")]
            self._spawn(
                f"worker{number}", f"{_DEPLOY}.worker.Worker", *place, *self._offer, *work, self.master
            )
        _wait(
            lambda: self.logs().count("Registering worker") >= self._count,
            lambda: f"{self._count} workers did not register with {self.master}\n{self.logs()[-3000:]}",
        )

    def _spawn(self, name: str, *arguments: str) -> None:
        import pyspark

        spark_home = Path(str(pyspark.__file__)).parent
        folder = self.home / name
        folder.mkdir()
        env = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.home / "blocks"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(spark_home / "bin" / "spark-class"), *arguments]
        log = self.home / f"{name}.log"
        self._sessions.append(Session(command, env=env, home=folder, log_path=log, keep=True))

    def logs(self) -> str:
        """Return the logs of master and workers."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*.log")))

    # -- executors ----------------------------------------------------------------------------------------

    def executors(self, application_id: str | None = None) -> list[int]:
        """Return the sorted process ids of the executors' JVMs, of one application or of all."""
        wanted = None if application_id is None else application_id.encode()
        pids = []
        for session in self._sessions[1:]:
            for pid in session_members(session.leader_pid):
                arguments = _arguments(pid)
                if _EXECUTOR in arguments and wanted in (None, *arguments):
                    pids.append(pid)
        return sorted(pids)

    def wait_for_executors(self, count: int, application_id: str | None = None) -> list[int]:
        """Wait until an application has this many executor processes; return their ids.

        :raises EmbeddedDriverError: they do not appear in time.
        """
        _wait(
            lambda: len(self.executors(application_id)) >= count,
            lambda: f"{len(self.executors(application_id))} of {count} executors\n{self.logs()[-3000:]}",
        )
        return self.executors(application_id)

    def python_workers(self, pid: int) -> list[int]:
        """Return the ids of an executor's Python processes: none before its first Python task."""
        return _descendants(pid)

    def kill_executor(self, pid: int) -> None:
        """SIGKILL an executor's JVM and wait until it is gone; its Python workers end with it."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _wait(lambda: pid not in self.executors(), lambda: f"executor {pid} does not end")


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    pids: list[int] = []
    layer = {pid}
    while layer := {child for child, parent in parents.items() if parent in layer}:
        pids += sorted(layer)
    return pids


def _wait(holds: Callable[[], bool], complaint: Callable[[], str]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            raise EmbeddedDriverError(f"Timed out after {_TIMEOUT:.0f} s: {complaint()}")
        time.sleep(_POLL)
