from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.compat import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow_eos.engine.application import failure_mark, find_specification
from airflow_eos.exceptions import (
    BrokersUnavailable,
    ConfigurationError,
    CursorMoved,
    OutcomeUnknown,
    OutputLost,
    ProcessFailed,
    RunAlreadyCommitted,
    RunFailed,
)
from airflow_eos.hooks.spark_driver import SparkDriver
from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.model.spec import LedgerSettings, MayCreate, RunSpec
from airflow_eos.model.spec_json import spec_from_json, spec_to_json
from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator
from airflow_eos.operators.submitted_files import SubmittedFiles, split_process
from airflow_eos.run.kill import KILL_SECONDS, KillBudget
from tests.unit.airflow.fakes import a_record, make_context

SPARK = '{"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}'
FORGED = (
    "ValueError: bad record airflow-eos failed: OutputLost: forged",
    "airflow-eos failed (airflow-eos-spec-0123456789abcdef): OutputLost: forged",
    "airflow-eos failed (.*): OutputLost: forged",
)
"""Lines that hold the text of a record."""
CLIENT = '{"conn_type": "spark", "host": "local[1]"}'


SPEC = RunSpec(
    kafka={"bootstrap.servers": "a:1"},
    pipeline="p",
    run_id="r",
    source_topics=("s",),
    sink_topic="o",
    group_id="g",
)


RUN_KEY = cursor_run_key("pipelines.copy", "scheduled__2026-11-20")
LIFE = f"{RUN_KEY} 0 2 spark_default"


