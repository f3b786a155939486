"""A real YARN: runs in cluster mode, and their outcome when daemons, executors or the task die."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from airflow_eos.exceptions import EosError, RunFailed
from airflow_eos_testing import count_records
from airflow_eos_testing.airflow_processes import signal_all
from airflow_eos_testing.faults.half_send import is_half_written, let_go
from airflow_eos_testing.faults.yarn_cluster import YarnCluster, kill
from airflow_eos_testing.watchdog import processes_with
from tests.support.patience import eventually, wait_until
from tests.support.yarn_runs import (
    COPY,
    ONE_EXECUTOR,
    RECORDS,
    SECRET,
    assert_exact,
    in_background,
    submitted,
    written,
)

patient = pytest.mark.timeout(600)


@patient
def test_a_run_commits_in_cluster_mode_and_leaves_no_credential(yarn, task, broker):
    """While it runs, only the driver can find the specification; afterwards no file of YARN has it."""
    copying = task(conf=ONE_EXECUTOR)
    trigger = copying.defer()
    seen: set[Path] = set()
    thread, results = in_background(lambda: copying.resume(trigger))
    while thread.is_alive():
        seen |= set(yarn.holding(SECRET))
        time.sleep(0.5)
    assert isinstance(results[0], dict), f"{results[0]}\n{yarn.container_logs()[-5000:]}"
    assert results[0]["records_written"] == RECORDS
    assert yarn.wait_until_ended(trigger.driver_id) == "SUCCEEDED"
    assert_exact(broker, copying)
    assert yarn.attempts(trigger.driver_id) == 1
    wait_until(lambda: not yarn.processes(trigger.driver_id))
    assert {path.name for path in seen} <= {"submit_main.py", ".submit_main.py.crc"}, seen
    assert {path.relative_to(yarn.home).parts[0] for path in seen} <= {"staging", "node-1", "node-2"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in seen if path.exists())
    assert "airflow-eos 0" in yarn.container_logs(), "the search looked at something"
    # The node managers remove an application's files a moment after its end.
    eventually(lambda: yarn.holding(SECRET), lambda files: not files)
    assert not list(yarn.staging.rglob("submit_main.py"))
    applications = yarn.applications()
    assert copying.execute(try_number=2)["found"] is True
    assert yarn.applications() == applications, "the ledger answers, nothing is submitted"


@pytest.mark.chaos
@patient
def test_a_second_application_master_fences_the_first_and_commits(guarded, half_way, broker):
    """The first is killed with half of its output written: YARN starts another, on the same node."""
    yarn = guarded
    task = half_way(yarn)
    trigger = task.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 120)
    (first,) = yarn.application_masters(trigger.driver_id)
    kill(first)
    let_go(half_way.meeting)
    assert task.resume(trigger)["records_written"] == RECORDS
    assert yarn.attempts(trigger.driver_id) == 2
    assert_exact(broker, task)
    assert count_records(broker.bootstrap, task.settings["sink_topic"], "read_uncommitted") > RECORDS
    yarn.wait_until_ended(trigger.driver_id)
    eventually(lambda: yarn.holding(SECRET), lambda files: not files)


@pytest.mark.chaos
@patient
def test_an_application_master_on_a_lost_node_is_fenced_by_the_second_and_does_no_harm(
    yarn, half_way, broker
):
    """The node manager is killed, the driver frozen: it wakes up when the second has committed."""
    task = half_way()
    trigger = task.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 120)
    (first,) = yarn.application_masters(trigger.driver_id)
    node = yarn.node_of(first)
    frozen = [pid for pid in yarn.processes(trigger.driver_id) if yarn.node_of(pid) is node]
    signal_all(frozen, signal.SIGSTOP)
    node.kill()
    let_go(half_way.meeting)
    try:
        assert task.resume(trigger)["records_written"] == RECORDS
        assert_exact(broker, task)
        assert first in yarn.application_masters(trigger.driver_id), "it was there all the time"
    finally:
        signal_all(frozen, signal.SIGCONT)
        node.start()
        yarn.wait_until_ready()
    assert yarn.attempts(trigger.driver_id) == 2
    wait_until(lambda: first not in yarn.application_masters(trigger.driver_id), 120)
    assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_a_lost_executor_costs_an_epoch_not_an_application_master(yarn, half_way, broker):
    """An executor is killed during a send: the same driver sends again."""
    task = half_way()
    trigger = task.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 120)
    kill(yarn.executors(trigger.driver_id)[0])
    let_go(half_way.meeting)
    assert task.resume(trigger)["records_written"] == RECORDS
    assert yarn.attempts(trigger.driver_id) == 1
    assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_the_next_try_takes_up_the_application_of_a_worker_that_died(yarn, half_way, broker, tmp_path):
    """The task's process is killed while its driver sends: the next try submits nothing."""
    task = half_way(conf=ONE_EXECUTOR)
    applications = yarn.applications()
    log = tmp_path / "task.log"
    worker = task.start(log)
    try:
        wait_until(lambda: is_half_written(half_way.meeting), 120)
        wait_until(lambda: task.store.get("spark_job_id"), 30)
    finally:
        worker.kill()
        worker.wait(30)
    application = submitted(yarn, applications)
    _, results = in_background(lambda: task.execute(try_number=2))
    time.sleep(2)
    assert not results
    let_go(half_way.meeting)
    wait_until(lambda: results, 120)
    assert results[0]["records_written"] == RECORDS, results
    assert yarn.applications() == [*applications, application]
    assert (yarn.attempts(application), task.store.get("spark_job_id")) == (1, application)
    assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_a_clear_submits_a_new_application_that_fences_the_old_one(yarn, half_way, broker):
    """The old one's transaction is open; once released, it cannot commit."""
    task = half_way(conf=ONE_EXECUTOR)
    old = task.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 120)
    # The old driver's executors wait for the same file: with all of them frozen, only the new one gets it.
    frozen = yarn.processes(old.driver_id)
    signal_all(frozen, signal.SIGSTOP)
    let_go(half_way.meeting)
    try:
        cleared = {"clear_number": 1, "try_number": 2, "max_tries": 3}
        new = task.defer(**cleared)
        assert new.driver_id != old.driver_id
        assert task.resume(new, **cleared)["records_written"] == RECORDS
    finally:
        signal_all(frozen, signal.SIGCONT)
    assert_exact(broker, task)
    assert yarn.wait_until_ended(old.driver_id, 180) == "KILLED"
    assert_staged_for_owner_alone(yarn, old.driver_id)
    assert_exact(broker, task)


