"""Processes that write to a SQLite database are stopped while they hold no lock on it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_eos_testing.airflow_database import standing_still

pytestmark = pytest.mark.process

BUSY_WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("PRAGMA synchronous = OFF")  # how long it holds the lock is not the disk's business
print("ready", flush=True)
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO numbers VALUES (1)")
    time.sleep(0.04)
    connection.execute("COMMIT")
    time.sleep(0.04)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
    return path


@pytest.fixture
def writer(database: Path) -> Iterator[int]:
    """A process that holds the database's lock half of its time."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_WRITER, str(database)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_who_stands_still_holds_no_lock(database: Path, writer: int) -> None:
    for _ in range(10):
        with standing_still([writer], database), closing(_connect(database)) as connection:
            before = _count(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            time.sleep(0.05)
            assert _count(connection) == before, "the writer went on"
        time.sleep(0.02)


def test_afterwards_they_go_on(database: Path, writer: int) -> None:
    with standing_still([writer], database), closing(_connect(database)) as connection:
        before = _count(connection)
    deadline = time.monotonic() + 30
    with closing(_connect(database, patience=10)) as connection:
        while _count(connection) == before:
            assert time.monotonic() < deadline


def test_a_lock_that_stays_is_told(database: Path, writer: int) -> None:
    with closing(_connect(database, patience=10)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match="is locked"), standing_still([writer], database, timeout=0.5):
            pytest.fail("somebody else holds the lock")


def _connect(database: Path, *, patience: float = 0.02) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=patience, isolation_level=None)


def _count(connection: sqlite3.Connection) -> int:
    return connection.execute("SELECT count(*) FROM numbers").fetchone()[0]
