"""One broker process that a test can kill, pause and restart."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from airflow_eos_testing.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START_TIMEOUT = 90.0
"""Seconds a broker may take to be ready; an idle machine needs about two."""

# Logged by KafkaRaftServer after the broker is registered, caught up, unfenced and accepts connections.
_READY_LINE = b"Kafka Server started"
_POLL = 0.02
_ENTRY = re.compile(r"\d{4}-\d\d-\d\d \S+ ([A-Z]+) ")


class Broker:
    """A Kafka node (broker and controller in one process) of an :class:`~airflow_eos_testing.EmbeddedKafka`.

    The process leads its own session: a Ctrl-C in the terminal does not reach it, and signals that a test
    sends to its own process group do not either.

    :param node_id: KRaft node id, from 1.
    :param command: argument vector of the server.
    :param address: ``host:port`` of the client listener.
    :param log_path: file that collects this node's output over all its starts.
    :param data_folder: folder of its partition logs.
    """

    def __init__(
        self, node_id: int, command: Sequence[str], address: str, log_path: Path, data_folder: Path
    ) -> None:
        self.node_id = node_id
        self.address = address
        self.log_path = log_path
        self.data_folder = data_folder
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._log_start = 0

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "alive" if self.is_alive else "dead"
        return f"Broker(node_id={self.node_id}, address={self.address!r}, pid={self.pid}, {state})"

    @property
    def pid(self) -> int | None:
        """Process id, or None while the broker is not running."""
        return self._process.pid if self._process is not None and self.is_alive else None

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; true for a paused broker too."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the broker is paused: :meth:`pause` was called, and :meth:`resume` not since."""
        return self._paused and self.is_alive

    def start(self, *, wait: bool = True, timeout: float = START_TIMEOUT) -> None:
        """Start the process on its existing data.

        :param wait: return only when it serves clients. Pass False to start several nodes that need each
            other for a quorum, then :meth:`wait_until_ready` on each.
        :param timeout: seconds to wait.
        :raises EmbeddedKafkaError: it already runs, died, or was not ready in time; with the end of its log.
        """
        if self.is_alive:
            raise EmbeddedKafkaError(
                f"Broker {self.node_id} runs already (pid {self.pid}): kill() or stop() it first"
            )
        with self.log_path.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._paused = False
        if wait:
            self.wait_until_ready(timeout=timeout)

    def wait_until_ready(self, *, timeout: float = START_TIMEOUT) -> None:
        """Wait until the last started process serves clients; errors as :meth:`start`."""
        deadline = time.monotonic() + timeout
        position, seen = self._log_start, b""
        while True:
            alive = self.is_alive  # checked before reading: the last output of a dying process is read
            with self.log_path.open("rb") as output:
                output.seek(position)
                fresh = output.read()
            position += len(fresh)
            seen += fresh
            if _READY_LINE in seen:
                return
            seen = seen[-len(_READY_LINE) :]
            if not alive:
                code = self._process.returncode if self._process is not None else None
                raise EmbeddedKafkaError(
                    f"Broker {self.node_id} ended while starting (exit code {code}).\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise EmbeddedKafkaError(
                    f"Broker {self.node_id} was not ready after {timeout:.0f} s.\n{self.log_tail()}"
                )
            time.sleep(_POLL)

    def kill(self) -> None:
        """SIGKILL the process, paused or not, and wait until it is gone; no-op if it is not running."""
        self._end(signal.SIGKILL, timeout=30)

    def fill_disk(self, *, timeout: float = 30) -> None:
        """Make every write of the process fail (EFBIG), as on a full disk; wait until it stops itself.

        A broker with one log directory stops itself at the next append. Its files stay as they are.

        :param timeout: seconds, after which a broker that had nothing to append is killed.
        """
        process = self._running("fill the disk of")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self, *, timeout: float = 60) -> None:
        """Shut down cleanly (SIGTERM): leaders move first. No-op if it is not running."""
        self.resume()
        self._end(signal.SIGTERM, timeout=timeout)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP) and wait until it stops: connections stay open, nothing answers."""
        process = self._running("pause")
        process.send_signal(signal.SIGSTOP)
        # WNOWAIT leaves the exit status to Popen in case the process died instead of stopping.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        """Continue a paused process (SIGCONT); no-op if it is not paused."""
        if self.is_paused and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._paused = False

    def log_tail(self, lines: int = 40, *, warnings_only: bool = False) -> str:
        """Return the last lines of the log under a heading that names the file.

        :param warnings_only: of these lines, those at WARN and above, with their stacks.
        """
        try:
            text = self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        last = text.splitlines()[-lines:]
        if not warnings_only:
            return "\n".join([f"--- end of {self.log_path} ---", *last])
        heading = f"--- warnings in the last {lines} lines of {self.log_path} ---"
        return "\n".join([heading, *(_warnings(last) or ["(none)"])])

    def port_was_taken(self) -> bool:
        """Return whether the last start failed because another process holds one of the node's ports."""
        with self.log_path.open("rb") as output:
            output.seek(self._log_start)
            return b"Address already in use" in output.read()

    def _running(self, verb: str) -> subprocess.Popen[bytes]:
        if self._process is None or not self.is_alive:
            raise EmbeddedKafkaError(
                f"Cannot {verb} broker {self.node_id}: it is not running; start() it first"
            )
        return self._process

    def _end(self, signum: int, *, timeout: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signum)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise EmbeddedKafkaError(
                f"Broker {self.node_id} (pid {process.pid}) did not end within {timeout:.0f} s "
                f"of signal {signum}.\n{self.log_tail()}"
            ) from error
        self._paused = False


def _warnings(lines: Sequence[str]) -> list[str]:
    """Return entries at WARN and above; a line that does not begin with a date belongs to the one before."""
    warnings: list[str] = []
    loud = False
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is not None:
            loud = entry.group(1) in ("WARN", "ERROR", "FATAL")
        if loud:
            warnings.append(line)
    return warnings