def assert_staged_for_owner_alone(yarn, application):
    """Spark removes its staging folder only after a regular end. Other users cannot read it."""
    staged = yarn.staging / yarn.user / ".sparkStaging" / application
    assert {path.parent for path in yarn.holding(SECRET)} <= {staged}
    assert not staged.exists() or staged.stat().st_mode & 0o077 == 0
    shutil.rmtree(staged, ignore_errors=True)  # as docs/security.md advises


@pytest.fixture(params=["open to all", "with access lists"])
def killing(request):
    """A YARN with default settings, and one with access control lists."""
    return request.getfixturevalue("yarn" if request.param == "open to all" else "guarded")


@pytest.mark.chaos
@patient
@pytest.mark.parametrize("how", ["deferred", "on the worker"])
def test_a_killed_task_ends_its_application(killing, half_way, broker, how):
    """Marked or cleared while deferred, or killed while waiting: it commits nothing, the next life does."""
    task = half_way(killing, conf=ONE_EXECUTOR)
    if how == "deferred":
        trigger = task.defer()
        application = trigger.driver_id
        wait_until(lambda: is_half_written(half_way.meeting), 120)
        import asyncio

        asyncio.run(trigger.on_kill())
    else:
        applications = killing.applications()
        operator = task.operator()
        _, results = in_background(lambda: operator.execute(task.context(operator)))
        wait_until(lambda: is_half_written(half_way.meeting), 120)
        application = submitted(killing, applications)
        wait_until(lambda: task.store.get("spark_job_id"), 30)
        operator.on_kill()
        assert not results
    assert killing.wait_until_ended(application, 60) == "KILLED"
    let_go(half_way.meeting)
    wait_until(lambda: not killing.processes(application))
    assert written(broker, task) == 0
    assert_staged_for_owner_alone(killing, application)
    if how == "on the worker":
        wait_until(lambda: results, 120)
        assert isinstance(results[0], EosError | RuntimeError)
        operator._hook._submit_sp.stdout.close()
    cleared = {"clear_number": 1, "try_number": 2, "max_tries": 3}
    assert task.resume(task.defer(**cleared), **cleared)["records_written"] == RECORDS
    assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_a_resource_manager_that_restarts_is_waited_for(yarn, half_way, broker):
    """Killed and restarted with its state while the driver sends: the trigger continues, the run commits."""
    task = half_way(conf=ONE_EXECUTOR)
    trigger = task.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 120)
    thread, results = in_background(lambda: task.resume(trigger))
    yarn.resource_manager.kill()
    time.sleep(5)
    assert thread.is_alive()
    yarn.resource_manager.start()
    yarn.wait_until_ready()
    let_go(half_way.meeting)
    thread.join(180)
    assert results[0]["records_written"] == RECORDS, results
    assert yarn.attempts(trigger.driver_id) == 1
    assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_a_resource_manager_that_forgets_its_applications(half_way, broker):
    """Without its state it does not know the application: the try fails, the next one submits and commits."""
    with YarnCluster(1, recovery=False) as yarn:
        task = half_way(yarn)
        trigger = task.defer()
        wait_until(lambda: is_half_written(half_way.meeting), 120)
        yarn.resource_manager.kill()
        yarn.resource_manager.start()
        yarn.wait_until_ready()
        with pytest.raises(RunFailed, match="NOT_FOUND"):
            task.resume(trigger)
        let_go(half_way.meeting)
        again = task.defer(try_number=2)
        assert again.driver_id != trigger.driver_id
        assert task.resume(again, try_number=2)["records_written"] == RECORDS
        assert_exact(broker, task)


