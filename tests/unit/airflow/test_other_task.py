"""A task never succeeds with the record of another task, or of another instance of a mapped task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, TaskGroup, task_group

from airflow_eos.decorators.kafka_eos import kafka_eos_task
from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger.keys import run_key
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.replay import ReplayOffsetRangesOperator
from airflow_eos.operators.retriable import is_final
from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator
from tests.unit.airflow.fakes import DAY, START, FakeRun, a_record, make_context

GIVEN: dict[str, Any] = {"topics": ["src"], "sink_topic": "out", "group_id": "g"}
DAILY = {**GIVEN, "ranges": "data_interval"}
REGIONS = [{"region": "eu"}, {"region": "us"}]
TEMPLATED = "{{ params.env }}.orders"
OWN_PIPELINE = r"Give each task, and each instance of a mapped one, its own pipeline.*'accept'"


def copy(df: Any, region: str = "eu") -> Any:
    return df, region


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch, runs: list[FakeRun]) -> dict[str, RunRecord]:
    """The records of all runs by run key: a run with a record is found."""
    records: dict[str, RunRecord] = {}

    def answer(spec: Any, **_: Any) -> RunRecord | None:
        record = records.get(run_key(spec))
        return None if record is None else replace(record, found=True)

    def execute(self: FakeRun) -> RunRecord:
        key = run_key(self.spec)
        record = a_record(run_key=key, pipeline=self.spec.pipeline, details={"airflow": dict(self.spec.task)})
        return answer(self.spec) or records.setdefault(key, record)

    monkeypatch.setattr(FakeRun, "execute", execute)
    monkeypatch.setattr(sys.modules["airflow_eos.engine"], "answer", answer)
    return records


def operator_of(dag: DAG, task_id: str = "copy", **changes: Any) -> ReadProcessWriteOperator:
    return ReadProcessWriteOperator(
        dag=dag, task_id=task_id, **{**DAILY, "process": copy, "pipeline": "orders", **changes}
    )


def run(task: Any, **dag_run: Any) -> dict[str, Any]:
    """Execute a task like Airflow, with rendered templates."""
    context = make_context(task, **dag_run)
    task.render_template_fields({**context, "params": {"env": "prod"}})
    answer: dict[str, Any] = task.execute({**context, "task": task})
    return answer


def refusal(task: Any, **dag_run: Any) -> str:
    """Execute a task that is refused at once, whatever its retries; return the message."""
    with pytest.raises(DifferentWork, match=OWN_PIPELINE) as refused:
        run(task, **dag_run)
    assert is_final(refused.value)
    return str(refused.value)


def instances(dag: DAG, expand: Callable[[Any], Any], **given: Any) -> list[Any]:
    """Return both instances of a mapped task."""
    with dag:
        fields = {**GIVEN, "process": copy, **given}
        fields = {name: value for name, value in fields.items() if value is not None}
        mapped = expand(ReadProcessWriteOperator.partial(task_id="mapped", **fields))
    contexts = [make_context(SimpleNamespace(dag=dag, retries=0), map_index=index) for index in range(2)]
    return [mapped.unmap(mapped.expand_input.resolve(context)[0]) for context in contexts]


SAME_TEMPLATE: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "a cursor": ({"pipeline": TEMPLATED}, lambda task: task.expand(op_kwargs=REGIONS)),
    "an interval": (
        {"pipeline": TEMPLATED, "ranges": "data_interval"},
        lambda task: task.expand(op_kwargs=REGIONS),
    ),
    "expanded templates": (
        {"ranges": "data_interval"},
        lambda task: task.expand(pipeline=[TEMPLATED, "{{ params['env'] }}.orders"]),
    ),
    "one of them a template": ({}, lambda task: task.expand(pipeline=[TEMPLATED, "prod.orders"])),
    "the same topics": (
        {"pipeline": TEMPLATED, "topics": None},
        lambda task: task.expand(topics=["src", ["src"]]),
    ),
    "templates of topics": (
        {"pipeline": TEMPLATED, "topics": None},
        lambda task: task.expand(topics=["{{ 'src' }}", "src"]),
    ),
    "templates of a partition": (
        {"pipeline": "orders"},
        lambda task: task.expand(source_partition=["{{ 1 }}", "{{ 2 - 1 }}"]),
    ),
}


@pytest.mark.parametrize("name", SAME_TEMPLATE)
def test_instances_whose_templates_render_to_the_same_are_no_success_of_each_other(
    dag: DAG, ledger: dict[str, RunRecord], name: str
) -> None:
    """The first does its work; the other would succeed, with its region in no topic."""
    given, expand = SAME_TEMPLATE[name]
    first, second = instances(dag, expand, **given)
    run(first, map_index=0)
    message = refusal(second, map_index=1)
    assert "recorded task 'mapped' (map index 0)" in message
    assert "asked 'mapped' (map index 1)" in message
    run(first, map_index=0, clear_number=1)  # its own record stays
    assert len(ledger) == 1


def test_instances_of_a_mapped_group_with_one_template_are_no_success_of_each_other(
    dag: DAG, ledger: dict[str, RunRecord]
) -> None:
    """As those of a mapped task."""

    @task_group
    def regions(region: Any) -> None:
        ReadProcessWriteOperator(
            task_id="copy", process=copy, op_kwargs={"region": region}, pipeline=TEMPLATED, **GIVEN
        )

    with dag:
        regions.expand(region=["eu", "us"])
    run(dag.get_task("regions.copy").prepare_for_execution(), map_index=0)
    refusal(dag.get_task("regions.copy").prepare_for_execution(), map_index=1)


def test_instances_whose_templates_differ_are_runs_of_their_own(
    dag: DAG, ledger: dict[str, RunRecord]
) -> None:
    """Each has its own record, and finds it again."""
    tasks = instances(
        dag, lambda task: task.expand(op_kwargs=REGIONS), pipeline="{{ task.op_kwargs.region }}"
    )
    for _ in range(2):
        for index, task in enumerate(tasks):
            context = make_context(task, map_index=index)
            task.render_template_fields(context)
            task.execute(context)
    assert len(ledger) == 2


def test_an_instance_finds_its_partition_at_another_map_index(dag: DAG, ledger: dict[str, RunRecord]) -> None:
    """The list was reordered before the clear; each partition belongs to one instance only."""
    zero, first = instances(dag, lambda task: task.expand(source_partition=[0, 1]), pipeline=TEMPLATED)
    run(zero, map_index=0)
    run(zero, map_index=1, clear_number=1)
    run(first, map_index=0, clear_number=1)
    assert len(ledger) == 2


@pytest.mark.parametrize("given", [{"start_date": START}, {"start_date": START, "clear_number": 1}])
def test_an_element_that_two_instances_of_a_dag_run_got_leaves_no_other_one_out(
    dag: DAG, ledger: dict[str, RunRecord], given: dict[str, Any]
) -> None:
    """Each process reads the Dag file; a set has another order there. A neighbour's clear changes nothing."""
    zero, _ = instances(dag, lambda task: task.expand(source_partition=[0, 1]), pipeline=TEMPLATED)
    run(zero, map_index=0, **given)
    with pytest.raises(
        DifferentWork, match=r"map index 0\).*map index 1\)\. The list .* another order"
    ) as refused:
        run(zero, map_index=1, **given)
    assert is_final(refused.value)


