"""A command whose whole process tree ends with its owner, even when the owner is killed.

This file, executed by path (standard library only), is the keeper: it starts the command as the leader of a
new session, prints the leader's pid, and waits. When its owner says so, or dies of any signal, it kills
every process of that session and removes the command's folder. Airflow puts each task into a process group of
its own, and Spark's Python daemon does the same: a session is the smallest unit that contains them all.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_END_TIMEOUT = 20.0
_OWNER_POLL = 1.0
_POLL = 0.05


class Session:
    """Start a command under a keeper; see the module.

    :param command: argument vector.
    :param env: environment of the command and its descendants.
    :param home: folder that belongs to the command; removed by the keeper unless ``keep``.
    :param log_path: file to which the command's output is appended.
    :param keep: do not remove ``home`` at the end.
    :raises OSError: the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        home: Path,
        log_path: Path,
        keep: bool = False,
    ) -> None:
        script = str(Path(__file__).resolve())
        keeper = [sys.executable, "-I", "-S", script, str(os.getpid()), "" if keep else str(home), *command]
        with log_path.open("ab") as output:
            self._keeper = subprocess.Popen(
                keeper,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(env),
                cwd=home,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        if not line:
            self.end()
            raise OSError(
                f"{command[0]} could not be started:\n{log_path.read_text(errors='replace')[-2000:]}"
            )
        self.leader_pid = int(line)

    @property
    def is_alive(self) -> bool:
        """Whether the command itself is still running."""
        return _session_of(self.leader_pid) == self.leader_pid

    def end(self) -> None:
        """Kill every process of the session and wait until none is left; a second call does nothing."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with suppress(BrokenPipeError, ValueError):  # the keeper is gone, or the pipe was closed before
            # Write, not only close: a forked child of ours may hold the pipe open.
            self._keeper.stdin.write(b"end")
            self._keeper.stdin.close()
        self._keeper.stdout.close()
        self._keeper.wait(2 * _END_TIMEOUT)


def session_members(leader_pid: int) -> list[int]:
    """Return the process ids of the session, without zombies. Linux only (``/proc``)."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if _session_of(pid) == leader_pid]


def _session_of(pid: int) -> int | None:
    try:
        # pid (comm) state ppid pgrp session ...; comm may contain spaces and parentheses.
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(session)


def kill_session(leader_pid: int) -> None:
    """SIGKILL the members until none is left: a member may fork during the iteration."""
    deadline = time.monotonic() + _END_TIMEOUT
    while (members := session_members(leader_pid)) and time.monotonic() < deadline:
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def _run_keeper(owner: int, home: str, command: Sequence[str]) -> None:
    # The command's output goes to the keeper's stderr: stdout is the pipe to the owner.
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
    )
    try:
        with suppress(OSError):  # the owner died before it read the answer
            print(child.pid, flush=True)  # noqa: T201
        while os.getppid() == owner and not select.select([sys.stdin], [], [], _OWNER_POLL)[0]:
            pass
    finally:
        kill_session(child.pid)
        child.wait(_END_TIMEOUT)
        if home:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its owner, not before
    _run_keeper(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
