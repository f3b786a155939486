from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Explicit, OffsetRange
from airflow_eos.operators.replay import ReplayOffsetRangesOperator
from tests.unit.airflow.fakes import FakeRun, make_context

RANGES = (OffsetRange("src", 0, 5, 15), OffsetRange("src", 1, 0, 3))


def make(dag: DAG, **changes: Any) -> ReplayOffsetRangesOperator:
    fields: dict[str, Any] = {
        "process": lambda df: df,
        "topics": ["src"],
        "sink_topic": "out",
        "group_id": "g",
        "offset_ranges": RANGES,
        "reason": "the filter was wrong",
        "confirm": True,
        **changes,
    }
    return ReplayOffsetRangesOperator(task_id="replay", dag=dag, **fields)


@pytest.mark.parametrize("given", [False, "", "false", None, 1.5])
def test_replay_without_confirmation_reads_nothing(dag: DAG, runs: list[FakeRun], given: Any) -> None:
    """Consumers would see output again, so somebody has to confirm it."""
    operator = make(dag, confirm="{{ params.confirm }}")
    operator.confirm = given  # as it is rendered
    with pytest.raises(ConfigurationError, match="confirm"):
        operator.execute(make_context(operator))
    assert runs == []


@pytest.mark.parametrize("given", [True, "true", "TRUE", " True\n", "yes", "Yes"])
def test_what_passes_as_a_confirmation_is_one(dag: DAG, runs: list[FakeRun], given: Any) -> None:
    """The check at parse time and the task read it in the same way, from a form or a template."""
    operator = make(dag, confirm=given)
    operator.execute(make_context(operator))
    assert len(runs) == 1


def test_replay_needs_a_reason(dag: DAG, runs: list[FakeRun]) -> None:
    """The ledger records it."""
    operator = make(dag, reason="{{ params.reason }}")
    operator.reason = " "  # as it is rendered
    with pytest.raises(ConfigurationError, match="reason"):
        operator.execute(make_context(operator))
    assert runs == []


def test_replay_reads_exactly_the_ranges_and_is_on_record(dag: DAG, runs: list[FakeRun]) -> None:
    """Explicit ranges move no offsets; the ledger gets the person and the reason."""
    operator = make(dag)
    operator.execute(make_context(operator, run_type="manual", triggering_user_name="ada"))
    spec = runs[0].spec
    assert spec.ranges == Explicit(RANGES, advance=False)
    assert spec.audit == {
        "replay": [["src", 0, 5, 15], ["src", 1, 0, 3]],
        "reason": "the filter was wrong",
        "dag_id": "pipelines",
        "task_id": "replay",
        "run_type": "manual",
        "triggered_by": "ada",
    }
    assert operator.max_active_tis_per_dag is None


@pytest.mark.parametrize(
    "given",
    [
        [["src", 0, 5, 15], ("src", 1, 0, 3)],
        '[["src", 0, 5, 15], ["src", 1, 0, 3]]',
        "[['src', 0, 5, 15], ['src', 1, 0, 3]]",
    ],
)
def test_ranges_may_come_from_xcom_or_a_template(dag: DAG, runs: list[FakeRun], given: Any) -> None:
    """As lists in XCom, JSON, and Jinja's text of a list."""
    operator = make(dag, offset_ranges="{{ params.ranges }}", confirm="{{ params.yes }}")
    context = make_context(operator)
    operator.render_template_fields({**context, "params": {"ranges": given, "yes": True}})
    operator.execute(context)
    assert runs[0].spec.ranges == Explicit(RANGES)


@pytest.mark.parametrize("given", ["[[1]]", "nonsense", [["src", 0, 9, 3]], "{'a': 1}", []])
def test_ranges_that_cannot_be_read_say_so(dag: DAG, runs: list[FakeRun], given: Any) -> None:
    """The message shows the value, or what a range must be."""
    operator = make(dag, offset_ranges="{{ params.ranges }}")
    operator.offset_ranges = given  # as it is rendered
    with pytest.raises(ConfigurationError, match="range"):
        operator.execute(make_context(operator))
    assert runs == []


@pytest.mark.parametrize(
    ("given", "wanted"), [("reprocessed", "always"), ("always", "always"), ("never", "never")]
)
def test_all_that_a_replay_writes_is_a_repetition(
    dag: DAG, runs: list[FakeRun], given: Any, wanted: str
) -> None:
    """It has its own key, which is not a reprocessing's."""
    operator = make(dag, mark_output=given)
    operator.execute(make_context(operator))
    assert runs[0].spec.mark_output == wanted
