"""A supervised Spark Connect server, by its commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_eos.spark.server import control
from airflow_eos.spark.server.folder import CONN_ID, ServerFolder
from airflow_eos_testing import class_data

COMPUTE = """
from airflow_eos.operators.spark_session import TaskSession, spark_settings

session = TaskSession(spark_settings("spark_warm", "test", {}))
spark = session.start(10)
assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
print(session.address, sorted(name for name, value in spark.conf.getAll.items() if TOKEN in value))
session.stop()
"""


def command(folder, *arguments):
    """Run a command as a person does; return its exit code and its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow_eos", *arguments, "--folder", str(folder), "--output", "json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a server that runs; whatever a test did to it, nothing is left."""
    path = tmp_path_factory.mktemp("warm") / "server"
    code, found = command(path, "spark-start", "--memory", "512m", "--master", "local[2]")
    assert code == 0
    assert found["started"]
    assert found["running"]
    yield path
    control.stop(path)
    assert not ServerFolder(path).is_held


def test_status_says_how_to_reach_it(folder):
    """And a second start that it runs."""
    code, found = command(folder, "spark-status")
    assert (code, found["running"], found["memory"], found["restarts"]) == (0, True, "512m", 0)
    again, answer = command(folder, "spark-start")
    assert (again, answer["started"], answer["pid"]) == (0, False, found["pid"])
    assert found["address"] == answer["address"]
    assert answer["connection"]["made by"].endswith(str(folder / "connection.json"))


def test_the_token_is_in_its_file_and_nowhere_else(folder):
    """Of what others may see: command lines, the log, the state."""
    token = ServerFolder(folder).access().token.encode()
    found = command(folder, "spark-status")[1]
    seen = 0
    for name in ("pid", "supervisor_pid"):
        line = Path(f"/proc/{found[name]}/cmdline").read_bytes()
        assert token not in line
        seen += len(line)
    assert seen > 200
    holders = [path.name for path in folder.rglob("*") if path.is_file() and token in path.read_bytes()]
    assert holders == ["connection.json"]


def test_a_jvm_that_dies_is_started_again(folder):
    """At the same port, with the same token; its Python workers go with it."""
    before = command(folder, "spark-status")[1]
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: control.status(folder)["restarts"] == 1 and control.status(folder)["running"])
    after = command(folder, "spark-status")[1]
    assert after["address"] == before["address"]
    assert after["pid"] != before["pid"]


def compute(connection, token):
    """Use the server from a process of its own, as a task does; return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", f"TOKEN = {token!r}\n{COMPUTE}"],
        env={**os.environ, "AIRFLOW_CONN_SPARK_WARM": json.dumps(connection)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_a_task_uses_it_by_the_connection_of_the_file(folder):
    """Airflow reads the file; the token is in no setting of the session. (Its JVM is not the first one.)"""
    from airflow.secrets.local_filesystem import load_connections_dict

    (read,) = load_connections_dict(str(folder / "connection.json")).values()
    access = ServerFolder(folder).access()
    assert (read.conn_id, read.conn_type, read.password) == (CONN_ID, "spark_connect", access.token)
    connection = json.loads((folder / "connection.json").read_text())[CONN_ID]
    done = compute(connection, access.token)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"sc://localhost:{access.port}/ []"
    assert access.token not in done.stdout


def test_the_jvm_ends_with_its_supervisor(folder):
    """Killed with no chance to clean up: nothing runs on unseen."""
    found = command(folder, "spark-status")[1]
    os.kill(found["supervisor_pid"], signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{found['pid']}").exists())
    code, after = command(folder, "spark-status")
    assert (code, after["running"], after["phase"]) == (3, False, "died")


def test_an_idle_server_stops(tmp_path):
    """After the last connection, and says why; stop then has nothing to do."""
    settings = control.Settings(
        memory="512m", master="local[1]", idle_minutes=0.05, class_data_folder=class_data.folder()
    )
    found, started = control.start(tmp_path, settings)
    assert started
    try:
        wait_for(lambda: not ServerFolder(tmp_path).is_held)
    finally:
        control.stop(tmp_path)
    after = control.status(tmp_path)
    assert (after["phase"], after["reason"]) == ("stopped", "idle for 3 s")
    assert not Path(f"/proc/{found['pid']}").exists()
    assert command(tmp_path, "spark-stop") == (0, {"stopped": False, "folder": str(tmp_path)})
