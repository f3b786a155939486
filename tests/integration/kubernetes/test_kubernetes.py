"""A real Kubernetes API: drivers and executors are pods, and runs survive the loss of one.

The API server and its etcd are built from Go modules; the kubelet is one of ``airflow_eos_testing``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest

from airflow_eos.exceptions import RunFailed
from airflow_eos_testing import count_records
from airflow_eos_testing.faults.half_send import is_half_written, let_go
from tests.support.patience import eventually, wait_until
from tests.support.yarn_runs import COPY, RECORDS, SECRET, assert_exact, in_background, written

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

DRIVER, EXECUTOR = "driver", "executor"
CLEARED = {"clear_number": 1, "try_number": 2, "max_tries": 3}


def pods(api, role):
    """Return the names of a role's pods, oldest first."""
    labelled = [
        pod["metadata"] for pod in api.objects("pods") if pod["metadata"]["labels"]["spark-role"] == role
    ]
    return [pod["name"] for pod in sorted(labelled, key=lambda pod: pod["creationTimestamp"])]


def kinds_that_hold(api, text):
    """Return the kinds of objects of which one contains a text."""
    kinds = ("pods", "configmaps", "secrets", "services", "events")
    return {kind for kind in kinds if text in json.dumps(api.objects(kind))}


def pod_of(trigger):
    return trigger.driver_id.partition(":")[2]


@pytest.fixture(autouse=True)
def no_pods_left(api, kubelet):
    """Delete all pods for the next test; Spark keeps the pod of a driver that has ended."""
    yield
    for pod in api.objects("pods"):
        api.request("DELETE", f"pods/{pod['metadata']['name']}")
    wait_until(lambda: not api.objects("pods"), 60)


def test_a_run_commits_and_the_cluster_holds_no_credential(api, kubelet, task, broker, uploads):
    """No pod or ConfigMap contains a credential; Spark's upload of the application does, and stays."""
    copying = task()
    trigger = copying.defer()
    thread, results = in_background(lambda: copying.resume(trigger))
    leaks, looks = set(), set()
    while thread.is_alive():
        leaks |= kinds_that_hold(api, SECRET)
        looks |= kinds_that_hold(api, "spark-app-selector")
        thread.join(0.5)
    assert isinstance(results[0], dict), f"{results[0]}\n{kubelet.logs()[-8000:]}"
    assert results[0]["records_written"] == RECORDS
    assert_exact(broker, copying)
    assert not leaks
    assert looks >= {"pods", "services"}
    assert pods(api, DRIVER) == [pod_of(trigger)]
    assert "airflow-eos" in kubelet.logs(), "the driver wrote a log"
    assert SECRET not in kubelet.logs()
    holding = [path for path in uploads.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [path.name for path in holding] == ["submit_main.py"]
    assert copying.execute(try_number=2)["found"] is True
    assert pods(api, DRIVER) == [pod_of(trigger)], "the ledger answers, nothing is submitted"


def test_a_lost_executor_pod_costs_an_epoch_not_a_driver(api, kubelet, half_way, broker):
    """The pod is deleted during a send: the same driver requests another executor and sends again."""
    copying = half_way()
    trigger = copying.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 180)
    (lost,) = pods(api, EXECUTOR)
    api.request("DELETE", f"pods/{lost}")
    wait_until(lambda: not kubelet.processes(lost), 60)
    let_go(half_way.meeting)
    assert copying.resume(trigger)["records_written"] == RECORDS
    assert pods(api, DRIVER) == [pod_of(trigger)]
    assert_exact(broker, copying)
    assert count_records(broker.bootstrap, copying.settings["sink_topic"], "read_uncommitted") > RECORDS


def test_a_lost_driver_pod_is_fenced_by_the_next_try(api, kubelet, half_way, broker):
    """The driver is killed with half of its output written; the next try submits another."""
    copying = half_way()
    first = copying.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 180)
    for pid in kubelet.processes(pod_of(first)):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match="Failed"):
        copying.resume(first)
    assert written(broker, copying) == 0
    let_go(half_way.meeting)
    second = copying.defer(try_number=2)
    assert second.driver_id != first.driver_id
    assert copying.resume(second, try_number=2)["records_written"] == RECORDS
    assert_exact(broker, copying)


def test_the_next_try_takes_up_the_driver_of_a_worker_that_died(api, half_way, broker, uploads, tmp_path):
    """The task's process is killed while its driver sends: the next try submits nothing."""
    copying = half_way()
    worker = copying.start(tmp_path / "task.log")
    try:
        wait_until(lambda: is_half_written(half_way.meeting), 180)
        wait_until(lambda: copying.store.get("spark_job_id"), 60)
    finally:
        worker.kill()
        worker.wait(30)
    assert len(pods(api, DRIVER)) == 1
    _, results = in_background(lambda: copying.execute(try_number=2))
    time.sleep(2)
    assert not results
    let_go(half_way.meeting)
    wait_until(lambda: results, 180)
    assert results[0]["records_written"] == RECORDS, results
    assert len([*uploads.rglob("submit_main.py")]) == 1
    assert pods(api, DRIVER) == [], "the provider deletes the pod that it has waited for"
    assert_exact(broker, copying)


def test_a_clear_submits_a_new_driver_that_fences_the_old_one(kubelet, half_way, broker):
    """The old driver resumes with its transaction open, after the new one has committed."""
    copying = half_way()
    old = copying.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 180)
    names = (pod_of(old), *pods(kubelet.api, EXECUTOR))
    frozen = [pid for name in names for pid in kubelet.processes(name)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    let_go(half_way.meeting)
    try:
        new = copying.defer(**CLEARED)
        assert new.driver_id != old.driver_id
        assert copying.resume(new, **CLEARED)["records_written"] == RECORDS
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    assert_exact(broker, copying)
    eventually(lambda: kubelet.processes(pod_of(old)), lambda running: not running, seconds=180)
    assert_exact(broker, copying)


def test_the_pod_of_a_killed_task_is_deleted_and_commits_nothing(api, kubelet, half_way, broker):
    """Marked or cleared while deferred: the driver's pod is deleted, and its executors end with it."""
    copying = half_way()
    trigger = copying.defer()
    wait_until(lambda: is_half_written(half_way.meeting), 180)
    asyncio.run(trigger.on_kill())
    wait_until(lambda: not kubelet.processes(pod_of(trigger)), 60)
    let_go(half_way.meeting)
    assert written(broker, copying) == 0
    assert copying.resume(copying.defer(**CLEARED), **CLEARED)["records_written"] == RECORDS
    assert_exact(broker, copying)


def test_a_driver_that_fails_after_its_commit_is_a_success(api, task, broker):
    """The ledger decides, not the phase of the pod."""
    copying = task(f"import atexit, os\natexit.register(os._exit, 7)\n{COPY}")
    trigger = copying.defer()
    assert copying.resume(trigger)["records_written"] == RECORDS
    (driver,) = (pod for pod in api.objects("pods") if pod["metadata"]["name"] == pod_of(trigger))
    assert driver["status"]["phase"] == "Failed"
    assert_exact(broker, copying)
