"""A supervised Spark Connect server, by its commands."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_eos.exceptions import EosError, RunFailed, SparkUnavailable
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos.spark.server import control
from airflow_eos.spark.server.folder import CONN_ID, ServerFolder
from airflow_eos_testing import class_data
from airflow_eos_testing.faults import HALF_WRITTEN, RunProcess
from tests.support.local_runs import Pipeline

VALUES = sorted(f"v{n}" for n in range(40))
IN_A_JOB = "in a Spark job"
LATER = [pytest.param(point, marks=pytest.mark.chaos) for point in (HALF_WRITTEN, State.WRITTEN)]

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
    """Airflow reads the file; the token is in no setting of the session."""
    from airflow.secrets.local_filesystem import load_connections_dict

    (read,) = load_connections_dict(str(folder / "connection.json")).values()
    access = ServerFolder(folder).access()
    assert (read.conn_id, read.conn_type, read.password) == (CONN_ID, "spark_connect", access.token)
    connection = json.loads((folder / "connection.json").read_text())[CONN_ID]
    done = compute(connection, access.token)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"sc://localhost:{access.port}/ []"
    assert access.token not in done.stdout


@pytest.fixture
def pipeline(embedded_kafka):
    found = Pipeline(embedded_kafka)
    # One for all: making a ledger takes seconds.
    found.spec = replace(found.spec, ledger=LedgerSettings("ledger-of-warm-spark", partitions=2))
    found.publish(VALUES)
    return found


def copy(df):
    return df.select("key", "value")


def held_in_spark(mark, df):
    """Copy, in a Spark task that says that it works and takes long."""

    def hold(batches):
        import time
        from pathlib import Path

        Path(mark).touch()
        time.sleep(60)
        yield from batches

    return df.select("key", "value").mapInArrow(hold, "key binary, value binary")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", [IN_A_JOB, State.OPEN, *LATER])
def test_a_run_whose_server_is_killed_is_written_once_by_its_retry(folder, pipeline, tmp_path, point):
    """The try fails and says why; the server comes back by itself; the next try finds what is committed."""
    mark = tmp_path / "at-work"
    in_job = point == IN_A_JOB
    process = functools.partial(held_in_spark, str(mark)) if in_job else copy
    url = ServerFolder(folder).access().url
    before = control.status(folder)
    with RunProcess(pipeline.spec, process, remote=url, stop_at=None if in_job else point) as run:
        if in_job:
            wait_for(mark.exists)
        else:
            run.wait_for(point)
        os.kill(before["pid"], signal.SIGKILL)
        run.release(for_good=True)
        if point == State.WRITTEN:
            # Its output is on the brokers: it needs no Spark any more.
            assert run.result().records_written == len(VALUES)
        else:
            with pytest.raises(EosError, match="the Spark Connect server died, was started anew") as failed:
                run.result()
            assert isinstance(failed.value, SparkUnavailable if in_job else RunFailed)
            assert not is_final(failed.value)
            assert pipeline.output() == []
    wait_for(lambda: control.status(folder)["running"])
    after = control.status(folder)
    assert (after["restarts"], after["address"]) == (before["restarts"] + 1, before["address"])
    assert after["pid"] != before["pid"]
    with RunProcess(replace(pipeline.spec, try_number=2), copy, remote=url) as retry:
        record = retry.result()
    assert record.found == (point == State.WRITTEN)
    assert pipeline.output() == VALUES


def test_the_jvm_ends_with_its_supervisor(folder):
    """Killed with no chance to clean up: nothing runs on unseen."""
    found = command(folder, "spark-status")[1]
    os.kill(found["supervisor_pid"], signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{found['pid']}").exists())
    code, after = command(folder, "spark-status")
    assert (code, after["running"], after["phase"]) == (3, False, "died")


@pytest.mark.chaos
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
