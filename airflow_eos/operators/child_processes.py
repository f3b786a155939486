"""Ends the Python driver that ``spark-submit`` started on this machine."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

_POLL = 0.05


def terminate_children(pid: int, timeout: float) -> None:
    """Send SIGTERM to a process's children and wait for their end; never raises.

    :param timeout: seconds.
    """
    deadline = time.monotonic() + timeout
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = psutil.Process(pid).children()
    for child in children:
        with suppress(psutil.Error):
            child.terminate()
    while any(map(_is_at_work, children)) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _is_at_work(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