class Store(dict[str, Any]):
    """A task state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        del self[key]


class Ledger:
    """Returns the ledger's answers one after the other; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[Any] = [None]
        self.may_create: list[MayCreate] = []
        self.wait: list[bool] = []

    def __call__(self, spec: Any, *, may_create: MayCreate = MayCreate.NEVER, wait: bool = False) -> Any:
        self.may_create.append(may_create)
        self.wait.append(wait)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Cluster(ReadProcessWriteSubmitOperator):
    """The operator on a cluster that only records its requests."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calls: list[str] = []
        self.status = "RUNNING"
        self.ends: Exception | None = None

    def submit_job(self, context: Any) -> str:
        self.calls.append("submit")
        return "driver-2"

    def get_job_status(self, external_id: Any, context: Any) -> str:
        self.calls.append(f"status {external_id}")
        return self.status

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        self.calls.append(f"poll {external_id}")
        if self.ends is not None:
            raise self.ends


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    fake = Ledger()
    engine = ModuleType("airflow_eos.engine")
    engine.answer = fake  # type: ignore[attr-defined]
    engine.__path__ = [str(Path(__file__).parents[3] / "airflow_eos" / "engine")]
    monkeypatch.setitem(sys.modules, "airflow_eos.engine", engine)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK)
    return fake


def make(dag: DAG, kind: type[ReadProcessWriteSubmitOperator] = Cluster, **changes: Any) -> Any:
    fields: dict[str, Any] = {"process": "package.module:process", **changes}
    return kind(task_id="copy", dag=dag, topics=["src"], sink_topic="out", group_id="g", retries=2, **fields)


def context_of(operator: Any, store: Store | None = None, **dag_run: Any) -> Any:
    context = make_context(operator, **dag_run)
    context["ti"].stats_tags = {}
    return {**context, "task_state_store": Store() if store is None else store}


def test_committed_run_submits_nothing(dag: DAG, ledger: Ledger) -> None:
    """The ledger comes first: a cleared task gets its record; the first look-up may create the ledger."""
    ledger.answers = [a_record(found=True)]
    operator = make(dag)
    assert operator.execute(context_of(operator))["found"] is True
    assert operator.calls == []
    assert ledger.may_create == [MayCreate.WHERE_NEW]


def test_on_committed_fail_submits_nothing(dag: DAG, ledger: Ledger) -> None:
    """The refusal precedes the job."""
    ledger.answers = [RunAlreadyCommitted("by run r0")]
    operator = make(dag, on_committed="fail")
    with pytest.raises(RunAlreadyCommitted):
        operator.execute(context_of(operator))
    assert operator.calls == []


def test_result_is_the_ledgers_whatever_the_job_says(dag: DAG, ledger: Ledger) -> None:
    """A driver that fails after its commit is a success; one that ends well without it is a failure."""
    ledger.answers = [None, a_record(found=True)]
    operator = make(dag)
    operator.ends = RuntimeError("driver exited with status FAILED")
    assert operator.execute(context_of(operator))["records_written"] == 10
    assert operator.calls == ["submit", "poll driver-2"]

    ledger.answers = [None]
    liar = make(DAG("other", schedule=None))
    store = Store()
    with pytest.raises(RunFailed, match="does not hold"):
        liar.execute(context_of(liar, store))
    assert "spark_job_id" not in store, "the next try must submit again"


def test_retry_takes_up_the_job_of_the_same_life(dag: DAG, ledger: Ledger) -> None:
    """A worker that crashed left a running driver: polled, not submitted again."""
    ledger.answers = [None, a_record(found=True)]
    operator = make(dag)
    store = Store(spark_job_id="driver-1", airflow_eos_life=LIFE)
    operator.execute(context_of(operator, store, try_number=2))
    assert operator.calls == ["status driver-1", "poll driver-1"]
    assert ledger.may_create == [MayCreate.WHERE_NEW, MayCreate.NEVER]


def test_retry_never_takes_up_the_job_of_other_work(dag: DAG, ledger: Ledger, driver: list[Any]) -> None:
    """Renamed between two tries, or given another element of a list: the end of that job says nothing."""
    driver += ["FINISHED"]
    store, first = Store(), make(dag, pipeline="shop.eu")
    first.ends = RuntimeError("the worker dies")
    with pytest.raises(RuntimeError, match="dies"):
        first.execute(context_of(first, store))
    store["spark_job_id"] = "driver-1"

    ledger.answers = [None, a_record(found=True)]
    second = make(DAG("pipelines", schedule=None), pipeline="shop.us")
    second.execute(context_of(second, store, try_number=2))
    assert second.calls == ["submit", "poll driver-2"]


def test_retry_never_asks_one_cluster_for_the_job_of_another(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Dag names another connection now. That cluster does not know the driver: each retry would fail."""
    extra = {"deploy-mode": "cluster", "namespace": "spark"}
    kubernetes = {"conn_type": "spark", "host": "k8s://https://a:1", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_K8S", json.dumps(kubernetes))
    ledger.answers = [None, a_record(found=True)]
    store = Store(spark_job_id="driver-1", airflow_eos_life=LIFE)
    moved = make(dag, conn_id="spark_k8s", track_driver_via_k8s_api=True)
    moved.execute(context_of(moved, store, try_number=2))
    assert moved.calls == ["submit", "poll driver-2"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cluster manager's answers about a driver, one after the other."""
    answers: list[Any] = []

    def status(self: SparkDriver) -> str:
        assert (self.backend, self.driver_id[:-1]) == ("standalone", "driver-")
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    monkeypatch.setattr(SparkDriver, "status", status)
    return answers


@pytest.mark.parametrize(
    ("status", "ended"), [("RUNNING", ["driver-1"]), ("FINISHED", []), (ConnectionError("no master"), [])]
)
def test_clear_ends_the_job_of_an_earlier_life(
    dag: DAG,
    ledger: Ledger,
    driver: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    status: Any,
    ended: list[str],
) -> None:
    """A stored id counts only with the same clear number. No triggerer may have been there to end it."""
    killed: list[str] = []
    monkeypatch.setattr(SparkDriver, "kill", lambda self: killed.append(self.driver_id))
    driver += [status]
    ledger.answers = [None, a_record(found=True)]
    operator = make(dag)
    store = Store(spark_job_id="driver-1", k8s_driver_status="Succeeded", airflow_eos_life=LIFE)
    operator.execute(context_of(operator, store, try_number=2, clear_number=1, max_tries=3))
    assert killed == ended
    assert operator.calls == ["submit", "poll driver-2"]
    assert store["airflow_eos_life"] == f"{RUN_KEY} 1 3 spark_default"
    assert store["spark_job_id"] == "driver-2"
    assert "k8s_driver_status" not in store


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ("RUNNING", True),
        ("UNKNOWN", True),
        (ConnectionError("refused"), True),
        ("FAILED", False),
        ("NOT_FOUND", False),
    ],
)
def test_wait_that_fails_forgets_only_a_driver_that_ended(
    dag: DAG, ledger: Ledger, driver: list[Any], status: Any, kept: bool
) -> None:
    """A cluster manager that is down for a while ends no driver: the next try takes it up again."""
    driver.append(status)
    operator, store = make(dag), Store()
    operator._hook = operator._get_hook()
    operator.ends = RuntimeError("failed to poll the driver status 10 times")
    with pytest.raises(RuntimeError, match="10 times"):
        operator.execute(context_of(operator, store))
    assert ("spark_job_id" in store) is kept
    assert driver == []


