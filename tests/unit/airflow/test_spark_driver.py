"""Drivers on a cluster, watched over HTTP: fakes answer like Spark, YARN and Kubernetes."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from requests.auth import HTTPBasicAuth

from airflow_eos.hooks.spark_driver import SparkDriver
from airflow_eos.triggers.spark_driver import ON_KILL_SECONDS, SparkDriverTrigger


class Cluster:
    """Answers requests from a script per path, and records them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.answers: list[Any] = []
        self.answered = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                outer.requests.append((self.command, self.path, body))
                outer.goes_on.wait(20)  # less than a client's time-out
                outer.answered += 1
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                data = json.dumps(answer).encode()
                self.send_response(answer if isinstance(answer, int) else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the client has timed out
                    self.wfile.write(data)

            do_GET = do_POST = do_PUT = _answer  # noqa: N815 - names of the library

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    fake = Cluster()
    standalone = {"conn_type": "spark", "host": "spark://127.0.0.1:7077", "extra": {"rest-port": fake.port}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(standalone))
    yarn = {
        "conn_type": "spark",
        "host": "yarn",
        "extra": {"yarn_resourcemanager_webapp_address": f"127.0.0.1:{fake.port}"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(yarn))
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def standalone(state: str) -> dict[str, Any]:
    return {"success": True, "driverState": state, "submissionId": "driver-1"}


UNKNOWN_DRIVER = {"success": False, "submissionId": "driver-1"}


def not_leading(state: str) -> dict[str, Any]:
    message = f"Current state is not alive: {state}. Can only request driver status in ALIVE state."
    return {"success": False, "submissionId": "driver-1", "message": message}


def trigger(backend: Any, driver_id: str, conn_id: str, **changes: Any) -> SparkDriverTrigger:
    return SparkDriverTrigger(
        backend=backend, driver_id=driver_id, conn_id=conn_id, poll_interval=0.01, **changes
    )


async def event_of(watcher: SparkDriverTrigger) -> Any:
    return (await anext(watcher.run())).payload  # type: ignore[call-overload]


def test_standalone_driver_is_awaited(cluster: Cluster) -> None:
    """SUBMITTED, RUNNING, a master in recovery, then the end."""
    cluster.answers = [standalone(s) for s in ("SUBMITTED", "RUNNING", "UNKNOWN", "FINISHED")]
    event = asyncio.run(event_of(trigger("standalone", "driver-1", "spark")))
    assert event == {"driver_id": "driver-1", "status": "FINISHED", "succeeded": True}
    assert cluster.requests == [("GET", "/v1/submissions/status/driver-1", "")] * 4


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "ERROR"])
def test_failed_driver_is_an_event_not_an_error(cluster: Cluster, state: str) -> None:
    """It may have committed before it failed: the ledger decides."""
    cluster.answers = [standalone(state)]
    event = asyncio.run(event_of(trigger("standalone", "driver-1", "spark")))
    assert event == {"driver_id": "driver-1", "status": state, "succeeded": False}


def test_driver_that_three_looks_do_not_find_has_ended(cluster: Cluster) -> None:
    """A restarted master has forgotten it; a single poll that misses it is not enough."""
    cluster.answers = [UNKNOWN_DRIVER, UNKNOWN_DRIVER, standalone("RUNNING"), UNKNOWN_DRIVER]
    event = asyncio.run(event_of(trigger("standalone", "driver-1", "spark")))
    assert event == {"driver_id": "driver-1", "status": "NOT_FOUND", "succeeded": False}
    assert len(cluster.requests) == 6


def test_first_look_is_an_interval_away(cluster: Cluster) -> None:
    """The scheduler has to see the end of the deferring process before the trigger fires."""
    cluster.answers = [standalone("FINISHED")]

    async def look() -> int:
        watcher = trigger("standalone", "driver-1", "spark")
        watcher.poll_interval = 60.0
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(event_of(watcher), 0.2)
        return len(cluster.requests)

    assert asyncio.run(look()) == 0