@pytest.mark.parametrize(
    "later",
    [{"start_date": START, "clear_number": 1, "max_tries": 3}, {"start_date": START + DAY}],
    ids=["cleared", "the Dag run was created again"],
)
def test_an_element_that_another_instance_did_before_a_clear_is_logged(
    dag: DAG, ledger: dict[str, RunRecord], caplog: pytest.LogCaptureFixture, later: dict[str, Any]
) -> None:
    """All instances may be cleared: then each element has one. The task cannot know, the user does."""
    zero, first = instances(dag, lambda task: task.expand(source_partition=[0, 1]), pipeline=TEMPLATED)
    run(zero, map_index=0, start_date=START)
    run(first, map_index=1, start_date=START)
    assert "another order" not in caplog.text
    run(zero, map_index=1, **later)
    assert "committed by 'mapped' (map index 0) in this Dag run. The list" in caplog.text
    assert len(ledger) == 2


@pytest.mark.parametrize("indexes", [(-1, 0), (0, -1)])
def test_a_task_that_was_mapped_or_unmapped_between_two_tries_finds_its_record(
    dag: DAG, ledger: dict[str, RunRecord], indexes: tuple[int, int]
) -> None:
    """Over pipelines: one instance is the same run as the task was."""
    zero, _ = instances(dag, lambda task: task.expand(pipeline=["orders", "returns"]), ranges="data_interval")
    for index in indexes:
        run(zero, map_index=index, start_date=START)
    assert len(ledger) == 1