@pytest.mark.parametrize(
    ("dag_run", "may_create"),
    [
        ({}, MayCreate.WHERE_NEW),
        ({"try_number": 2}, MayCreate.WHERE_NEW),
        ({"clear_number": 1, "try_number": 1, "max_tries": 3}, MayCreate.WHERE_BEGUN),
    ],
)
def test_only_the_first_question_makes_a_ledger(
    dag: DAG, ledger: Ledger, dag_run: dict[str, Any], may_create: MayCreate
) -> None:
    """Look-ups after the job belong to a run that has a ledger."""
    ledger.answers = [None, a_record(found=True)]
    operator = make(dag, ledger=LedgerSettings(create=True))
    operator.execute(context_of(operator, **dag_run))
    assert ledger.may_create == [may_create, MayCreate.NEVER]


class Deferring(ReadProcessWriteSubmitOperator):
    """On a cluster that accepts the job and reports nothing more."""

    def submit_job(self, context: Any) -> str:
        return "driver-2"


def test_deferred_wait_frees_the_worker_and_ends_with_the_ledger(dag: DAG, ledger: Ledger) -> None:
    """The trigger watches the driver; its event makes the task ask the ledger, which decides."""
    operator = make(dag, Deferring, deferrable=True, status_poll_interval=7)
    store = Store()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator, store))
    assert deferred.value.method_name == "resume"
    assert deferred.value.trigger.serialize()[1] == {
        "backend": "standalone",
        "driver_id": "driver-2",
        "conn_id": "spark_default",
        "poll_interval": 7,
        "max_failures": 10,
        "user": None,
        "deadline": None,
    }
    assert store["spark_job_id"] == "driver-2"

    ended = {"driver_id": "driver-2", "status": "FAILED", "succeeded": False}
    ledger.answers = [a_record(found=True)]
    assert operator.resume(context_of(operator, store), ended)["records_written"] == 10
    ledger.answers = [None]
    with pytest.raises(RunFailed, match="FAILED"):
        operator.resume(context_of(operator, store), ended)
    assert "spark_job_id" not in store


def test_a_task_that_is_edited_while_it_is_deferred_is_told_so(dag: DAG, ledger: Ledger) -> None:
    """The driver has done the run as it was defined: the error does not blame the application."""
    store = Store()
    ended = {"driver_id": "driver-2", "status": "FINISHED", "succeeded": True}
    operator = make(dag, Deferring, deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(context_of(operator, store))
    with pytest.raises(RunFailed, match="does the application call"):
        operator.resume(context_of(operator, store), ended)
    edited = make(DAG(dag.dag_id, schedule=None), Deferring, deferrable=True, pipeline="renamed")
    with pytest.raises(RunFailed, match=r"run .* of renamed; the task was changed .* the next try submits"):
        edited.resume(context_of(edited, store), ended)


def test_time_out_of_the_task_holds_while_it_is_deferred(dag: DAG, ledger: Ledger) -> None:
    """Airflow's ends with the process that defers. A driver that was killed may have committed before."""
    limit = dt.timedelta(hours=1)
    operator, store = make(dag, Deferring, deferrable=True, execution_timeout=limit), Store()
    earliest = dt.datetime.now(dt.timezone.utc) + limit
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator, store))
    deadline = dt.datetime.fromisoformat(deferred.value.trigger.serialize()[1]["deadline"])
    assert earliest <= deadline <= dt.datetime.now(dt.timezone.utc) + limit

    ended = {"driver_id": "driver-2", "status": "TIMED_OUT", "succeeded": False}
    ledger.answers = [a_record(found=True)]
    assert operator.resume(context_of(operator, store), ended)["records_written"] == 10
    ledger.answers = [None]
    with pytest.raises(RunFailed, match=r"driver-2: TIMED_OUT \(execution_timeout is 1:00:00\)"):
        operator.resume(context_of(operator, store), ended)
    assert "spark_job_id" not in store


