"""Finds the processes of Airflow's components and tasks by their titles. Linux only (``/proc``)."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos_testing.session import session_members

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

WRITERS = ("airflow scheduler", "airflow dag-processor", "airflow triggerer")
"""Titles of the components that write to the database on their own."""


def task_processes(leader_pid: int, task_instance_id: str, *, tree: bool = False) -> list[int]:
    """Return the task instance's own process.

    :param tree: also return its descendants in all process groups: JVM, Python workers.
    """
    mark = f"airflow worker -- {task_instance_id}"
    members = session_members(leader_pid)
    tasks = [pid for pid in members if _title(pid).startswith(mark)]
    return descendants(leader_pid, tasks) if tree else tasks


def descendants(leader_pid: int, pids: Iterable[int]) -> list[int]:
    """Return the processes and all their descendants in the session, in all process groups."""
    members = session_members(leader_pid)
    family = list(pids)
    for pid in family:  # grows during the iteration
        family += [child for child in members if parent_of(child) == pid and child not in family]
    return family


def writers(leader_pid: int) -> list[int]:
    """Return the running processes of ``WRITERS``."""
    return [pid for pid in session_members(leader_pid) if _title(pid).strip().endswith(WRITERS)]


def signal_all(pids: Iterable[int], signum: int) -> list[int]:
    """Signal each process and return those that still existed: a JVM's workers end with it."""
    signalled = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
            signalled.append(pid)
    return signalled


@contextmanager
def stopped(pids: Collection[int]) -> Iterator[None]:
    """Freeze processes (SIGSTOP) for the duration of the block."""
    try:
        signal_all(pids, signal.SIGSTOP)
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """Return the parent process id; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
