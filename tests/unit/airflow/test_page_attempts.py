"""Attempts on the pages, from a metadata database that is filled like Airflow's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from airflow_eos.operators.failure_record import FailureRecord
from airflow_eos.ui import attempts as attempts_module
from airflow_eos.ui.attempt_rows import attempt_row, by_pipeline, kind_of, last_row
from airflow_eos.ui.attempts import OPERATORS, Attempt, read_attempts
from tests.support.airflow_records import RECENT, attempted, forget_attempts

NOW = RECENT + dt.timedelta(hours=2)
HOUR = dt.timedelta(hours=1)


@pytest.fixture(scope="module")
def database() -> None:
    from airflow.utils import db

    db.initdb()


@pytest.fixture(autouse=True)
def _empty(database: None) -> Iterator[None]:
    yield
    forget_attempts()


def read(*dag_ids: str, **options: Any) -> list[Attempt]:
    attempts = read_attempts(dag_ids, NOW, **options)
    assert attempts is not None
    return attempts


def test_a_task_that_never_committed_is_an_attempt() -> None:
    """With its error; before, the page knew only commits."""
    failure = FailureRecord(2, "AuthorizationFailed", "the principal lacks Write on topic 'out'")
    attempted("a", failure=failure, try_number=2)
    (attempt,) = read("a")
    assert attempt == Attempt("a.copy", "a-group", "a", "copy", "r1", -1, "failed", 2, 2, RECENT, failure)


def test_nothing_is_said_of_dags_that_are_not_given() -> None:
    """The given Dags are those that the user may see: others appear neither by name nor by pipeline."""
    attempted("mine", fields={"pipeline": "shared"})
    attempted("theirs", fields={"pipeline": "shared"})
    assert [attempt.dag_id for attempt in read("mine")] == ["mine"]
    assert read("mine", tasks={("theirs", "copy", -1): "shared"}) == read("mine")
    assert read() == []


def test_pipelines_are_named_as_their_runs_name_them() -> None:
    """By the rendered field, otherwise by Dag and task."""
    attempted("a", "named", fields={"pipeline": "orders"})
    attempted("a", "plain")
    assert {attempt.task_id: attempt.pipeline for attempt in read("a")} == {
        "named": "orders",
        "plain": "a.plain",
    }


def test_a_task_that_has_not_started_has_the_name_of_its_last_try() -> None:
    """Fields are rendered when a try starts."""
    attempted("a", fields={"pipeline": "old"}, at=RECENT - 3 * HOUR, run_id="r0")
    attempted("a", fields={"pipeline": "orders"}, at=RECENT - HOUR)
    attempted("a", run_id="r2", state=None, started=False)
    assert [(attempt.run_id, attempt.pipeline) for attempt in read("a")] == [
        ("r2", "orders"),
        ("r1", "orders"),
        ("r0", "old"),
    ]


def tenants(*run_ids: str) -> None:
    """Write a mapped task with one pipeline per instance."""
    for number, run_id in enumerate(run_ids):
        for index, tenant in enumerate(("at", "de")):
            fields = {"pipeline": tenant}
            at = RECENT - HOUR * (len(run_ids) - number)
            attempted("a", map_index=index, run_id=run_id, state="success", at=at, fields=fields)


def test_an_instance_that_has_not_started_has_the_pipeline_of_its_index() -> None:
    """Not that of the instance that started last."""
    tenants("r0")
    for index in (0, 1):
        attempted("a", map_index=index, state="failed", started=False)
    failed = [(attempt.map_index, attempt.pipeline) for attempt in read("a") if attempt.run_id == "r1"]
    assert sorted(failed) == [(0, "at"), (1, "de")]


def test_an_instance_before_its_expansion_belongs_to_all_pipelines_of_the_task() -> None:
    """A task before it failed, so the work of each is missing. The ledger may know other pipelines."""
    tenants("r0")
    attempted("a", state="upstream_failed", started=False)
    failed = [
        attempt.pipeline for attempt in read("a", tasks={("a", "copy", 2): "fr"}) if attempt.run_id == "r1"
    ]
    assert failed == ["at", "de", "fr"]


def test_an_instance_of_an_unknown_index_is_shown_at_no_pipeline_of_another() -> None:
    """If all instances share a pipeline, it is shown there."""
    tenants("r0")
    attempted("a", map_index=2, state="failed", started=False)
    attempted("b", map_index=0, run_id="r0", state="success", at=RECENT - HOUR, fields={"pipeline": "all"})
    attempted("b", map_index=1, state="failed", started=False)
    assert [attempt.pipeline for attempt in read("a") if attempt.map_index == 2] == ["a.copy"]
    assert [attempt.pipeline for attempt in read("b") if attempt.map_index == 1] == ["all"]


def test_other_tasks_are_none_of_ours() -> None:
    """Except those whose record or failure proves that they run a pipeline."""
    attempted("a", "bash", operator="BashOperator")
    attempted("a", "derived", operator="MyOperator")
    attempted("a", "failed", operator="MyOperator", failure=FailureRecord(1, "E", "s"))
    assert [attempt.task_id for attempt in read("a")] == ["failed"]
    tasks = {("a", "derived", -1): "orders"}
    assert {attempt.task_id for attempt in read("a", tasks=tasks)} == {"failed", "derived"}


def test_the_names_of_operators_are_those_of_this_package() -> None:
    """They are all classes that run a pipeline."""
    from airflow_eos.decorators import kafka_eos
    from airflow_eos.operators import replay, submit
    from airflow_eos.operators.run_parameters import RunParameters

    def below(kind: type) -> set[type]:
        return {cls for child in kind.__subclasses__() for cls in (child, *below(child))}

    assert kafka_eos
    assert replay
    assert submit
    package = {cls.__name__ for cls in below(RunParameters) if cls.__module__.startswith("airflow_eos.")}
    assert package == set(OPERATORS)


def test_an_error_of_an_earlier_try_is_not_that_of_the_last() -> None:
    """The last try was killed before it could report an error."""
    attempted("a", failure=FailureRecord(1, "Old", "old"), try_number=2)
    (attempt,) = read("a")
    assert attempt.failure is None
    row = attempt_row(attempt, NOW)
    assert row["error"] == ""
    assert "left no error" in row["sentence"]
    attempted("a", run_id="r2", failure="file:///errors/7f3a")
    assert "or an XCom backend keeps errors elsewhere" in attempt_row(read("a")[0], NOW)["sentence"]


@pytest.mark.parametrize("value", [{"v": 9}, {"v": 1, "try_number": 1, "error": 1, "sentence": 2}])
def test_a_foreign_xcom_of_that_key_is_no_error(value: dict[str, Any]) -> None:
    attempted("a", failure=value)
    assert read("a")[0].failure is None


def test_the_newest_runs_of_each_dag_count() -> None:
    """Ten of each, by start time: a run that is cleared today starts today."""
    for number in range(12):
        attempted("a", run_id=f"r{number}", state="success", at=RECENT - number * HOUR)
    attempted("b", at=RECENT - 20 * HOUR)
    attempted("old", at=RECENT - dt.timedelta(days=40))
    attempts = read("a", "b", "old")
    assert [attempt.run_id for attempt in attempts if attempt.dag_id == "a"] == [
        f"r{number}" for number in range(10)
    ]
    assert [attempt.dag_id for attempt in attempts][-1] == "b"
    assert len(attempts) == 11


def test_the_last_attempt_is_the_worst_task_of_the_newest_run() -> None:
    """A run that has not reached the task yet does not hide the failure of the one before."""
    for index, state in enumerate(["success", "failed", "running"]):
        attempted("a", run_id="mapped", state=state, map_index=index)
    attempted("a", run_id="before", at=RECENT - HOUR)
    attempted("a", run_id="fine", state="success", at=RECENT - 2 * HOUR)
    attempted("a", run_id="next", state=None, started=False, at=RECENT + HOUR)
    ((name, attempts),) = by_pipeline(read("a")).items()
    last = last_row(attempts, NOW)
    assert (name, last["kind"], last["run_id"], last["map_index"]) == ("a.copy", "failed", "mapped", 1)
    assert [last[name] for name in ("tasks", "tasks_failed", "runs", "runs_failed")] == [3, 1, 3, 2]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("failed", "failed"),
        ("upstream_failed", "failed"),
        ("up_for_retry", "retrying"),
        ("queued", "running"),
        ("deferred", "running"),
        ("a state of a later Airflow", "running"),
        ("success", "succeeded"),
        ("skipped", "succeeded"),
        (None, "never ran"),
    ],
)
def test_states(state: str | None, kind: str) -> None:
    attempted("a", state=state, started=state is not None, try_number=int(state is not None))
    (attempt,) = read("a")
    assert kind_of(attempt) == kind


def test_a_cleared_attempt_waits_to_run_again() -> None:
    """It is the pipeline's last attempt, without the error of its earlier try; before a try there is none."""
    attempted("a", run_id="r0", state="success", at=RECENT - HOUR)
    attempted("a", run_id="r1", state=None, try_number=3, failure=FailureRecord(3, "E", "s"))
    attempted("a", run_id="r2", state=None, started=False, at=RECENT + HOUR, try_number=0)
    last = last_row(read("a"), NOW)
    assert [last[name] for name in ("run_id", "kind", "runs", "runs_failed")] == ["r1", "waiting", 2, 0]
    assert last["error"] == ""


