"""Other users of a host, and other machines, have no access to the Spark that a task starts there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_eos.spark.encryption import local_defaults
from airflow_eos_testing.spark_connect import HostSparkServer, SparkConnectServer
from tests.support.patience import wait_until
from tests.support.strangers import ask_as_nobody, listeners_of, process_tree

SECRET = "secret-of-a-task-5b1f"

# A session as an operator starts it. Its task, whose closure and rows have the secret, as do the credentials
# of a table's storage, waits, after a shuffle that has written files, until its file is removed.
TASK = """
import json, sys
from pathlib import Path
from airflow_eos.operators.spark_session import TaskSession, spark_settings
from airflow_eos.sinks.iceberg_files import IcebergFiles

settings, mark = json.loads(sys.argv[1]), sys.argv[2]
secret = sys.stdin.read()
storage = IcebergFiles("db.t", "{}", {"s3.secret-access-key": secret}, "file:///nowhere", "label")
session = TaskSession(spark_settings(None, "strangers", {"spark.master": "local[2]", **settings}))
spark = session.start(10)

def hold(batches):
    import time
    assert secret in storage.properties.values()
    Path(mark).touch()
    while Path(mark).exists():
        time.sleep(0.1)
    yield from batches

rows = spark.range(100).selectExpr(f"concat('{secret}', id) AS v", "id % 2 AS k").repartition(2, "k")
print(rows.mapInArrow(hold, rows.schema).count(), flush=True)
session.stop()
"""

OPEN_FOLDERS = """
from airflow_eos.spark_host import local_session
local_session._keep_others_out = lambda context: None
"""

# A client of a Spark Connect server whose task holds the secret.
CLIENT = """
import sys
from pyspark.sql import SparkSession

secret = sys.argv[2]

def keep(batches):
    assert secret
    yield from batches

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(spark.range(100).mapInArrow(keep, "id long").count())
"""


@contextmanager
def running_task(preparation="", **settings):
    """Yield the process of a task that waits in Spark, and its folder of temporary files.

    :param preparation: Python code to run before it.
    """
    # Not pytest's own folder, which other users cannot enter.
    with (
        tempfile.TemporaryDirectory(prefix="airflow-eos-strangers-") as folder,
        tempfile.TemporaryFile("w+") as given,
    ):
        Path(folder).chmod(0o755)
        mark = Path(folder) / "at-work"
        given.write(SECRET)
        given.seek(0)
        environment = {**os.environ, "TMPDIR": folder, "SPARK_LOCAL_DIRS": folder}
        environment.pop("SPARK_LOCAL_IP", None)
        with subprocess.Popen(
            [sys.executable, "-c", preparation + TASK, json.dumps(settings), str(mark)],
            env=environment,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0o022,
        ) as task:
            try:
                wait_until(lambda: mark.exists() or task.poll() is not None, 150)
                assert task.poll() is None, "the task ended early"
                yield task, folder
                mark.unlink()
                text = task.communicate(timeout=90)[0]
                assert "100" in text.splitlines()
                assert SECRET not in text
            finally:
                for pid in process_tree(task.pid)[1:] if task.poll() is None else []:
                    os.kill(pid, 9)
                task.kill()


@pytest.mark.timeout(300)
def test_no_socket_and_no_file_of_a_task_is_for_others():
    """With driver, JVM and workers active, each socket is on loopback and needs a secret."""
    with running_task() as (task, folder):
        listeners = listeners_of(task.pid)
        # Spark's RPC, its block manager and py4j; a Python daemon.
        assert len([listener for listener in listeners if listener.port is not None]) >= 3
        assert [listener for listener in listeners if not listener.is_loopback] == []
        assert ask_as_nobody(listeners, [folder], SECRET.encode()) == ({}, [])
        for pid in process_tree(task.pid):
            with suppress(OSError):  # the process has ended
                shown = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
                assert not [
                    text for text in shown if SECRET.encode() in text or b"authenticate.secret" in text
                ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", ["of a host", pytest.param("of the test equipment", marks=pytest.mark.chaos)]
)
def test_no_socket_of_a_connect_server_is_for_others(kind, tmp_path):
    """After a job that left a broadcast and Python workers; Spark Connect reveals only that it is HTTP/2."""
    host = HostSparkServer(tmp_path / "server", "--master", "local[2]") if kind == "of a host" else None
    with host or SparkConnectServer() as server:
        url = server.url if host is None else host.access.url
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, url, SECRET], stdout=subprocess.PIPE, text=True, check=True
        )
        assert done.stdout.split() == ["100"]
        listeners = listeners_of(server.pid)
        assert len([listener for listener in listeners if listener.port is not None]) >= 3
        assert [listener for listener in listeners if not listener.is_loopback] == []
        assert ask_as_nobody(listeners, [], SECRET.encode()) == ({}, [])


@pytest.mark.timeout(300)
def test_what_an_author_turns_off_is_open():
    """Each access is possible with the protection off: the tests above would detect it."""
    off = dict.fromkeys(local_defaults("local"), "false")
    del off["spark.driver.host"], off["spark.driver.bindAddress"]
    open_to_all = {**off, "spark.ui.enabled": "true", "spark.driver.bindAddress": "0.0.0.0"}
    with running_task(OPEN_FOLDERS, **open_to_all) as (task, folder):
        listeners = listeners_of(task.pid)
        assert [listener for listener in listeners if not listener.is_loopback]
        answers, files = ask_as_nobody(listeners, [folder], SECRET.encode())
    report = " ".join(text for texts in answers.values() for text in texts)
    assert "Spark's RPC answers without the secret" in report
    assert "the block manager serves broadcast_" in report
    assert "an answer to HTTP: b'HTTP/1.1 " in report
    assert files or os.getuid() != 0
