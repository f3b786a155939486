"""Runs on a real YARN that lose an executor, their brokers, or, with the driver on the worker, their task."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from airflow_eos.compat import AirflowException
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import BrokersUnavailable, EosError
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.open_transactions import open_transactions
from airflow_eos.operators import last_answer
from airflow_eos_testing import EmbeddedKafka, count_records
from airflow_eos_testing.faults.half_send import is_half_written, let_go
from airflow_eos_testing.faults.yarn_cluster import kill
from tests.support.patience import eventually, wait_until
from tests.support.spark_sessions import Broker
from tests.support.yarn_runs import (
    ONE_EXECUTOR,
    RECORDS,
    SECRET,
    assert_exact,
    in_background,
    submitted,
    written,
)
from tests.support.yarn_tasks import close

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SEALS = """
def process(df):
    def held(batches):
        import os
        import pathlib
        import time

        place = pathlib.Path({folder!r})
        (place / str(os.getppid())).touch()
        for batch in batches:
            while not (place / "go").exists():
                time.sleep(0.02)
            yield batch

    return df.select("key", "value").mapInArrow(held, "key binary, value binary")
"""
# In client mode the driver determines the executors' Python.
CLIENT = {
    "deploy_mode": "client",
    "yarn_track_via_rm_api": False,
    "conf": {**ONE_EXECUTOR, "spark.pyspark.python": sys.executable},
}
CLEARED = {"clear_number": 1, "try_number": 2, "max_tries": 3}


def test_an_executor_that_is_lost_while_it_seals_is_computed_again(yarn, task, broker, tmp_path):
    """Nothing is on the brokers yet: Spark itself retries, in the same transaction."""
    meeting = tmp_path / "sealing"
    meeting.mkdir()
    copying = task(SEALS.format(folder=str(meeting)))
    trigger = copying.defer()
    wait_until(lambda: list(meeting.iterdir()), 120)
    at_work = executors_at_work(yarn, trigger.driver_id, meeting)
    assert at_work
    assert count_records(broker.bootstrap, copying.settings["sink_topic"], "read_uncommitted") == 0
    kill(at_work[0])
    let_go(meeting)
    assert copying.resume(trigger)["records_written"] == RECORDS
    assert yarn.attempts(trigger.driver_id) == 1
    assert_exact(broker, copying)
    seen = count_records(broker.bootstrap, copying.settings["sink_topic"], "read_uncommitted")
    assert seen == RECORDS, "sent once"
    assert "Lost executor" in yarn.container_logs()


def executors_at_work(yarn, application, meeting):
    """Return the executors with a Python worker at the meeting: its parent is their daemon."""
    daemons = {int(path.name) for path in meeting.iterdir()}
    return [pid for pid in yarn.executors(application) if daemons.intersection(children(pid))]


@pytest.fixture
def own_broker():
    """Brokers that a test may kill, separate from those of the other tests."""
    with EmbeddedKafka() as kafka:
        yield kafka.brokers[0], Broker(kafka.bootstrap_servers)


@pytest.fixture
def broker(request):
    """The module's brokers, or those of a test that kills them."""
    if "own_broker" in request.fixturenames:
        return request.getfixturevalue("own_broker")[1]
    return Broker(request.getfixturevalue("embedded_kafka").bootstrap_servers)


def ended_without_brokers(yarn, task, node):
    """Let an application commit and end, kill its brokers; return its trigger."""
    trigger = task.defer()
    assert yarn.wait_until_ended(trigger.driver_id, 180) == "SUCCEEDED"
    node.kill()
    return trigger


def test_brokers_that_are_away_when_the_application_has_ended_are_waited_for(yarn, own_broker, task, broker):
    """The trigger asks the ledger until they are back; the try succeeds."""
    node, _ = own_broker
    copying = task(conf=ONE_EXECUTOR)
    trigger = ended_without_brokers(yarn, copying, node)
    thread, results = in_background(lambda: copying.resume(trigger))
    thread.join(45)
    assert thread.is_alive(), results
    node.start()
    thread.join(180)
    assert results[0]["records_written"] == RECORDS, results
    assert_exact(broker, copying)


def test_brokers_that_stay_away_fail_the_try_and_the_next_one_finds_the_commit(
    yarn, own_broker, task, broker, monkeypatch
):
    """The five minutes are a second here; nothing is submitted again."""
    monkeypatch.setattr(last_answer, "ASK_SECONDS", 1.0)
    node, _ = own_broker
    copying = task(conf=ONE_EXECUTOR)
    trigger = ended_without_brokers(yarn, copying, node)
    with pytest.raises(BrokersUnavailable):
        copying.resume(trigger)
    node.start()
    applications = yarn.applications()
    summary = copying.execute(try_number=2)
    assert (summary["found"], summary["records_written"]) == (True, RECORDS)
    assert yarn.applications() == applications
    assert_exact(broker, copying)


def open_now(broker):
    with ControlPlane(Deployment(broker.config)) as control:
        return open_transactions(control)


def test_a_killed_task_whose_driver_is_on_the_worker_aborts_and_ends_its_application(yarn, half_way, broker):
    """SIGTERM lets the driver abort: no transaction stays open. The cleared task commits."""
    task = half_way(**CLIENT)
    applications = yarn.applications()
    operator = task.operator()
    thread, results = in_background(lambda: operator.execute(task.context(operator)))
    wait_until(lambda: is_half_written(half_way.meeting) or results, 120)
    assert not results
    application = submitted(yarn, applications)
    assert open_now(broker)
    operator.on_kill()
    assert yarn.wait_until_ended(application, 120) in ("KILLED", "FAILED", "SUCCEEDED", "UNDEFINED")
    thread.join(120)
    close(operator)
    assert isinstance(results[0], EosError | AirflowException), results
    assert open_now(broker) == [], "aborted, not left to its time-out"
    let_go(half_way.meeting)
    wait_until(lambda: not yarn.processes(application), 120)
    assert written(broker, task) == 0
    eventually(lambda: yarn.holding(SECRET), lambda files: not files)
    assert task.execute(**CLEARED)["records_written"] == RECORDS
    assert len(yarn.applications()) == len(applications) + 2
    assert_exact(broker, task)


def test_a_worker_that_dies_with_its_driver_leaves_its_application_to_end(yarn, half_way, broker, tmp_path):
    """SIGKILL of task, spark-submit and driver: the next try fences their transaction, and commits."""
    task = half_way(**CLIENT)
    applications = yarn.applications()
    worker = task.start(tmp_path / "task.log")
    try:
        wait_until(lambda: is_half_written(half_way.meeting), 120)
    finally:
        for pid in reversed(tree(worker.pid)):
            os.kill(pid, signal.SIGKILL)
        worker.wait(30)
    application = submitted(yarn, applications)
    let_go(half_way.meeting)
    assert task.execute(try_number=2)["records_written"] == RECORDS
    assert len(yarn.applications()) == len(applications) + 2
    assert_exact(broker, task)
    yarn.wait_until_ended(application, 180)
    wait_until(lambda: not yarn.processes(application), 120)
    assert written(broker, task) == RECORDS


def tree(pid):
    """Return a process and its descendants."""
    return [process for process in (pid, *children(pid, recursive=True)) if psutil.pid_exists(process)]


def children(pid, **options):
    """Return the children of a process; empty if it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children(**options)]
    except psutil.NoSuchProcess:
        return []
