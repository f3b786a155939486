"""A task in a loop runs several times per Dag run: it is refused, never a success that wrote nothing.

Groups and contexts are as Airflow 3.4 documents them; 3.4 itself is not installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from airflow.sdk import DAG, BaseOperator, TaskGroup

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.retriable import is_final
from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator
from airflow_eos.operators.task_identity import refuse_loop
from tests.unit.airflow.fakes import START


@attrs.define(kw_only=True, repr=False)
class LoopTaskGroup(TaskGroup):
    """A task group as Airflow 3.4's ``.loop(max_iterations=..., until=...)`` creates it."""

    max_iterations: int
    has_until: bool = True


class LoopContext:
    """The context variable ``loop`` of Airflow 3.4."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.max_iterations = 5
        self.previous = self.result = None


def context(task: Any, **more: Any) -> Any:
    """Return the parts of a task's context that describe a loop."""
    return {"run_id": "manual__1", "task": task, "ti": SimpleNamespace(map_index=-1), **more}


def in_group(group: Any) -> Any:
    return lambda: BaseOperator(task_id="task", task_group=group)


def mapped(group: Any) -> Any:
    def make() -> Any:
        expanded = BaseOperator.partial(task_id="task", task_group=group).expand(email=["a", "b"])
        return expanded.unmap({"email": "b"})

    return make


def inner(group: TaskGroup) -> TaskGroup:
    return TaskGroup("inner", parent_group=group)


@pytest.mark.parametrize(
    "make",
    [
        in_group,
        mapped,
        lambda group: in_group(inner(group)),
        lambda group: mapped(inner(group)),
    ],
    ids=["in it", "mapped in it", "in a group in it", "mapped in a group in it"],
)
def test_a_task_in_a_loop_is_refused(make: Any) -> None:
    """Its later iterations would find the first one's commit; a retry would have the same result."""
    with DAG("loops", schedule=None, start_date=START):
        task = make(LoopTaskGroup(group_id="until_empty", max_iterations=5))()
    with pytest.raises(
        ConfigurationError, match=r"a loop \(task group 'until_empty'.*until_caught_up"
    ) as refused:
        refuse_loop(context(task))
    assert is_final(refused.value)


@pytest.mark.parametrize("index", [0, 3])
def test_an_iteration_that_the_context_names_is_refused(index: int) -> None:
    """The first one, too: after its success, the second would write nothing."""
    with pytest.raises(ConfigurationError, match=f"iteration {index}"):
        refuse_loop(context(BaseOperator(task_id="task"), loop=LoopContext(index)))


@pytest.mark.parametrize("more", [{}, {"loop": None}])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_task_outside_a_loop_runs(grouped: bool, more: dict[str, Any]) -> None:
    """Airflow 3.3 has no loops."""
    with DAG("loops", schedule=None, start_date=START):
        task = in_group(TaskGroup("plain"))() if grouped else BaseOperator(task_id="task")
    refuse_loop(context(task, **more))


FIELDS = {"task_id": "copy", "topics": ["src"], "sink_topic": "out", "group_id": "g"}


@pytest.mark.parametrize(
    ("operator", "fields"),
    [
        (ReadProcessWriteOperator, {"process": lambda df: df}),
        (ReadProcessWriteSubmitOperator, {"application": "copy.py"}),
    ],
    ids=["runs Spark", "submits"],
)
def test_no_operator_runs_in_a_loop(operator: Any, fields: dict[str, Any]) -> None:
    """Refused before a run is specified."""
    with DAG("loops", schedule=None, start_date=START), LoopTaskGroup(group_id="loop", max_iterations=2):
        task = operator(**FIELDS, **fields)
    with pytest.raises(ConfigurationError, match="in a loop"):
        task.build_spec(context(task))
