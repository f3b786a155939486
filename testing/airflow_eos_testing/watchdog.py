"""Removes the brokers and files of a process that died without cleaning up.

The watchdog is a small Python process in a session of its own. It holds the read end of a pipe: when the
owner dies, by any signal, the pipe closes, and the watchdog kills every process with the cluster's mark in
its arguments or environment (paused ones too) and removes the cluster's folder. It searches for the mark
instead of keeping process ids: an owner killed between starting a broker and reporting it leaves nothing
behind, and a reused process id is never hit.

The file is executed by path, without site packages: it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_OWNER_POLL = 1.0
_SETTLE = 0.1
_KILL_TIMEOUT = 20.0
_VARIABLE = "AIRFLOW_EOS_HOME"


def process_mark(home: Path) -> str:
    """Return the argument that marks the Java processes of the cluster in a folder."""
    return f"-Dairflow.eos.home={home}"


def environment_mark(home: Path) -> dict[str, str]:
    """Return the variable that marks processes whose arguments others set, and descendants. Linux only."""
    return {_VARIABLE: str(home)}


class Watchdog:
    """Guard the processes and the folder of one cluster; start it before either exists.

    :param home: folder to remove.
    :param keep: only kill the processes; leave the folder.
    """

    def __init__(self, home: Path, *, keep: bool = False) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(home), str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, "keep"] if keep else command,
            stdin=subprocess.PIPE,
            # Never the owner's: whoever reads the owner's output to its end would wait for the watchdog too.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the watchdog."""
        return self._process.pid

    def close(self) -> None:
        """Tell the watchdog to clean up, and wait until it has ended."""
        assert self._process.stdin is not None
        try:
            # Write, not only close: a forked child of the owner may hold the pipe open.
            self._process.stdin.write(b"end")
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait(_KILL_TIMEOUT + 10)


def clean_up(home: Path, *, keep: bool = False) -> None:
    """Kill the marked processes of a cluster and remove its folder."""
    deadline = time.monotonic() + _KILL_TIMEOUT
    quiet = 0
    # Until two scans find nothing: a process between fork and exec does not carry the mark yet.
    while quiet < 2 and time.monotonic() < deadline:  # noqa: PLR2004
        processes = [*marked_processes(process_mark(home)), *processes_with(f"{_VARIABLE}={home}")]
        for pid in processes:
            _kill(pid)
        quiet = 0 if processes else quiet + 1
        time.sleep(_SETTLE)
    if not keep:
        shutil.rmtree(home, ignore_errors=True)


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the running processes that have an argument equal to the mark."""
    if not Path("/proc/self/cmdline").exists():
        listing = subprocess.run(
            ["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=False
        )
        rows = (line.split() for line in listing.stdout.splitlines())
        return [int(row[0]) for row in rows if mark in row[1:]]
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended meanwhile
            if mark.encode() in arguments:
                processes.append(int(entry.name))
    return processes


def processes_with(variable: str) -> list[int]:
    """Return the ids of the running processes with ``NAME=value`` in their environment. Linux only."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if variable.encode() in variables:
            processes.append(int(entry.name))
    return processes


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Wait for the owner's message or end, then clean up."""
    home, owner = Path(arguments[0]), int(arguments[1])
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # it ends with its owner, not before
    # Check the parent, too: a forked child of a dead owner may hold the pipe open for hours.
    while os.getppid() == owner and not select.select([sys.stdin], [], [], _OWNER_POLL)[0]:
        pass
    clean_up(home, keep=arguments[2:] == ["keep"])


if __name__ == "__main__":
    main(sys.argv[1:])