def test_an_instance_finds_its_topics_at_another_map_index(dag: DAG, ledger: dict[str, RunRecord]) -> None:
    """A templated pipeline does not tell instances apart; their topics do, and must match the record."""

    def expand(task: Any) -> Any:
        return task.expand_kwargs(
            [{"topics": [t], "group_id": t, "pipeline": "{{ params.env }}." + t} for t in ("a", "b")]
        )

    first, second = instances(dag, expand, topics=None, group_id=None)
    run(first, map_index=0)
    run(second, map_index=1)
    run(second, map_index=0, clear_number=1)
    run(first, map_index=1, clear_number=1)
    assert len(ledger) == 2


def test_an_instance_finds_the_interval_of_another_dag_run(dag: DAG, ledger: dict[str, RunRecord]) -> None:
    """A list may have another order there."""
    first, _ = instances(
        dag, lambda task: task.expand(op_kwargs=REGIONS), pipeline=TEMPLATED, ranges="data_interval"
    )
    run(first, map_index=0)
    run(first, map_index=1, run_id="manual__1")
    assert len(ledger) == 1


def decorated(dag: DAG, task_id: str, **given: Any) -> Any:
    with dag:
        kafka_eos_task(task_id=task_id, **{**DAILY, "pipeline": "orders", **given})(copy)()
    return dag.get_task(task_id)


def replaying(dag: DAG, task_id: str, **given: Any) -> Any:
    return ReplayOffsetRangesOperator(
        dag=dag,
        task_id=task_id,
        process=copy,
        offset_ranges=[["src", 0, 0, 5]],
        reason="lost",
        confirm=True,
        **{**GIVEN, "pipeline": "orders", **given},
    )


def submitting(dag: DAG, task_id: str, **given: Any) -> Any:
    return ReadProcessWriteSubmitOperator(
        dag=dag, task_id=task_id, application="copy.py", **{**DAILY, "pipeline": "orders", **given}
    )