@pytest.mark.parametrize("state", ["success", "skipped", "removed"])
def test_a_task_without_a_try_is_not_told_to_have_committed(state: str) -> None:
    """A branch or a user may have set its state."""
    attempted("a", state=state, started=False, try_number=0)
    row = attempt_row(read("a")[0], NOW)
    assert row["kind"] == "succeeded"
    assert "committed" not in row["meaning"]


def test_links_lead_to_the_log_of_the_try_and_to_the_dag_run() -> None:
    """Whatever characters the names have."""
    attempted("a/b", "copy", run_id="scheduled__2026-11-20T00:00:00+00:00", map_index=3, try_number=2)
    row = attempt_row(read("a/b")[0], NOW)
    run = "/dags/a%2Fb/runs/scheduled__2026-11-20T00%3A00%3A00%2B00%3A00"
    assert row["run_path"] == run
    assert row["log_path"] == f"{run}/tasks/copy/mapped/3?try_number=2"
    assert (row["try_number"], row["tries"]) == (2, 3)
    assert (row["at"], row["at_ago"]) == ("2026-11-20T22:00:00Z", "2 h ago")


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("select", {}, Exception("no such host: db")),
        ValueError("A string literal cannot contain NUL (0x00) characters."),
    ],
)
def test_a_database_that_cannot_be_read_is_told_from_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(attempts_module, "_rows", refuse)
    assert read_attempts({"a"}, NOW) is None


