"""Servers from wheels: they start, and end with their owner, however that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos_testing import postgres, redis_server
from airflow_eos_testing.exceptions import EmbeddedServerError
from tests.support.patience import eventually

pytestmark = pytest.mark.process

OWNER = """
import time
from airflow_eos_testing.postgres import PostgresServer
from airflow_eos_testing.redis_server import RedisServer
with {server}() as server:
    print(server._home, server.pid, flush=True)
    time.sleep(600)
"""
PROCESSES = {"PostgresServer": 4, "RedisServer": 1}
"""The minimum number of processes by server."""
if sys.version_info < (3, 11):
    del PROCESSES["RedisServer"]  # Valkey has no wheel for Python 3.10


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("server", PROCESSES)
def test_a_killed_owner_leaves_no_server_and_no_file(server: str) -> None:
    """SIGKILL: the server ends, and so do PostgreSQL's own processes, which have their own sessions."""
    command = [sys.executable, "-c", OWNER.format(server=server)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            home, pid = owner.stdout.readline().split()
            # The process of a session that has ended may also be listed.
            pids = eventually(
                lambda: [number for number in (int(pid), *children(int(pid))) if alive(number)],
                lambda running: len(running) >= PROCESSES[server],
            )
            assert int(pid) in pids
        finally:
            owner.kill()
    eventually(lambda: [pid for pid in pids if alive(pid)], lambda seen: not seen)
    eventually(lambda: Path(home).exists(), lambda exists: not exists)


@pytest.mark.parametrize("server", [postgres.PostgresServer, redis_server.RedisServer])
def test_a_server_that_is_not_installed_is_an_error(server: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells what to install; the test is not skipped."""
    for module in (postgres, redis_server):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedServerError, match=r"airflow-eos-testing\[platform\]"):
        server().start()


def test_a_database_is_restored_as_it_was_backed_up() -> None:
    """Also with an open connection: later changes are gone."""
    with postgres.PostgresServer() as database:
        database.query("CREATE TABLE seen (name text)")
        database.query("INSERT INTO seen VALUES (:'name')", name="o'clock")
        dump = database.back_up()
        database.query("INSERT INTO seen VALUES ('later')")
        database.restore(dump)
        assert database.query("SELECT name, 1 FROM seen") == [["o'clock", "1"]]
        with pytest.raises(EmbeddedServerError, match="syntax error"):
            database.query("SELEKT")
