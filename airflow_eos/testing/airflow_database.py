"""One writer at a time for the SQLite file of a test Airflow.

SQLite refuses who waits too long for another writer. Airflow makes a backfill in several transactions: one
that is refused in the middle stays half made, and a scheduler that began a run of it ends.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_POLL = (0.01, 0.1)  # seconds, at random: never in step with who locks at intervals


@contextmanager
def standing_still(processes: Sequence[int], database: Path, *, timeout: float = 30) -> Iterator[None]:
    """Let processes stand still (SIGSTOP) while none of them holds a lock of the database.

    :param timeout: seconds to find such a moment.
    :raises TimeoutError: the database was locked whenever they stood still.
    """
    deadline = time.monotonic() + timeout
    try:
        _signal(processes, signal.SIGSTOP)
        while _is_locked(database):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{database} is locked, also after {timeout:.0f} s")
            _signal(processes, signal.SIGCONT)
            time.sleep(random.uniform(*_POLL))
            _signal(processes, signal.SIGSTOP)
        yield
    finally:
        _signal(processes, signal.SIGCONT)


def _is_locked(database: Path) -> bool:
    # Writers that do not stand still keep their locks for milliseconds.
    with closing(sqlite3.connect(database, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False


def _signal(processes: Sequence[int], signum: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