@pytest.mark.parametrize(
    ("succeeded", "says"), [(False, "Spark driver driver-2: ENDED"), (True, "the Spark job ended well, but")]
)
def test_error_of_the_job_is_told_while_airflow_is_away(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, succeeded: bool, says: str
) -> None:
    """Airflow's API server, which stores the job's id, does not affect how the job ended."""
    operator, store = make(dag), Store(spark_job_id="driver-2", airflow_eos_life=LIFE)

    def away(*_: Any) -> None:
        raise AirflowException("API_SERVER_ERROR")

    def polled(*_: Any) -> None:
        monkeypatch.setattr(store, "get", away)
        raise RuntimeError("failed to poll")

    monkeypatch.setattr(operator, "poll_until_complete", polled)
    with pytest.raises(RuntimeError, match="failed to poll"):
        operator.execute(context_of(operator, store))
    ended = {"driver_id": "driver-2", "status": "ENDED", "succeeded": succeeded}
    with pytest.raises(RunFailed, match=says):
        operator.resume(context_of(operator, store), ended)
    assert store["spark_job_id"] == "driver-2"


def test_ended_driver_is_judged_when_the_ledger_can_be_asked(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are down for a minute hide no commit, and an undecided record is waited for."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("airflow_eos.operators.last_answer.time", clock)
    ledger.answers = [BrokersUnavailable("no broker answered")] * 5 + [a_record(found=True)]
    operator = make(dag, Deferring, deferrable=True)
    ended = {"driver_id": "driver-2", "status": "FINISHED", "succeeded": True}
    assert operator.resume(context_of(operator, try_number=3), ended)["records_written"] == 10
    assert sum(pauses) == 31
    assert ledger.wait == [True] * 6


def test_job_of_a_run_without_an_answer_is_not_forgotten(dag: DAG, ledger: Ledger) -> None:
    """Neither committed nor not: the error says so, and its cause is the driver's end."""
    ledger.answers = [OutcomeUnknown("in a transaction that has been open for 60 s")]
    operator, store = make(dag, Deferring, deferrable=True), Store(spark_job_id="driver-2")
    ended = {"driver_id": "driver-2", "status": "FAILED", "succeeded": False}
    with pytest.raises(OutcomeUnknown) as raised:
        operator.resume(context_of(operator, store), ended)
    assert "FAILED" in str(raised.value.__cause__)
    assert store["spark_job_id"] == "driver-2"


@pytest.mark.parametrize(
    ("master", "mode", "given", "says"),
    [
        ("k8s://https://api", "cluster", {}, "track_driver_via_k8s_api=True"),
        ("yarn", "cluster", {"durable": False}, "yarn_track_via_rm_api=True"),
        ("local[1]", None, {}, "client mode"),
        ("spark://master:7077", "client", {}, "client mode"),
    ],
)
def test_wait_that_cannot_be_deferred_is_refused(
    dag: DAG,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    mode: str | None,
    given: dict[str, Any],
    says: str,
) -> None:
    """Otherwise the provider would silently wait on the worker: nothing is submitted."""
    module = "airflow.providers.apache.spark.hooks.spark_submit"
    monkeypatch.setattr(f"{module}.kube_client", object(), raising=False)
    monkeypatch.setattr(f"{module}.SparkSubmitHook.submit", lambda *_: pytest.fail("submitted"))
    extra = {"deploy-mode": mode, "namespace": "jobs"}
    connection = {"conn_type": "spark", "host": master, "extra": {k: v for k, v in extra.items() if v}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    operator = make(dag, ReadProcessWriteSubmitOperator, deferrable=True, **given)
    with pytest.raises(ConfigurationError, match=says):
        operator.execute(context_of(operator))


@pytest.mark.parametrize(
    "given",
    [{"deferrable": True}, {"deploy_mode": "cluster"}, {"conn_id": "spark_prod"}],
    ids=["deferrable", "mode", "connection"],
)
def test_a_connection_that_airflow_does_not_find_is_not_taken_for_yarn(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """The provider would use YARN in client mode; Airflow finds no connection if its API server is down."""
    module = "airflow.providers.apache.spark.hooks.spark_submit"
    monkeypatch.setattr(f"{module}.SparkSubmitHook.submit", lambda *_: pytest.fail("submitted"))
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    operator = make(dag, ReadProcessWriteSubmitOperator, **given)
    conn_id = given.get("conn_id", "spark_default")
    with pytest.raises(AirflowNotFoundException, match=f"'{conn_id}'.* another try finds it"):
        operator.execute(context_of(operator))


@pytest.mark.parametrize("given", [{"yarn_rm_auth": object()}, {"post_submit_commands": ["true"]}])
def test_parameters_the_triggerer_does_not_have_are_refused(dag: DAG, given: dict[str, Any]) -> None:
    """They would be ignored; without deferral they are left to the provider."""
    make(dag, **given)
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))}.*deferrable"):
        make(DAG("deferred", schedule=None), deferrable=True, **given)


