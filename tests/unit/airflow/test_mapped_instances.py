"""Instances of a mapped task are separate runs, or refused: none succeeds with another's record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task_group

from airflow_eos.compat import AirflowSkipException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger.keys import run_key
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from tests.unit.airflow.fakes import FakeRun, make_context, upstream


def copy(df: Any, region: str = "eu") -> Any:
    return df, region


GIVEN: dict[str, Any] = {"process": copy, "topics": ["src"], "sink_topic": "out", "group_id": "g"}
REGIONS = [{"region": "eu"}, {"region": "us"}]
SAME_RUN: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "each partition twice": ({}, lambda task: task.expand(source_partition=[0, 1], op_kwargs=REGIONS)),
    "a partition for all": ({"source_partition": 0}, lambda task: task.expand(op_kwargs=REGIONS)),
    "a repeated partition": ({}, lambda task: task.expand(source_partition=[1, 0, "1"])),
    "repeated in mappings": (
        {},
        lambda task: task.expand_kwargs([{"source_partition": 1, "op_kwargs": given} for given in REGIONS]),
    ),
    "a repeated result of a task": ({}, lambda task: task.expand(source_partition=upstream([3, 3]))),
    "a pipeline for all": ({"pipeline": "fixed"}, lambda task: task.expand(op_kwargs=REGIONS)),
    "a pipeline for all intervals": (
        {"pipeline": "fixed", "ranges": "data_interval"},
        lambda task: task.expand(op_kwargs=REGIONS),
    ),
    "a pipeline that is rendered to nothing": (
        {"pipeline": "{{ empty }}"},
        lambda task: task.expand(op_kwargs=REGIONS),
    ),
    "a repeated pipeline": ({}, lambda task: task.expand(pipeline=["a", "b"], op_kwargs=REGIONS)),
}
OWN_RUNS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "partitions of a task": ({}, lambda task: task.expand(source_partition=upstream([3, 4]))),
    "partitions and arguments": (
        {},
        lambda task: task.expand_kwargs(
            [{"source_partition": number, "op_kwargs": given} for number, given in enumerate(REGIONS)]
        ),
    ),
    "partitions of a pipeline": ({"pipeline": "fixed"}, lambda task: task.expand(source_partition=[0, 1])),
    "topics of an interval": (
        {"pipeline": "fixed", "ranges": "data_interval", "topics": None},
        lambda task: task.expand(topics=[["src"], ["more"]]),
    ),
}


def mapped_instances(dag: DAG, given: dict[str, Any], expand: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield each instance of a mapped task, and its context."""
    fields = {name: value for name, value in {**GIVEN, **given}.items() if value is not None}
    with dag:
        mapped = expand(ReadProcessWriteOperator.partial(task_id="mapped", **fields))
    for index in range(2):
        context = make_context(SimpleNamespace(dag=dag, retries=0), map_index=index)
        operator = mapped.unmap(mapped.expand_input.resolve(context)[0])
        operator.render_template_fields({**context, "empty": ""})
        yield operator, {**context, "task": operator}


@pytest.mark.parametrize("name", SAME_RUN)
def test_mapped_instances_that_share_a_partition_or_a_pipeline_are_refused(
    dag: DAG, runs: list[FakeRun], name: str
) -> None:
    """All but the first of a partition would succeed without doing their work."""
    for index, (operator, context) in enumerate(mapped_instances(dag, *SAME_RUN[name])):
        with pytest.raises(ConfigurationError, match=rf"map index {index}.*would be one run"):
            operator.execute(context)
    assert runs == []


@pytest.mark.parametrize("name", OWN_RUNS)
def test_mapped_instances_that_differ_in_what_names_a_run_are_accepted(
    dag: DAG, runs: list[FakeRun], name: str
) -> None:
    """Whatever other argument is expanded together with it."""
    for operator, context in mapped_instances(dag, *OWN_RUNS[name]):
        operator.execute(context)
    assert len({run_key(run.spec) for run in runs}) == 2


def of_region(region: str) -> dict[str, Any]:
    """Return an instance's arguments; raise for some regions."""
    if region == "skipped":
        raise AirflowSkipException(region)
    _, number = region.split("-")
    return {"source_partition": number}


@pytest.mark.parametrize(
    ("regions", "accepted"),
    [
        (["eu-0", "us-1", "skipped"], True),
        (["eu-0", "us-1", "broken"], True),
        (["eu-0", "us-0", "skipped"], False),
        (["us-0", "eu-0", "broken", "as-1"], False),
    ],
)
def test_an_element_that_a_map_function_raises_on_concerns_its_own_instance(
    dag: DAG, runs: list[FakeRun], regions: list[str], accepted: bool
) -> None:
    """Airflow skips or fails that instance: the others run, and are compared with each other."""
    values = upstream(regions).map(of_region)
    for operator, context in mapped_instances(dag, {}, lambda task: task.expand_kwargs(values)):
        if accepted:
            operator.execute(context)
        else:
            with pytest.raises(ConfigurationError, match="would be one run"):
                operator.execute(context)
    assert [run.spec.source_partition for run in runs] == ([0, 1] if accepted else [])