@pytest.mark.chaos
@patient
def test_an_application_that_fails_lets_the_next_try_submit_again(yarn, task, broker, tmp_path):
    """Both application masters end with the transform's error; a fixed one commits in a new application."""
    copying = task("def process(df):\n    raise OSError('not today')\n", conf=ONE_EXECUTOR)
    trigger = copying.defer()
    with pytest.raises(RunFailed, match="FAILED"):
        copying.resume(trigger)
    assert written(broker, copying) == 0
    assert copying.store.get("spark_job_id") is None
    (tmp_path / "copy_app.py").write_text(COPY)
    again = copying.defer(try_number=2)
    assert copying.resume(again, try_number=2)["records_written"] == RECORDS
    assert_exact(broker, copying)


@pytest.mark.chaos
@patient
def test_an_application_that_fails_after_its_commit_is_a_success(yarn, task, broker):
    """YARN starts a second application master, which finds the commit, and fails as the first did."""
    copying = task(f"import atexit, os\natexit.register(os._exit, 7)\n{COPY}", conf=ONE_EXECUTOR)
    trigger = copying.defer()
    assert copying.resume(trigger)["records_written"] == RECORDS
    assert yarn.wait_until_ended(trigger.driver_id) == "FAILED"
    assert yarn.attempts(trigger.driver_id) == 2
    assert_exact(broker, copying)
    assert count_records(broker.bootstrap, copying.settings["sink_topic"], "read_uncommitted") == RECORDS


@pytest.mark.chaos
@patient
def test_an_application_that_ends_well_without_a_commit_is_a_failure(yarn, task, broker):
    """YARN's own status does not count."""
    exiting = task("import os\ndef process(df):\n    os._exit(0)\n", conf=ONE_EXECUTOR)
    trigger = exiting.defer()
    with pytest.raises(RunFailed, match="ended well, but the ledger does not hold"):
        exiting.resume(trigger)
    assert yarn.wait_until_ended(trigger.driver_id) == "SUCCEEDED"
    assert written(broker, exiting) == 0


OWNER = """
import sys, time
from airflow_eos_testing.faults.yarn_cluster import YarnCluster
with YarnCluster(1) as yarn:
    print(yarn.home, flush=True)
    time.sleep(600)
"""


@pytest.mark.chaos
def test_the_yarn_of_an_owner_that_is_killed_leaves_nothing(tmp_path):
    """Neither a daemon nor a folder is left."""
    import sys

    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    home = Path(owner.stdout.readline().strip())
    assert len(processes_with(f"AIRFLOW_EOS_HOME={home}")) == 2
    owner.kill()
    owner.wait(30)
    owner.stdout.close()
    wait_until(lambda: not home.exists() and not processes_with(f"AIRFLOW_EOS_HOME={home}"), 60)