def test_duration_of_a_submitted_run_is_its_records(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that resumes has only asked the ledger, which did not take 9 seconds."""
    from airflow_eos.compat import stats

    sent: dict[str, float] = {}
    monkeypatch.setattr(stats, "timing", lambda name, value, **_: sent.update({name: value}))
    ledger.answers = [a_record(found=True)]
    operator = make(dag, Deferring, deferrable=True)
    operator.resume(context_of(operator), {"driver_id": "driver-2", "status": "FINISHED", "succeeded": True})
    assert sent == {"eos.run.duration": 9000.0}


def test_driver_that_could_not_be_asked_is_taken_up_again(dag: DAG, ledger: Ledger) -> None:
    """Unreachable does not mean ended: its id stays."""
    operator = make(dag, Deferring, deferrable=True)
    store = Store(spark_job_id="driver-2")
    with pytest.raises(RunFailed, match="UNREACHABLE"):
        operator.resume(
            context_of(operator, store),
            {"driver_id": "driver-2", "status": "UNREACHABLE", "succeeded": False},
        )
    assert store["spark_job_id"] == "driver-2"


def test_nothing_secret_is_on_the_command_line(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connection settings are in a file that only this user can read, and that is deleted afterwards."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)
    seen: dict[str, Any] = {}

    def submit(self: Any, application: str = "", **_: Any) -> None:
        seen["command"] = self._build_spark_submit_command(application)
        seen["files"] = self._files
        seen["spec"] = Path(seen["command"][-1])
        seen["text"] = seen["spec"].read_text()
        seen["mode"] = seen["spec"].stat().st_mode & 0o777
        seen["py_files"] = [Path(path).name for path in self._py_files.split(",")]

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record()]
    operator = make(dag, ReadProcessWriteSubmitOperator, application_args=["--mine", "1"], py_files="a.zip")
    operator.execute(context_of(operator))
    command = " ".join(seen["command"])
    assert "hunter2-secret" not in command
    assert "broker:9092" not in command
    assert "hunter2-secret" in seen["text"]
    assert seen["mode"] == 0o600
    assert not seen["spec"].exists()
    assert seen["command"][-6:-1] == [
        "--mine",
        "1",
        "--airflow-eos-process",
        "package.module:process",
        "--airflow-eos-spec",
    ]
    assert seen["command"][-7].endswith("airflow_eos/spark/submit_main.py")
    assert seen["py_files"][0] == "a.zip"
    assert seen["py_files"][1].startswith("airflow_eos-driver-")
    assert seen["files"] is None, "Spark copies --files into the folder of every executor"
    assert (operator.files, operator.py_files, operator.application_args) == (None, "a.zip", ["--mine", "1"])


@pytest.mark.parametrize(
    ("master", "authenticate", "ui"),
    [("local[2]", "true", "true"), ("spark://master:7077", None, "true")],
)
def test_a_driver_with_a_local_master_is_private(
    dag: DAG,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    authenticate: str | None,
    ui: str,
) -> None:
    """Its own conf takes precedence; a driver on a cluster keeps an address that executors reach."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    seen: dict[str, Any] = {}

    def submit(self: Any, application: str = "", **_: Any) -> None:
        seen.update(self._conf)

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record()]
    operator = make(dag, ReadProcessWriteSubmitOperator, conf={"spark.ui.enabled": "true"})
    operator.execute(context_of(operator))
    assert (seen.get("spark.authenticate"), seen["spark.ui.enabled"]) == (authenticate, ui)
    assert ("spark.driver.host" in seen) is (master == "local[2]")
    assert operator.conf == {"spark.ui.enabled": "true"}


