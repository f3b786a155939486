"""A local session starts a Python worker early, has one daemon, and ends without waiting."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.cases import rest_in_chaos

SECRET = "geheim-4711"

# A session as an operator starts it. Prints the daemons after each step, and those left after the stop.
SESSION = """
import json, sys, threading
from contextlib import suppress
from pathlib import Path
import psutil
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.plan import RunPlan
from airflow_eos.operators.spark_session import TaskSession, spark_settings
from airflow_eos.spark.lazy_data_plane import LazyDataPlane

MODULES = {"airflow_eos.spark_host.worker_daemon", "pyspark.daemon"}

def daemons():
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended
            if MODULES.intersection(process.cmdline()):
                found[process.pid] = process.ppid()
    return sorted(pid for pid, parent in found.items() if parent not in found)  # the others are workers

settings = {"spark.master": "local[2]", **json.loads(sys.argv[1])}
session = TaskSession(spark_settings(None, "a task", settings))
spark = session.start(10)
shown = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/cmdline").read_text()
secret = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
started = session._started.worker
if started is not None:
    started.join(60)
steps = [daemons()]
assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
steps.append(daemons())
assert spark.sparkContext.parallelize(range(10), 2).map(lambda number: number).count() == 10
steps.append(daemons())
server = spark.sparkContext._accumulatorServer
is_over, before_end = threading.Event(), []
stop = server.shutdown
server.shutdown = lambda: (before_end.append(is_over.wait(30)), stop())
session.stop()
file = server.server_address
is_left = isinstance(file, str) and Path(file).exists()
is_over.set()
for thread in threading.enumerate():
    if thread.name == "airflow-eos-accumulators":
        thread.join(60)
        assert not thread.is_alive()
waited = before_end != [True]
plan = RunPlan("explicit", (), {}, "group.runs", advances=False)
try:
    LazyDataPlane(spark, None, None, lambda: None).seal(plan)
except ConfigurationError as error:
    refusal = str(error)
seen = {"early": started is not None, "steps": steps, "left": is_left, "waited": waited, "refusal": refusal}
seen.update(shown=shown, secret=secret)
print(json.dumps(seen))
"""


def run_session(**settings: str) -> dict[str, object]:
    """Return what a session with these settings prints."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(settings)],
        check=True,
        timeout=180,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("sockets", rest_in_chaos(1, ["true", "false"]))
def test_the_daemon_is_there_before_the_first_task_and_serves_all(sockets):
    """With another environment, it would serve no task, and a task would start a second daemon."""
    secret = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    seen = run_session(**{"spark.python.unix.domain.socket.enabled": sockets, **secret})
    early, *later = seen["steps"]
    assert seen["early"]
    assert len(early) == 1
    assert later == [early, early]
    assert not seen["left"]
    assert not seen["waited"]
    # Command lines are visible to all users of a host.
    assert seen["secret"] == SECRET
    assert SECRET not in seen["shown"]
    assert "spark.master=local[2]" in seen["shown"]


@pytest.mark.chaos
def test_the_first_task_starts_the_daemon_where_the_early_worker_is_off():
    """The switch turns it off; the session is the same otherwise."""
    seen = run_session(**{"spark.airflowEos.earlyWorker": "false"})
    assert not seen["early"]
    assert seen["steps"][0] == []
    assert len(seen["steps"][1]) == 1
    assert "the Spark session given to the run was stopped before" in seen["refusal"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"spark.local.dir": "/proc/none"}, "it has ended, and its last lines say why"),
        ({"spark.plugins": "com.example.Missing"}, "java.lang.ClassNotFoundException: com.example.Missing"),
    ],
    ids=["a folder that cannot be made", "a plugin that is missing"],
)
def test_a_session_that_cannot_start_says_that_it_is_spark_and_why(settings, reason):
    """Python's error is a refused connection to the dead JVM, which looks like an error of the brokers."""
    start = """
import json, sys
from airflow_eos.exceptions import RunFailed
from airflow_eos.operators.spark_session import TaskSession, spark_settings
settings = {"spark.master": "local[2]", **json.loads(sys.argv[1])}
session = TaskSession(spark_settings(None, "a task", settings))
for _ in range(2):  # the next task of this process, as in dag.test()
    try:
        session.start(10)
    except RunFailed as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", start, json.dumps(settings)],
        check=True,
        timeout=180,
        stdout=subprocess.PIPE,
        text=True,
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("Spark at ")]
    assert len(errors) == 2
    assert all(line.startswith(f"Spark at local[2] could not start: {reason}") for line in errors)
