"""The Spark Connect server of a host: ``airflow eos spark-server``."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from airflow_eos.exceptions import EosError, RunFailed, SparkUnavailable
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos.spark_host.connect_server import CONN_ID, read_access
from airflow_eos_testing.faults import HALF_WRITTEN, RunProcess
from airflow_eos_testing.spark_connect import HostSparkServer
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Pipeline
from tests.support.strangers import process_tree

VALUES = sorted(f"v{n}" for n in range(40))
COMMAND = [sys.executable, "-m", "airflow_eos", "spark-server"]
OPTIONS = ("--memory", "512m", "--master", "local[2]")
IN_A_JOB = "in a Spark job"

COMPUTE = """
from airflow_eos.operators.spark_session import TaskSession, spark_settings

session = TaskSession(spark_settings("spark_warm", "test", {}))
spark = session.start(10)
assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
print(session.address, sorted(name for name, value in spark.conf.getAll.items() if TOKEN in value))
session.stop()
"""


RAISES = """
from airflow_eos.operators.spark_session import TaskSession, spark_settings
from pyspark.sql import functions

def half(value):
    raise ValueError("half \\ud83d")

session = TaskSession(spark_settings("spark_warm", "test", {}))
try:
    session.start(10).range(1).select(functions.udf(half, "string")("id")).collect()
except Exception as error:
    print(ascii(str(error)))
session.stop()
"""


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run the command; clean up whatever a test did to it."""
    host = HostSparkServer(tmp_path_factory.mktemp("warm") / "server", *OPTIONS)
    with host:
        yield host


