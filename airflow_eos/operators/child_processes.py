"""Ends the Python driver that ``spark-submit`` started on this machine."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_POLL = 0.05


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process (Linux); empty if unknown."""
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                children.append(int(entry.parent.name))
    return children


def terminate_children(pid: int, timeout: float) -> None:
    """Send SIGTERM to a process's children and wait for their end; never raises.

    :param timeout: seconds.
    """
    deadline = time.monotonic() + timeout
    left = children_of(pid)
    for child in left:
        with suppress(OSError):
            os.kill(child, signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL)
        left = [child for child in children_of(pid) if child in left and not _is_zombie(child)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
