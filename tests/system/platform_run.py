"""One run on a large Airflow that is held at a gate, and checks of the columns of docs/retries.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from airflow_eos_testing.airflow_platform import AirflowPlatform
from tests.system.gate import Gate
from tests.system.retries_table import Columns, Pipeline, added, grown


@dataclass(frozen=True)
class Held:
    """A Dag run whose task waits at a gate.

    :param before: the columns before it was triggered.
    :param sent: values that it must write, each once.
    :param process: process id of the task's first try; 0 if unknown.
    """

    dag_id: str
    run_id: str
    pipeline: Pipeline
    before: Columns
    sent: Counter[bytes]
    process: int = 0


def hold_run(airflow: AirflowPlatform, pipeline: Pipeline, gate: Gate, dag_id: str, name: str) -> Held:
    """Publish, trigger, and wait until the task has reached the gate."""
    gate.shut()
    held = begin_run(airflow, pipeline, dag_id, name)
    (process,) = gate.wait()
    return Held(dag_id, held.run_id, pipeline, held.before, held.sent, process)


def begin_run(airflow: AirflowPlatform, pipeline: Pipeline, dag_id: str, name: str) -> Held:
    """Publish and trigger."""
    before = pipeline.look()
    sent = pipeline.publish(name)
    return Held(dag_id, airflow.trigger(dag_id), pipeline, before, sent)


def ends_once(airflow: AirflowPlatform, held: Held, *, committed_by: int, tries: list[str]) -> None:
    """Wait for success; check that the given try wrote everything once, and the states of Airflow's tries."""
    state = airflow.wait_for_run(held.dag_id, held.run_id)
    seen = [str(ti["state"]) for ti in airflow.api.tries(held.dag_id, held.run_id, "copy")]
    log = airflow.task_log(held.dag_id, held.run_id, "copy", len(seen))
    assert state == "success", log[-6000:]
    after = held.pipeline.look()
    assert after == grown(held.before, held.sent, runs=after.runs)
    assert added(held.before, after) == [(held.run_id, committed_by)]
    assert seen == tries, airflow.logs()
