"""The process that keeps a server: starts its JVM, starts it again, ends it when nobody needs it.

``python -m airflow_eos.spark.server.supervisor FOLDER``. It ends with its JVM, and the JVM with it, however
it ends. Imports neither Spark nor Airflow.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.server.folder import Held, ServerFolder, read_json
from airflow_eos.spark.server.identity import ProcessIdentity, kill_session
from airflow_eos.spark.server.sockets import connections_to, listens, reserve_ipv6

log = logging.getLogger("supervisor")

ALREADY_HELD = 17
"""Exit code: another supervisor has the folder."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name, not the token
START_TIMEOUT = 180.0
END_TIMEOUT = 20.0
_POLL = 0.2
_LOOK = 5.0
"""Seconds between two looks at connections and log."""
_PR_SET_PDEATHSIG = 1


class Restarts:
    """Say how long to wait before a server that died is started again.

    :param limit: deaths in a row after which it is not; a server that lived long begins a new row.
    :param stable: seconds that are long.
    """

    def __init__(self, limit: int = 5, stable: float = 600.0, longest: float = 30.0) -> None:
        self._limit = limit
        self._stable = stable
        self._longest = longest
        self._in_a_row = 0

    def delay(self, lived: float) -> float | None:
        """Return seconds to wait after one that lived so long; None: no more."""
        self._in_a_row = 1 if lived >= self._stable else self._in_a_row + 1
        if self._in_a_row > self._limit:
            return None
        return float(min(2 ** (self._in_a_row - 1), self._longest))


class Idleness:
    """Tell when nobody was connected for long enough.

    :param limit: seconds; None: never.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._since = clock()

    def is_over(self, connections: int) -> bool:
        """Take the present number of connections, and tell."""
        if connections:
            self._since = self._clock()
        return self._limit is not None and self._clock() - self._since >= self._limit


@dataclass(frozen=True)
class Launch:
    """What the command line has settled: see :func:`airflow_eos.spark.server.control.start`."""

    command: tuple[str, ...]
    options: str
    port: int
    idle_seconds: float | None
    shown: dict[str, Any]

    @classmethod
    def read(cls, folder: ServerFolder) -> Launch:
        """Read the file of the folder."""
        data = read_json(folder.launch)
        return cls(tuple(data["command"]), data["options"], data["port"], data["idle_seconds"], data["shown"])


class Supervisor:
    """See the module."""

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._launch = Launch.read(folder)
        self._asked_to_end = False
        self._restarts = 0
        self._me = ProcessIdentity.of(os.getpid())

    def run(self) -> None:
        """Keep the server until it is asked to end, is idle, or dies too often."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            reserved = reserve_ipv6(self._launch.port)
        except ConfigurationError as error:
            self._tell("failed", None, reason=error.message)
            return
        with nullcontext() if reserved is None else closing(reserved):
            phase, reason = self._keep()
        log.info("%s: %s", phase, reason)
        self._tell(phase, None, reason=reason)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True

    def _keep(self) -> tuple[str, str]:
        policy = Restarts()
        while True:
            begun = time.monotonic()
            server = self._start()
            try:
                self._tell("starting" if not self._restarts else "restarting", server)
                ended, was_ready = self._watch(server)
            finally:
                self._finish(server)
            if ended is not None:
                return ended
            reason = f"Spark's JVM ended with code {server.returncode}"
            if not was_ready and not self._restarts:
                return "failed", reason
            delay = policy.delay(time.monotonic() - begun)
            if delay is None:
                return "failed", f"{reason}, too often to start it again"
            log.warning("%s: it is started again in %g s", reason, delay)
            self._restarts += 1
            self._tell("restarting", None, reason=reason)
            if self._sleep(delay):
                return "stopped", "asked to"

    def _start(self) -> subprocess.Popen[bytes]:
        shutil.rmtree(self._folder.work, ignore_errors=True)
        self._folder.work.mkdir(mode=0o700)
        access = self._folder.access()
        assert access is not None
        env = {
            **os.environ,
            # Read by Spark itself. In the configuration, the token would be in a UI and in event logs.
            TOKEN_VARIABLE: access.token,
            "SPARK_SUBMIT_OPTS": self._launch.options,
            "SPARK_LOCAL_DIRS": os.environ.get("SPARK_LOCAL_DIRS") or str(self._folder.work),
        }
        # spark-submit becomes the JVM: it is one process, whose number stays.
        server = subprocess.Popen(  # noqa: S603 - the command that start wrote into our private folder
            self._launch.command,
            env=env,
            cwd=self._folder.work,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509 - this process has one thread
        )
        log.info("Spark's JVM is process %d", server.pid)
        return server

    def _watch(self, server: subprocess.Popen[bytes]) -> tuple[tuple[str, str] | None, bool]:
        """Return how it ended, None where the JVM died, and whether it has taken connections."""
        deadline = time.monotonic() + START_TIMEOUT
        while not listens(server.pid, self._launch.port):
            if server.poll() is not None:
                return None, False
            if self._sleep(_POLL):
                return ("stopped", "asked to"), False
            if time.monotonic() > deadline:
                return ("failed", f"no connection was taken in {START_TIMEOUT:g} s"), False
        self._tell("ready", server)
        idleness = Idleness(self._launch.idle_seconds)
        next_look = time.monotonic()
        while server.poll() is None:
            if self._sleep(_POLL):
                return ("stopped", "asked to"), True
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK
                self._folder.roll_log()
                if idleness.is_over(connections_to(self._launch.port)):
                    return ("stopped", f"idle for {self._launch.idle_seconds:g} s"), True
        return None, True

    def _sleep(self, seconds: float) -> bool:
        """Sleep, and tell whether it was asked to end."""
        until = time.monotonic() + seconds
        while not self._asked_to_end and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL))
        return self._asked_to_end

    def _finish(self, server: subprocess.Popen[bytes]) -> None:
        """End the JVM and all it started."""
        if server.poll() is None:
            self._tell("stopping", server)
            server.terminate()
            try:
                server.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                log.warning("Spark's JVM did not end in %g s and is killed", END_TIMEOUT)
                server.kill()
                server.wait()
        kill_session(server.pid)
        shutil.rmtree(self._folder.work, ignore_errors=True)

    def _tell(self, phase: str, server: subprocess.Popen[bytes] | None, *, reason: str = "") -> None:
        known = None if server is None else ProcessIdentity.of(server.pid)
        self._folder.write_state(
            {
                "phase": phase,
                "reason": reason,
                "since": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
                "host": socket.gethostname(),
                "supervisor": self._me and self._me.to_dict(),
                "server": known and known.to_dict(),
                "port": self._launch.port,
                "restarts": self._restarts,
                **self._launch.shown,
            }
        )


def _dying_with(parent: int) -> Callable[[], None]:
    """Return what a child calls before its command: the kernel is to kill it when its parent ends."""
    libc = ctypes.CDLL(None)

    def die_too() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return die_too


def main(path: str) -> int:
    """Supervise the server of a folder until it ends; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    folder = ServerFolder(Path(path))
    try:
        with folder.held():
            Supervisor(folder).run()
    except Held:
        return ALREADY_HELD
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