@pytest.mark.parametrize("name", ["pipeline", "group_id"])
@pytest.mark.parametrize("given", [{}, {"source_partition": [0, 1]}, {"topics": [["src"], ["more"]]}])
def test_a_pipeline_or_group_that_is_named_by_the_map_index_is_refused(
    dag: DAG, runs: list[FakeRun], given: dict[str, Any], name: str
) -> None:
    """If the list grows at its front, each index gets another element: skipped, or written again."""
    fields = {"pipeline": "{{ run_id }}", **dict.fromkeys(given), name: "copy.{{ ti.map_index }}"}
    expansion = given or {"op_kwargs": REGIONS}
    for operator, context in mapped_instances(dag, fields, lambda task: task.expand(**expansion)):
        with pytest.raises(ConfigurationError, match=f"^{name} .* follows the map index"):
            operator.execute(context)
    assert runs == []


def test_results_of_a_mapped_task_are_requested_at_once(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of a thousand instances would send a thousand requests."""
    from airflow.sdk.execution_time import comms, task_runner

    sent: list[str] = []

    class Comms:
        def send(self, message: Any) -> Any:
            sent.append(type(message).__name__)
            if isinstance(message, comms.GetXComSequenceSlice):
                return comms.XComSequenceSliceResult(root=["eu-0", "us-1"])
            return comms.XComSequenceIndexResult(root=["eu-0", "us-1", "as-2"][message.offset])

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Comms(), raising=False)
    with dag:
        names = BaseOperator.partial(task_id="names").expand_kwargs([{}, {}, {}])
    regions = names.output.map(of_region)
    for operator, context in mapped_instances(dag, {}, lambda task: task.expand_kwargs(regions)):
        sent.clear()
        operator.execute(context)
        assert [name for name in sent if "XCom" in name] == ["GetXComSequenceSlice"]
    assert [run.spec.source_partition for run in runs] == [0, 1]


def execute_both(dag: DAG, *, accepted: bool) -> None:
    """Execute both instances of the task of a mapped task group: both are accepted, or both refused."""
    for index in range(2):
        operator = dag.get_task("group.copy").prepare_for_execution()
        context = make_context(operator, map_index=index)
        operator.render_template_fields(context)
        if accepted:
            operator.execute(context)
        else:
            with pytest.raises(ConfigurationError, match=rf"map index {index}.*would be one run"):
                operator.execute(context)


@pytest.mark.parametrize(
    ("expansion", "accepted"),
    [
        ({"number": [0, 1]}, True),
        ({"number": [0, 0]}, False),
        ({"number": [0, 1], "region": ["eu", "us"]}, False),
        ({"region": ["eu", "us"]}, False),
    ],
)
def test_a_mapped_task_group_gives_each_instance_a_partition_or_is_refused(
    dag: DAG, runs: list[FakeRun], expansion: dict[str, Any], accepted: bool
) -> None:
    """As a mapped task: the group's argument is the task's partition."""

    @task_group
    def group(number: Any = 0, region: Any = "eu") -> None:
        ReadProcessWriteOperator(
            task_id="copy", source_partition=number, op_kwargs={"region": region}, **GIVEN
        )

    with dag:
        group.expand(**expansion)
    execute_both(dag, accepted=accepted)
    assert [run.spec.source_partition for run in runs] == ([0, 1] if accepted else [])


@pytest.mark.parametrize(
    ("argument", "limit"), [("source_partition", None), ("pipeline", None), ("sink_topic", 1)]
)
def test_instances_of_a_mapped_task_group_with_a_cursor_each_run_side_by_side(
    dag: DAG, argument: str, limit: int | None
) -> None:
    """As those of a mapped task: a slow partition delays no other."""

    @task_group
    def group(value: Any) -> None:
        ReadProcessWriteOperator(task_id="copy", **{**GIVEN, argument: value})

    with dag:
        group.expand(value=["0", "1"])
    assert dag.get_task("group.copy").max_active_tis_per_dag == limit


@pytest.mark.parametrize(("pipelines", "accepted"), [(["a", "b"], True), (["a", "a"], False)])
def test_a_mapped_task_group_gives_each_instance_a_pipeline_or_is_refused(
    dag: DAG, runs: list[FakeRun], pipelines: list[str], accepted: bool
) -> None:
    """Also before the record exists that would tell which instance did the work."""

    @task_group
    def group(name: Any) -> None:
        ReadProcessWriteOperator(task_id="copy", pipeline=name, **GIVEN)

    with dag:
        group.expand(name=pipelines)
    execute_both(dag, accepted=accepted)
    assert [run.spec.pipeline for run in runs] == (pipelines if accepted else [])
