from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.decorators.kafka_eos import kafka_eos_task
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Cursor
from tests.unit.airflow.fakes import FakeRun, make_context

GIVEN: dict[str, Any] = {"topics": ["src"], "sink_topic": "out", "group_id": "g"}


def task_of(dag: DAG, task_id: str) -> Any:
    return dag.get_task(task_id)


def test_decorated_function_is_the_process(dag: DAG, runs: list[FakeRun]) -> None:
    """The run passes the frame, the call everything else."""

    @kafka_eos_task(**GIVEN, retries=2, on_committed="fail")
    def copy(df: Any, factor: int, run: Any = None, *, unit: str = "min") -> Any:
        """What it does."""
        return df, factor, unit, run

    with dag:
        copy(3, unit="h")
    operator = task_of(dag, "copy")
    assert (operator.custom_operator_name, operator.retries, operator.doc_md) == (
        "@task.kafka_eos",
        2,
        "What it does.",
    )
    assert operator.max_active_tis_per_dag == 1
    summary = operator.execute(make_context(operator))
    assert summary["records_read"] == 10
    assert (runs[0].spec.pipeline, runs[0].spec.on_committed, runs[0].spec.ranges) == (
        "pipelines.copy",
        "fail",
        Cursor(),
    )
    assert runs[0].process("frame", run="told") == ("frame", 3, "h", "told")


def test_same_contract_as_the_operator(dag: DAG, runs: list[FakeRun]) -> None:
    """The same templated fields, retry policy and kill."""
    from airflow_eos.operators.read_process_write import ReadProcessWriteOperator

    @kafka_eos_task(**{**GIVEN, "group_id": "g-{{ params.region }}"})
    def copy(df: Any, region: str) -> Any:
        return df, region

    with dag:
        copy("{{ params.region }}")
    operator = task_of(dag, "copy")
    assert set(ReadProcessWriteOperator.template_fields) <= set(operator.template_fields)
    assert type(operator.retry_policy).__name__ == "TransactionRetryPolicy"
    context = make_context(operator)
    operator.render_template_fields({**context, "params": {"region": "eu"}})
    operator.execute(context)
    operator.on_kill()
    assert (runs[0].spec.group_id, runs[0].kills) == ("g-eu", 1)
    assert runs[0].process("frame") == ("frame", "eu")


def test_expanded_over_partitions_each_has_its_cursor(dag: DAG, runs: list[FakeRun]) -> None:
    """A parameter named source_partition chooses the partition."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any, source_partition: int) -> Any:
        return df, source_partition

    with dag:
        copy.expand(source_partition=[0, 1])
    mapped = task_of(dag, "copy")
    for partition in (0, 1):
        operator = mapped.unmap({"op_kwargs": {"source_partition": partition}})
        operator.execute(make_context(operator, map_index=partition))
    assert [run.spec.source_partition for run in runs] == [0, 1]
    assert runs[1].process("frame") == ("frame", 1)


def test_a_function_without_that_parameter_is_mapped_over_partitions_too(
    dag: DAG, runs: list[FakeRun]
) -> None:
    """As docs and the error of a mapped task say; the function does not get the argument."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any, factor: int = 1) -> Any:
        return df, factor

    with dag:
        copy.partial(factor=3).expand(source_partition=[0, 1])
        copy.override(task_id="by_kwargs").expand_kwargs([{"source_partition": 2, "factor": 5}])
        copy.override(task_id="called")(source_partition=3)
    for partition in (0, 1):
        arguments = {"op_kwargs": {"factor": 3, "source_partition": partition}}
        operator = task_of(dag, "copy").unmap(arguments)
        operator.execute(make_context(operator, map_index=partition))
    operator = task_of(dag, "by_kwargs").unmap({"op_kwargs": {"source_partition": 2, "factor": 5}})
    operator.execute(make_context(operator, map_index=0))
    operator = task_of(dag, "called")
    operator.execute(make_context(operator))
    assert [run.spec.source_partition for run in runs] == [0, 1, 2, 3]
    assert [run.process("frame") for run in runs[:3]] == [("frame", 3), ("frame", 3), ("frame", 5)]


def test_instances_may_have_pipelines_and_groups_of_their_own(dag: DAG, runs: list[FakeRun]) -> None:
    """The other remedy in the error of a mapped task."""

    @kafka_eos_task(topics=["src"], sink_topic="out", group_id="g")
    def copy(df: Any, region: str) -> Any:
        return df, region

    given = {"region": "eu", "pipeline": "orders.eu", "group_id": "orders-eu", "topics": ["orders-eu"]}
    with dag:
        copy.expand_kwargs([given])
    operator = task_of(dag, "copy").unmap({"op_kwargs": given})
    operator.execute(make_context(operator, map_index=0))
    spec = runs[0].spec
    assert (spec.pipeline, spec.group_id, spec.source_topics) == ("orders.eu", "orders-eu", ("orders-eu",))
    assert runs[0].process("frame") == ("frame", "eu")