MAKERS: dict[str, Callable[..., Any]] = {
    "operator": operator_of,
    "decorator": decorated,
    "replay": replaying,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_two_tasks_of_a_dag_with_one_pipeline_are_no_success_of_each_other(
    dag: DAG, ledger: dict[str, RunRecord], kind: str
) -> None:
    """After copying a task, for example; the second one's work would silently not be done."""
    first, second = (MAKERS[kind](dag, task_id) for task_id in ("eu", "us"))
    run(first)
    message = refusal(second)
    assert "recorded task 'eu' in Dag run 'scheduled__2026-11-20', asked 'us'" in message
    run(first, clear_number=1)
    assert len(ledger) == 1


def test_a_submitted_run_of_another_task_is_no_success(
    dag: DAG, ledger: dict[str, RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detected before anything is submitted, or if another task was faster than the driver."""
    operator_of(dag, "eu").execute(make_context(dag.get_task("eu")))
    task = submitting(dag, "us")
    with pytest.raises(DifferentWork, match=OWN_PIPELINE):
        task.execute(make_context(task))
    event = {"driver_id": "application_1", "status": "FINISHED", "succeeded": True}
    monkeypatch.setattr(task, "_error_of_the_application", lambda: None)
    with pytest.raises(DifferentWork, match=OWN_PIPELINE):
        task.resume(make_context(task), event)


def test_default_names_that_are_one_text_are_told_apart(
    ledger: dict[str, RunRecord], caplog: pytest.LogCaptureFixture
) -> None:
    """Task ``eu.copy`` of Dag ``sales``, and task ``copy`` of ``sales.eu``: one may be the other, renamed."""
    with DAG("sales", schedule=None, start_date=START), TaskGroup("eu"):
        first = ReadProcessWriteOperator(task_id="copy", process=copy, **DAILY)
    with DAG("sales.eu", schedule=None, start_date=START):
        second = ReadProcessWriteOperator(task_id="copy", process=copy, **DAILY)
    run(first)
    run(second)
    assert "was committed by task 'eu.copy' of Dag 'sales', and this task did nothing" in caplog.text
    assert len(ledger) == 1


def test_the_author_lets_either_of_two_tasks_do_the_work(dag: DAG, ledger: dict[str, RunRecord]) -> None:
    """They are alternatives of a branch; the message names the option."""
    first, second = (operator_of(dag, task_id, on_committed="accept") for task_id in ("plain", "costly"))
    run(first)
    run(second, clear_number=1)
    assert len(ledger) == 1


GONE: dict[str, Callable[[DAG], Any]] = {
    "removed": lambda dag: None,
    "another kind of task": lambda dag: BaseOperator(task_id="before", dag=dag),
    "of another pipeline now": lambda dag: operator_of(dag, "before", pipeline="returns"),
    "of its default pipeline now": lambda dag: operator_of(dag, "before", pipeline=None),
}


@pytest.mark.parametrize("name", GONE)
def test_a_renamed_task_keeps_its_records(dag: DAG, ledger: dict[str, RunRecord], name: str) -> None:
    """Its earlier id is free, whichever task has it now."""
    run(operator_of(DAG(dag.dag_id, schedule=None, start_date=START), "before"))
    GONE[name](dag)
    run(operator_of(dag, "after"), clear_number=1)
    assert len(ledger) == 1


SHARING: dict[str, Callable[[DAG], Any]] = {
    "a template": lambda dag: operator_of(dag, "before", pipeline="{{ var.value.name }}"),
    "mapped": lambda dag: ReadProcessWriteOperator.partial(
        dag=dag, task_id="before", process=copy, **DAILY
    ).expand(pipeline=["orders"]),
}


@pytest.mark.parametrize("name", SHARING)
def test_a_task_whose_pipeline_is_not_known_may_be_the_same(
    dag: DAG, ledger: dict[str, RunRecord], name: str
) -> None:
    """It is refused, to be safe."""
    run(operator_of(DAG(dag.dag_id, schedule=None, start_date=START), "before"))
    SHARING[name](dag)
    refusal(operator_of(dag, "after"))


def test_a_task_finds_its_interval_in_another_dag_run(dag: DAG, ledger: dict[str, RunRecord]) -> None:
    """A Dag run is triggered for an interval that was read before."""
    task = operator_of(dag)
    run(task)
    run(task, run_id="manual__1")
    assert len(ledger) == 1


@pytest.mark.parametrize(
    "names",
    [
        None,
        "pipelines",
        {"dag_id": "pipelines"},
        {"dag_id": "pipelines", "task_id": ["copy"], "map_index": -1, "run_id": "r"},
        {"dag_id": "pipelines", "task_id": "us", "map_index": None, "run_id": "r"},
    ],
)
def test_a_record_that_names_no_task_stands(dag: DAG, runs: list[FakeRun], names: Any) -> None:
    """From programs without Airflow, and from other clients."""
    FakeRun.outcome = a_record(details={"airflow": names}, found=True)
    operator_of(dag, "us")
    run(operator_of(dag))