def test_the_command_becomes_the_server(server):
    """One process; it prints how clients reach it and how Airflow learns of it, and shows no token."""
    token = server.access.token
    line = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"SparkConnectServer" in line
    assert token.encode() not in line
    assert b"spark.serializer.objectStreamReset=4" in line, "or each task's stream holds 90 MB of sealed rows"
    log = (server.home / "server.log").read_text()
    assert server.access.address in log
    assert f"airflow connections import --overwrite {server.folder / 'connection.json'}" in log
    holders = [
        path.name
        for folder in (server.folder, server.home)
        for path in folder.rglob("*")
        if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert holders == ["connection.json"]


def test_nobody_is_answered_without_the_token(server):
    """Clients without a token, and with a wrong one, are refused."""
    request = base_pb2.AnalyzePlanRequest(
        session_id=str(uuid.uuid4()), spark_version=base_pb2.AnalyzePlanRequest.SparkVersion()
    )
    with grpc.insecure_channel(f"localhost:{server.access.port}") as channel:
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer other"),)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.AnalyzePlan(request, timeout=60, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        right = (("authorization", f"Bearer {server.access.token}"),)
        assert stub.AnalyzePlan(request, timeout=60, metadata=right).spark_version.version


def test_a_second_start_says_that_it_runs(server, tmp_path):
    """With the same folder, or on the same port; the first one's connection stays valid."""
    before = (server.folder / "connection.json").read_bytes()
    for folder, words in ((server.folder, "runs already"), (tmp_path / "other", "is in use")):
        done = subprocess.run(
            [*COMMAND, "--folder", str(folder), "--port", str(server.access.port)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert words in done.stderr
    assert (server.folder / "connection.json").read_bytes() == before


def compute(connection, token, script=COMPUTE):
    """Use the server from a separate process, like a task; return its output."""
    return subprocess.run(
        [sys.executable, "-c", f"TOKEN = {token!r}\n{script}"],
        env={**os.environ, "AIRFLOW_CONN_SPARK_WARM": json.dumps(connection)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_task_uses_it_by_the_connection_of_the_file(server):
    """Airflow reads the file; no setting of the session has the token."""
    from airflow.secrets.local_filesystem import load_connections_dict

    file, access = server.folder / "connection.json", server.access
    (read,) = load_connections_dict(str(file)).values()
    assert (read.conn_id, read.conn_type, read.password) == (CONN_ID, "spark_connect", access.token)
    done = compute(json.loads(file.read_text())[CONN_ID], access.token)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"sc://localhost:{access.port}/ []"
    assert access.token not in done.stdout


def test_a_function_whose_exception_cannot_be_encoded_ends_its_job(server):
    """Otherwise PySpark's own workers and Spark would wait for each other."""
    file = server.folder / "connection.json"
    done = compute(json.loads(file.read_text())[CONN_ID], server.access.token, RAISES)
    assert "ValueError: half" in done.stdout.splitlines()[-1]


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka)
    # One ledger for all: creating one takes seconds.
    filled.spec = replace(filled.spec, ledger=LedgerSettings("ledger-of-warm-spark", partitions=2))
    filled.publish(VALUES)
    return filled


def copy(df):
    return df.select("key", "value")


def held_in_spark(mark, df):
    """Copy, in a Spark task that reports that it runs, and takes long."""

    def hold(batches):
        import time
        from pathlib import Path

        Path(mark).touch()
        time.sleep(60)
        yield from batches

    return df.select("key", "value").mapInArrow(hold, "key binary, value binary")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("point", "at_once"),
    [
        (IN_A_JOB, True),
        pytest.param(State.OPEN, True, marks=pytest.mark.chaos),
        *(pytest.param(at, False, marks=pytest.mark.chaos) for at in (IN_A_JOB, HALF_WRITTEN, State.WRITTEN)),
    ],
)
def test_a_run_whose_server_is_killed_is_written_once_by_its_retry(pipeline, tmp_path, point, at_once):
    """The try fails with the reason, once its server is back or a minute has passed; the next try succeeds.

    It finds what is committed.

    :param at_once: whether the server is back before the try ends, as under a service manager.
    """
    mark = tmp_path / "at-work"
    in_job = point == IN_A_JOB
    process = functools.partial(held_in_spark, str(mark)) if in_job else copy
    with HostSparkServer(tmp_path / "server", *OPTIONS) as server:
        access = server.access
        with RunProcess(pipeline.spec, process, remote=access.url, stop_at=None if in_job else point) as run:
            if in_job:
                wait_for(mark.exists)
            else:
                run.wait_for(point)
            os.kill(server.pid, signal.SIGKILL)
            server.close()
            if at_once:
                server.start()
            run.release(for_good=True)
            if point == State.WRITTEN:
                # Its output is on the brokers: Spark is no longer needed.
                assert run.result().records_written == len(VALUES)
            else:
                with pytest.raises(EosError, match="Spark Connect server died, was restarted") as failed:
                    run.result()
                assert isinstance(failed.value, SparkUnavailable if in_job else RunFailed)
                assert not is_final(failed.value)
                assert pipeline.output() == []
        if not at_once:
            server.start()
        assert server.access == access
        with RunProcess(replace(pipeline.spec, try_number=2), copy, remote=access.url) as retry:
            record = retry.result()
    assert record.found == (point == State.WRITTEN)
    assert pipeline.output() == VALUES


def takes_connections(folder):
    access = read_access(folder)
    try:
        with socket.create_connection(("127.0.0.1", 0 if access is None else access.port), timeout=1):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("number", rest_in_chaos(1, [signal.SIGTERM, signal.SIGKILL]))
def test_the_server_ends_with_a_signal_and_leaves_nothing(tmp_path, number):
    """Neither JVM nor Python workers; after a crash, the exit code makes a service manager restart it."""
    with (tmp_path / "log").open("wb") as log:
        command = subprocess.Popen(
            [*COMMAND, "--folder", str(tmp_path / "server"), *OPTIONS], stdout=log, stderr=log
        )
    try:
        wait_for(lambda: takes_connections(tmp_path / "server") or command.poll() is not None)
        access = read_access(tmp_path / "server")
        done = compute(access.connection(), access.token)
        assert done.returncode == 0, done.stdout
        members = process_tree(command.pid)
        assert len(members) > 1, "Python workers"
        command.send_signal(number)
        assert command.wait(60) == (128 + number if number == signal.SIGTERM else -number)
        wait_for(lambda: not [pid for pid in members if Path(f"/proc/{pid}/exe").exists()])
    finally:
        command.kill()
        command.wait()