def test_an_argument_that_neither_the_function_nor_a_run_takes_is_refused(dag: DAG) -> None:
    """As with every task decorator."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any) -> Any:
        return df

    with dag, pytest.raises(TypeError, match="regions"):
        copy.expand(regions=["eu"])


def test_context_variables_come_from_the_context(dag: DAG, runs: list[FakeRun]) -> None:
    """As in every decorated task; arguments of the call come first, and are templated."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any, ds: str, factor: int, run_id: str | None = None, *, ts: str | None = None) -> Any:
        return df, ds, factor, run_id, ts

    with dag:
        copy(factor=3, run_id="of {{ ds }}")
    operator = task_of(dag, "copy")
    context = {**make_context(operator), "ds": "2026-11-20"}
    operator.render_template_fields(context)
    operator.execute(context)
    assert runs[0].process("frame") == ("frame", "2026-11-20", 3, "of 2026-11-20", None)


def test_context_variable_that_the_dag_run_has_not_fails_at_once(dag: DAG, runs: list[FakeRun]) -> None:
    """A run without a logical date has no ds in any try: it is not retried, and no run starts."""

    @kafka_eos_task(**GIVEN, retries=2)
    def copy(df: Any, ds: str) -> Any:
        return df, ds

    with dag:
        copy()
    operator = task_of(dag, "copy")
    with pytest.raises(ConfigurationError, match=r"copy takes \(ds: 'str'\): missing .*'ds'.* default None"):
        operator.execute(make_context(operator))
    assert runs == []


def test_expanded_over_another_argument_is_refused(dag: DAG, runs: list[FakeRun]) -> None:
    """Its instances would be one run, which the first of them does."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any, region: str) -> Any:
        return df, region

    with dag:
        copy.expand(region=["eu", "us"])
    operator = task_of(dag, "copy").unmap({"op_kwargs": {"region": "eu"}})
    with pytest.raises(ConfigurationError, match="mapped"):
        operator.execute(make_context(operator, map_index=0))
    assert runs == []


@pytest.mark.parametrize("name", ["pipeline", "topics"])
def test_a_parameter_of_the_functions_own_tells_no_runs_apart(
    dag: DAG, runs: list[FakeRun], name: str
) -> None:
    """Its name is that of a run's parameter, but the run does not get the value: all would be one run."""
    functions: dict[str, Any] = {"pipeline": lambda df, pipeline: df, "topics": lambda df, topics: df}
    given: dict[str, Any] = {"pipeline": {}, "topics": {"pipeline": "fixed", "ranges": "data_interval"}}[name]
    calls: list[Any] = [{name: "eu"}, {name: "us"}]
    with dag:
        kafka_eos_task(task_id="split", **GIVEN, **given)(functions[name]).expand_kwargs(calls)
    for index, arguments in enumerate(calls):
        operator = task_of(dag, "split").unmap({"op_kwargs": arguments})
        with pytest.raises(
            ConfigurationError,
            match=f"would be one run.*; {name} goes to the function, which has a parameter",
        ):
            operator.execute(make_context(operator, map_index=index))
    assert runs == []


def test_a_parameter_of_the_functions_own_does_not_choose_the_run(dag: DAG, runs: list[FakeRun]) -> None:
    """Instances that differ by their partition may have it."""

    @kafka_eos_task(**GIVEN, pipeline="fixed")
    def split(df: Any, pipeline: str) -> Any:
        return df, pipeline

    given = [{"source_partition": 0, "pipeline": "eu"}, {"source_partition": 1, "pipeline": "eu"}]
    with dag:
        split.expand_kwargs(given)
    for index, arguments in enumerate(given):
        operator = task_of(dag, "split").unmap({"op_kwargs": arguments})
        operator.execute(make_context(operator, map_index=index))
    assert [(run.spec.pipeline, run.spec.source_partition) for run in runs] == [("fixed", 0), ("fixed", 1)]
    assert runs[0].process("frame") == ("frame", "eu")


def test_function_without_a_frame_is_refused_at_parse(dag: DAG) -> None:
    """The message shows the required signature."""

    @kafka_eos_task(**GIVEN)
    def copy() -> Any:
        return None

    with dag, pytest.raises(ConfigurationError, match="DataFrame"):
        copy()


def test_missing_argument_is_refused_at_parse(dag: DAG) -> None:
    """As with every task decorator."""

    @kafka_eos_task(**GIVEN)
    def copy(df: Any, factor: int) -> Any:
        return df, factor

    with dag, pytest.raises(TypeError, match="factor"):
        copy()