def test_there_is_no_session_where_airflow_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.settings.NonScopedSession", None)
    assert read_attempts({"a"}, NOW) is None


def test_three_hundred_dags_are_read_by_as_many_queries_as_one() -> None:
    """Each has ten runs; `python -m benchmarks page` measures the seconds."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance, uuid7
    from airflow.utils.session import create_session
    from sqlalchemy import event, insert

    names = [f"dag{number:03}" for number in range(300)]
    runs, tasks = [], []
    for name in names:
        for number in range(12):
            at = RECENT - number * HOUR
            named = {"dag_id": name, "run_id": f"r{number}"}
            runs.append({**named, "start_date": at, "run_after": at, "run_type": "manual", "clear_number": 0})
            task = {**named, "task_id": "copy", "map_index": -1, "state": "failed", "pool": "default_pool"}
            tasks.append({**task, "id": uuid7(), "operator": OPERATORS[0], "pool_slots": 1, "start_date": at})
    with create_session() as session:
        session.execute(insert(DagRun.__table__), runs)
        session.execute(insert(TaskInstance.__table__), tasks)
    statements: list[str] = []
    with create_session() as session:
        engine = session.get_bind()

    def ask(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(engine, "before_cursor_execute", ask)
    try:
        read(names[0])
        of_one = len(statements)
        attempts = read(*names)
    finally:
        event.remove(engine, "before_cursor_execute", ask)
    assert 0 < of_one == len(statements) - of_one
    assert len(attempts) == 3_000
