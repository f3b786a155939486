"""Exclusive access to the SQLite file of a test Airflow.

SQLite refuses a writer that waits too long for another. Airflow creates a backfill in several transactions:
if one is refused, the backfill stays half created, and a scheduler that started one of its runs crashes.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STOP_SECONDS = 30
_POLL = (0.01, 0.1)  # seconds, random: never in step with a process that locks at intervals


@contextmanager
def standing_still(processes: Sequence[int], database: Path, *, timeout: float = 30) -> Iterator[None]:
    """Freeze processes (SIGSTOP) at a moment when none of them holds a lock on the database.

    :param timeout: seconds to find such a moment.
    :raises TimeoutError: they did not stop, or the database was locked whenever they did.
    """
    deadline = time.monotonic() + timeout
    try:
        _stop(processes)
        while _is_locked(database):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{database} is locked, also after {timeout:.0f} s")
            _signal(processes, signal.SIGCONT)
            time.sleep(random.uniform(*_POLL))
            _stop(processes)
        yield
    finally:
        _signal(processes, signal.SIGCONT)


def _is_locked(database: Path) -> bool:
    # Writers that are not frozen hold their locks for milliseconds only.
    with closing(sqlite3.connect(database, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False


def _stop(processes: Sequence[int]) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    _signal(processes, signal.SIGSTOP)
    while not all(_is_stopped(pid) for pid in processes):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {list(processes)} do not stop")
        time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    """Return whether no thread runs: one in a system call, such as a file lock, finishes the call first."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]
    except (OSError, IndexError):
        return False  # a thread has ended meanwhile
    return all(state in "TZX" for state in states)


def _signal(processes: Sequence[int], signum: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