@pytest.fixture
def two_masters(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two masters; the same server answers for both, one after the other."""
    masters = {"conn_type": "spark", "host": "spark://127.0.0.1:7077,127.0.0.1:7078"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({**masters, "extra": {"rest-port": cluster.port}}))
    return cluster


def test_master_that_stands_by_knows_nothing_of_a_driver(two_masters: Cluster) -> None:
    """It answers with HTTP 200 and a refusal: the next master is asked."""
    two_masters.answers = [not_leading("STANDBY"), standalone("RUNNING")]
    assert SparkDriver("standalone", "driver-1", "spark").status() == "RUNNING"
    two_masters.answers = [UNKNOWN_DRIVER, not_leading("STANDBY")]
    assert SparkDriver("standalone", "driver-1", "spark").status() == "NOT_FOUND"


def test_masters_without_a_leader_could_not_be_asked(two_masters: Cluster) -> None:
    """During a recovery it is unknown whether the driver runs."""
    two_masters.answers = [not_leading("STANDBY"), not_leading("RECOVERING")]
    with pytest.raises(RuntimeError, match="RECOVERING"):
        SparkDriver("standalone", "driver-1", "spark").status()


def test_leading_master_is_told_to_kill(two_masters: Cluster) -> None:
    """A standby master refuses; a driver that no master kills is an error."""
    two_masters.answers = [
        {
            "success": False,
            "message": "Current state is not alive: STANDBY. Can only kill drivers in ALIVE state.",
        },
        {"success": True, "message": "Kill request for driver-1 submitted"},
    ]
    SparkDriver("standalone", "driver-1", "spark").kill()
    assert two_masters.requests == [("POST", "/v1/submissions/kill/driver-1", "")] * 2
    two_masters.answers = [{"success": False, "message": "driver-1 has already finished or does not exist"}]
    with pytest.raises(RuntimeError, match="already finished"):
        SparkDriver("standalone", "driver-1", "spark").kill()


def test_yarn_application_is_awaited_and_killed(cluster: Cluster) -> None:
    """By the resource manager's state and final status; a kill is a state request to it."""
    app = "application_1_0001"
    cluster.answers = [
        {"app": {"state": "RUNNING", "finalStatus": "UNDEFINED"}},
        {"app": {"state": "FINISHED", "finalStatus": "SUCCEEDED"}},
    ]
    event = asyncio.run(event_of(trigger("yarn", app, "yarn")))
    assert event == {"driver_id": app, "status": "SUCCEEDED", "succeeded": True}
    asyncio.run(trigger("yarn", app, "yarn", user="me").on_kill())
    method, path, body = cluster.requests[-1]
    assert (method, path) == ("PUT", f"/ws/v1/cluster/apps/{app}/state?user.name=me")
    assert json.loads(body) == {"state": "KILLED"}


def test_application_that_yarn_does_not_kill_is_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The log does not say that it was killed."""
    cluster.answers = [403]
    with caplog.at_level("INFO"):
        asyncio.run(trigger("yarn", "application_1_0001", "yarn").on_kill())
    assert "was not killed: HTTP 403" in caplog.text
    assert "was killed" not in caplog.text


@pytest.mark.parametrize(
    ("given", "environment", "name"),
    [
        ({}, {"HADOOP_USER_NAME": "etl"}, "etl"),
        ({"env_vars": {"HADOOP_USER_NAME": "a"}}, {"HADOOP_USER_NAME": "etl"}, "a"),
        ({"proxy_user": "b"}, {"HADOOP_USER_NAME": "etl"}, "b"),
        ({}, {}, getpass.getuser()),
    ],
)
def test_yarn_is_told_whose_application_it_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, given: Any, environment: Any, name: str
) -> None:
    """The user for whom ``spark-submit`` submits it; an author's own authentication is not changed."""
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    cluster.answers = [{"app": {"state": "RUNNING", "finalStatus": "UNDEFINED"}}]
    hook = SparkSubmitHook(conn_id="yarn", deploy_mode="cluster", yarn_track_via_rm_api=True, **given)
    if "env_vars" in given:
        hook._env = given["env_vars"]  # set while the command is built
    SparkDriver("yarn", "application_1_0001", "yarn", hook=hook).status()
    assert cluster.requests[-1][1] == f"/ws/v1/cluster/apps/application_1_0001?user.name={name}"

    own = SparkSubmitHook(
        conn_id="yarn",
        deploy_mode="cluster",
        yarn_track_via_rm_api=True,
        yarn_rm_auth=HTTPBasicAuth("c", "d"),
    )
    SparkDriver("yarn", "application_1_0001", "yarn", hook=own).status()
    assert "user.name" not in cluster.requests[-1][1]


def test_application_that_yarn_has_forgotten_has_ended(cluster: Cluster) -> None:
    """Unlike after a failed request to the resource manager: then its drivers may still run."""
    cluster.answers = [404]
    assert SparkDriver("yarn", "application_1_0001", "yarn").status() == "NOT_FOUND"
    cluster.answers = [503]
    with pytest.raises(RuntimeError, match="503"):
        SparkDriver("yarn", "application_1_0001", "yarn").status()


def test_what_a_proxy_says_of_a_resource_manager_ends_no_application(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status code of the answer decides, not its body."""

    def query(self: Any, application: str) -> str:
        raise RuntimeError(
            f"YARN RM REST API returned HTTP 503 for application {application}: HTTP 404 there"
        )

    monkeypatch.setattr(SparkSubmitHook, "query_yarn_application_status", query)
    with pytest.raises(RuntimeError, match="HTTP 503"):
        SparkDriver("yarn", "application_1_0001", "yarn").status()


def test_pod_is_awaited_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver pod's phase; a missing pod has ended."""
    phases: list[Any] = ["Pending", "Running", "Succeeded"]
    deleted: list[Any] = []

    class ApiException(Exception):
        status = 404

    class Client:
        def read_namespaced_pod(self, name: str, namespace: str) -> Any:
            assert (namespace, name) == ("jobs", "app-driver")
            if not phases:
                raise ApiException
            return SimpleNamespace(status=SimpleNamespace(phase=phases.pop(0)))

        def delete_namespaced_pod(self, name: str, namespace: str, _request_timeout: float) -> None:
            assert 0 < _request_timeout <= ON_KILL_SECONDS
            deleted.append((namespace, name))

    module = ModuleType("airflow.providers.cncf.kubernetes")
    module.kube_client = SimpleNamespace(get_kube_client=Client, ApiException=ApiException)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf", ModuleType("airflow.providers.cncf"))
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes", module)
    watcher = trigger("kubernetes", "jobs:app-driver", "k8s")
    assert asyncio.run(event_of(watcher)) == {
        "driver_id": "jobs:app-driver",
        "status": "Succeeded",
        "succeeded": True,
    }
    assert asyncio.run(event_of(watcher))["status"] == "NOT_FOUND"
    asyncio.run(watcher.on_kill())
    assert deleted == [("jobs", "app-driver")]


def test_cluster_manager_that_cannot_be_asked_ends_the_wait(cluster: Cluster) -> None:
    """After max_failures the operator checks the ledger."""
    cluster.server.shutdown()
    cluster.server.server_close()
    event = asyncio.run(event_of(trigger("standalone", "driver-1", "spark", max_failures=3)))
    assert event == {"driver_id": "driver-1", "status": "UNREACHABLE", "succeeded": False}


def test_user_who_ends_the_task_ends_the_driver(cluster: Cluster) -> None:
    """Marked or cleared while deferred: the driver is killed on the cluster."""
    cluster.answers = [{"success": True}]
    asyncio.run(trigger("standalone", "driver-1", "spark").on_kill())
    assert cluster.requests == [("POST", "/v1/submissions/kill/driver-1", "")]


@pytest.mark.parametrize(("state", "kills"), [("deferred", False), ("failed", True), (None, True)])
def test_triggerer_that_lost_the_task_to_another_leaves_the_driver(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, state: str | None, kills: bool
) -> None:
    """Airflow calls on_kill there, too; a task that a user has ended is no longer deferred."""
    instance = SimpleNamespace(dag_id="dag", task_id="copy", run_id="run", map_index=2)
    states = {"run": {} if state is None else {"copy_2": state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    cluster.answers = [{"success": True}]
    watcher = trigger("standalone", "driver-1", "spark")
    watcher.task_instance = instance  # type: ignore[assignment]
    asyncio.run(watcher.on_kill())
    assert bool(cluster.requests) is kills


def test_driver_is_killed_at_the_deadline(cluster: Cluster) -> None:
    """Also by a triggerer that starts after it; before it, the driver is only watched."""
    cluster.answers = [standalone("FINISHED")]
    later = trigger("standalone", "driver-1", "spark", deadline="2999-01-01T00:00:00+00:00")
    assert asyncio.run(event_of(later))["status"] == "FINISHED"
    cluster.answers = [{"success": True}]
    over = trigger("standalone", "driver-1", "spark", deadline="2026-01-01T00:00:00+00:00")
    event = asyncio.run(event_of(over))
    assert event == {"driver_id": "driver-1", "status": "TIMED_OUT", "succeeded": False}
    assert cluster.requests[1:] == [("POST", "/v1/submissions/kill/driver-1", "")]


def test_kill_returns_in_time_from_a_cluster_that_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggerer gives on_kill some seconds: it takes no longer, and raises nothing."""
    monkeypatch.setattr("airflow_eos.triggers.spark_driver.ON_KILL_SECONDS", 0.2)
    cluster.answers = [{"success": True}]
    cluster.goes_on.clear()

    async def kill() -> int:
        await trigger("standalone", "driver-1", "spark").on_kill()
        answered = cluster.answered
        cluster.goes_on.set()
        return answered

    assert asyncio.run(kill()) == 0


def test_kill_goes_on_while_airflow_cancels_it_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triggerer does each second until on_kill has returned: as of more tasks than are killed at once."""

    def slow(**_: Any) -> Any:
        time.sleep(0.2)
        return {}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", slow)
    cluster.answers = [{"success": True}]
    cluster.goes_on.clear()
    one_by_one = [trigger("standalone", f"driver-{number}", "spark") for number in range(12)]
    for watcher in one_by_one:
        watcher.task_instance = SimpleNamespace(dag_id="dag", task_id="copy", run_id="run", map_index=-1)  # type: ignore[assignment]

    async def kill() -> None:
        kills = [asyncio.create_task(watcher.on_kill()) for watcher in one_by_one]
        while any(not task.done() for task in kills):
            await asyncio.sleep(0.1)
            for task in kills:
                task.cancel()
            if len(cluster.requests) == 8:  # no more at once
                cluster.goes_on.set()

    asyncio.run(kill())
    killed = {path.rpartition("/")[2] for _, path, _ in cluster.requests}
    assert killed == {watcher.driver_id for watcher in one_by_one}


def test_master_that_hangs_leaves_time_for_the_one_that_leads(two_masters: Cluster) -> None:
    """Both are asked within the seconds of one kill."""
    two_masters.answers = [{"success": True}]
    hangs = threading.Event()
    only_first_hangs = SimpleNamespace(wait=lambda _: len(two_masters.requests) > 1 or hangs.wait())
    two_masters.goes_on = only_first_hangs  # type: ignore[assignment]
    began = time.monotonic()
    SparkDriver("standalone", "driver-1", "spark").kill(3.0)
    assert time.monotonic() - began >= 1.5
    assert (len(two_masters.requests), two_masters.answered) == (2, 1)
    hangs.set()


@pytest.mark.parametrize(
    ("backend", "driver_id"), [("mesos", "driver-1"), ("kubernetes", "pod-without-namespace")]
)
def test_impossible_driver_is_refused(backend: Any, driver_id: str) -> None:
    """An unknown backend, a pod without a namespace."""
    with pytest.raises(ValueError, match=r"mesos|namespace"):
        SparkDriver(backend, driver_id, "spark").status()
