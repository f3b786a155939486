"""A task in a loop runs several times in a Dag run: it is refused, never a success that wrote nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.retriable import is_final
from airflow_eos.operators.task_identity import refuse_loop


def context(group: Any = None, **instance: Any) -> Any:
    """Return the parts of a context that tell of a loop, as Airflow 3.4 has them."""
    return {
        "run_id": "manual__1",
        "task": SimpleNamespace(task_group=group),
        "ti": SimpleNamespace(map_index=-1, **instance),
    }


ROOT = SimpleNamespace(group_id=None, parent_group=None)
PLAIN = SimpleNamespace(group_id="plain", parent_group=ROOT)
LOOP = SimpleNamespace(group_id="until_empty", parent_group=ROOT, max_iterations=5)
INSIDE = SimpleNamespace(group_id="until_empty.inner", parent_group=LOOP)


@pytest.mark.parametrize("group", [LOOP, INSIDE], ids=["in it", "in a group in it"])
def test_a_task_in_a_loop_is_refused(group: Any) -> None:
    """Its later iterations would find the first one's commit; another try changes nothing."""
    with pytest.raises(
        ConfigurationError, match=r"a loop \(task group 'until_empty'.*until_caught_up"
    ) as refused:
        refuse_loop(context(group))
    assert is_final(refused.value)


@pytest.mark.parametrize("name", ["loop_index", "loop_iteration", "iteration_index", "iteration"])
def test_an_iteration_that_the_instance_names_is_refused(name: str) -> None:
    """The first one, too: with a green one before it, the second would write nothing."""
    for number in (0, 3):
        with pytest.raises(ConfigurationError, match=f"{name} {number}"):
            refuse_loop(context(PLAIN, **{name: number}))


@pytest.mark.parametrize("instance", [{}, {"loop_index": -1}, {"iteration": None}])
@pytest.mark.parametrize("group", [None, ROOT, PLAIN])
def test_a_task_outside_a_loop_runs(group: Any, instance: dict[str, Any]) -> None:
    """Airflow 3.3 knows no loop, and an index of -1 means none."""
    refuse_loop(context(group, **instance))