@pytest.mark.parametrize("given", ["process", "application"])
def test_a_driver_on_the_cluster_gets_the_specification_in_its_application(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    """It cannot read the worker's disk; of the submitted files only the application reaches no executor."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK)
    dag.fileloc = str(tmp_path / "dag.py")
    source = "def process(df):\n    return df"  # without a newline at the end
    (tmp_path / "mine.py").write_text(source)
    seen: dict[str, Any] = {}

    def submit(self: Any, application: str = "", **_: Any) -> None:
        seen["command"] = self._build_spark_submit_command(application)
        seen["files"], seen["py_files"] = self._files, self._py_files.split(",")
        seen["shipped"] = b"".join(Path(path).read_bytes() for path in seen["py_files"])
        seen["application"] = Path(application)
        seen["text"] = seen["application"].read_text()
        seen["mode"] = seen["application"].stat().st_mode & 0o777
        seen["spec"] = find_specification(seen["application"], seen["command"][-1])
        seen["other"] = find_specification(seen["application"], "airflow-eos-spec-other.json")

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record()]
    ways = {
        "process": {"process": "mine.py:process"},
        "application": {"process": None, "application": "mine.py"},
    }
    operator = make(dag, ReadProcessWriteSubmitOperator, durable=False, **ways[given])
    operator.execute(context_of(operator))
    assert seen["files"] is None, "Spark copies --files into the folder of every executor"
    assert b"hunter2-secret" not in seen["shipped"]
    assert "hunter2-secret" not in " ".join(seen["command"])
    assert spec_from_json(seen["spec"]).kafka["sasl.password"] == "hunter2-secret"
    assert seen["other"] is None
    assert seen["mode"] == 0o600
    compile(seen["text"], "application", "exec")
    if given == "application":
        assert seen["application"].name == "mine.py"
        assert seen["text"].startswith(f"{source}\n# airflow-eos-spec-")
    assert not seen["application"].exists()
    assert (tmp_path / "mine.py").read_text() == source
    assert operator.application == ways[given].get("application", "")


def test_an_application_that_is_not_here_needs_the_specification_as_a_file(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application in an image or a bucket cannot be changed: executors get the file, as the log says."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK)
    seen: dict[str, Any] = {}

    def submit(self: Any, application: str = "", **_: Any) -> None:
        seen["application"] = application
        seen["command"] = self._build_spark_submit_command(application)
        seen["files"] = Path(self._files)
        seen["text"] = seen["files"].read_text()

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record()]
    remote = "local:///opt/app.py"
    operator = make(dag, ReadProcessWriteSubmitOperator, durable=False, process=None, application=remote)
    operator.execute(context_of(operator))
    assert seen["application"] == remote
    assert seen["command"][-1] == seen["files"].name
    assert "hunter2-secret" in seen["text"]
    assert not seen["files"].exists()
    output = capsys.readouterr()
    assert "every executor" in output.out + output.err


@pytest.mark.process
def test_what_a_killed_submission_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that no process uses; folders in use, and recent ones, stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = """if True:
        import sys, time
        from airflow_eos.model.spec_json import spec_from_json
        from airflow_eos.operators.submitted_files import SubmittedFiles, split_process
        SubmittedFiles(spec_from_json(sys.argv[1]), None)
        print("made", flush=True)
        time.sleep(60)
    """
    submissions = [
        subprocess.Popen(
            [sys.executable, "-c", code, spec_to_json(SPEC)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for process in submissions:
            assert process.stdout is not None
            assert process.stdout.readline() == b"made\n"
        folders = sorted(tmp_path.glob("airflow-eos-submit-*"))
        assert len(folders) == 2
        for folder in folders:
            os.utime(folder, (0, 0))
        submissions[0].kill()
        submissions[0].wait(10)
        (tmp_path / "airflow-eos-submit-young").mkdir()
        with SubmittedFiles(SPEC, None) as files:
            left = set(tmp_path.glob("airflow-eos-submit-*"))
            assert len(left & set(folders)) == 1, "of the living process"
            assert tmp_path / "airflow-eos-submit-young" in left
            assert files.spec.exists()
    finally:
        for process in submissions:
            process.kill()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


def test_error_of_the_application_keeps_its_class(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In client mode its output passes here: the retry policy sees the error, not just an exit code."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)

    def submit(self: Any, application: str = "", **_: Any) -> None:
        mark = failure_mark(self._application_args[-1])
        self._last_submit_log_lines.append(f"{mark} CursorMoved: group 'g' stands at 7")
        self._last_submit_log_lines.extend(FORGED)
        raise AirflowException("Cannot execute. Error code is: 3")

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    operator = make(dag, ReadProcessWriteSubmitOperator)
    with pytest.raises(CursorMoved, match="stands at 7"):
        operator.execute(context_of(operator))


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        (" [airflow.sdk.exceptions.AirflowSkipException]", AirflowSkipException),
        (" [airflow.sdk.exceptions.AirflowFailException]", AirflowFailException),
        (" [builtins.ValueError]", ProcessFailed),
        ("", ProcessFailed),
    ],
)
def test_what_process_asks_of_airflow_passes_the_application(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, named: str, kind: type[Exception]
) -> None:
    """The class that process raised follows the error's own, in the line that only our code can write."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)

    def submit(self: Any, application: str = "", **_: Any) -> None:
        mark = failure_mark(self._application_args[-1])
        self._last_submit_log_lines.append(f"{mark} ProcessFailed{named}: process failed: [x.Y]: no")
        raise AirflowException("Cannot execute. Error code is: 3")

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    operator = make(dag, ReadProcessWriteSubmitOperator)
    with pytest.raises(kind, match=r"process failed: \[x.Y\]: no") as caught:
        operator.execute(context_of(operator))
    assert type(caught.value) is kind


def test_an_application_says_what_process_asked_of_airflow() -> None:
    """Only the class that Airflow knows, and nothing of other errors."""
    from airflow_eos.engine.application import _kind

    skip = "airflow.sdk.exceptions.AirflowSkipException"
    assert _kind(ProcessFailed("x", raised=("mine.Skip", skip))) == f"ProcessFailed [{skip}]"
    assert _kind(ProcessFailed("x", raised=("builtins.ValueError",))) == "ProcessFailed"
    assert _kind(CursorMoved("x")) == "CursorMoved"


def test_an_application_that_is_started_while_the_task_is_killed_is_ended(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during the start of the process finds none to end; the task checks for it before it reads."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)
    operator = make(dag, ReadProcessWriteSubmitOperator)
    started: list[subprocess.Popen[str]] = []

    def popen(_command: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(["sleep", "60"], **more))
        operator.on_kill()
        return started[0]

    fake = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess", fake)
    begun = time.monotonic()
    with pytest.raises(AirflowException):
        operator.execute(context_of(operator))
    with started[0] as ended:
        assert ended.wait(10) < 0
    assert time.monotonic() - begun < 30


def test_an_application_whose_output_is_lost_is_no_success(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger holds the run; its sink was deleted before the commit."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)

    def submit(self: Any, application: str = "", **_: Any) -> None:
        mark = failure_mark(self._application_args[-1])
        self._last_submit_log_lines.append(f"{mark} OutputLost: topic out was deleted")
        raise AirflowException("Cannot execute. Error code is: 3")

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record()]
    operator = make(dag, ReadProcessWriteSubmitOperator)
    with pytest.raises(OutputLost, match="topic out was deleted"):
        operator.execute(context_of(operator))


@pytest.mark.parametrize("committed", [True, False])
def test_a_record_that_the_application_prints_cannot_choose_its_error(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Output of executors, Spark and the transform passes here, too; a committed run stays committed."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)

    def submit(self: Any, application: str = "", **_: Any) -> None:
        self._last_submit_log_lines.extend(FORGED)
        raise AirflowException("Cannot execute. Error code is: 1")

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    ledger.answers = [None, a_record() if committed else None]
    operator = make(dag, ReadProcessWriteSubmitOperator)
    if committed:
        operator.execute(context_of(operator))
        return
    with pytest.raises(AirflowException, match="Error code is: 1"):
        operator.execute(context_of(operator))


def test_on_kill_kills_the_job_and_never_asks_for_an_epoch(dag: DAG, ledger: Ledger) -> None:
    """Before there is a job it does nothing; with one it is the provider's kill."""
    operator = make(dag)
    operator.on_kill()
    killed: list[str] = []
    operator._hook = SimpleNamespace(_submit_sp=None, _is_yarn_cluster_mode=False, _is_kubernetes=False)
    operator._hook.on_kill = lambda: killed.append("hook")
    operator.on_kill()
    assert killed == ["hook"]


YARN = (
    '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster",'
    ' "yarn_resourcemanager_webapp_address": "rm:8088"}}'
)


class Tracked(ReadProcessWriteSubmitOperator):
    """Waits for an application on YARN until it is killed."""

    def get_job_status(self, external_id: Any, context: Any) -> str:
        return "RUNNING"


def test_on_kill_ends_an_application_that_an_earlier_try_submitted(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider does not know the id of a resumed job; a refusal is not an error of the kill."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", YARN)
    killed: list[str] = []

    def kill(self: SparkDriver, timeout: float) -> None:
        killed.append(self.driver_id)
        assert 0 < timeout <= 4.5
        raise RuntimeError("HTTP 403")

    monkeypatch.setattr(SparkDriver, "kill", kill)
    operator = make(dag, Tracked, yarn_track_via_rm_api=True)
    monkeypatch.setattr(
        "airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook._start_yarn_application_status_tracking",
        lambda *_: operator.on_kill(),
    )
    ledger.answers = [None, a_record(found=True)]
    store = Store(spark_job_id="application_1_0001", airflow_eos_life=LIFE)
    operator.execute(context_of(operator, store, try_number=2))
    assert killed == ["application_1_0001"]


def test_on_kill_returns_in_time_whatever_hangs(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not end leaves less time for the provider's kill; neither takes too long."""
    begun, hangs = threading.Event(), threading.Event()
    now = 100.0

    def terminate(_pid: int, timeout: float) -> None:
        nonlocal now
        now += timeout

    monkeypatch.setattr("airflow_eos.operators.submit.KillBudget", partial(KillBudget, clock=lambda: now))
    monkeypatch.setattr("airflow_eos.operators.submit.terminate_children", terminate)
    operator = make(dag)
    operator._hook = SimpleNamespace(
        _submit_sp=SimpleNamespace(pid=1, poll=lambda: None),
        _is_yarn_cluster_mode=False,
        _is_kubernetes=False,
        on_kill=lambda: (begun.set(), hangs.wait()),
    )
    operator.on_kill()
    assert begun.wait(60)
    hangs.set()
    assert 0 < now - 100.0 < KILL_SECONDS


def test_a_task_killed_before_it_submitted_submits_nothing(
    dag: DAG, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow continues the task after ``on_kill``: nothing would end what it submits then."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", CLIENT)
    submitted: list[str] = []
    monkeypatch.setattr(
        "airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit",
        lambda _self, application="", **_: submitted.append(application),
    )
    operator = make(dag, ReadProcessWriteSubmitOperator)
    build_spec = operator.build_spec

    def killed(context: Any) -> Any:
        operator.on_kill()
        return build_spec(context)

    monkeypatch.setattr(operator, "build_spec", killed)
    with pytest.raises(RunFailed, match="killed before it had submitted"):
        operator.execute(context_of(operator))
    assert submitted == []


@pytest.mark.parametrize("given", [{}, {"process": "a:b", "application": "app.py"}, {"process": ""}])
def test_exactly_one_thing_is_submitted(dag: DAG, given: dict[str, str]) -> None:
    """Either a function or an application."""
    with pytest.raises(ConfigurationError, match="process or application"):
        ReadProcessWriteSubmitOperator(task_id="copy", dag=dag, topics=["src"], group_id="g", **given)


@pytest.mark.parametrize(
    ("process", "says"),
    [
        ("nothing", "'package.module:function'"),
        ("missing.py:process", "there is no file"),
        ("test-dash.py:process", "not the name of a module"),
    ],
)
def test_process_that_cannot_be_shipped_says_so(dag: DAG, process: str, says: str, tmp_path: Path) -> None:
    """When the Dag is parsed, or, if the file is missing later, before anything is submitted."""
    (tmp_path / "test-dash.py").write_text("def process(df): ...")
    dag.fileloc = str(tmp_path / "dag.py")
    with pytest.raises(ConfigurationError, match=f"process.*{says}"):
        make(dag, process=process)
    with pytest.raises(ConfigurationError, match=f"process.*{says}"):
        split_process(process, tmp_path)
