"""Copies on a shared Spark Connect server: no task needs to start a JVM.

The transforms wait at a gate, after their attempt has taken the producer epoch and before anything is read.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
from pathlib import Path
from typing import Any

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG, Asset

from airflow_eos import Cursor, ReadProcessWriteOperator, ReplayOffsetRangesOperator
from airflow_eos.decorators.kafka_eos import kafka_eos_task


def copy_at(gate: str, df: Any, *, passing: int = 0) -> Any:
    """Wait at a gate, then copy."""
    from gates import hold

    hold(gate, passing=passing)
    return df.select("key", "value")


def plain_copy(df: Any) -> Any:
    """Copy key and value."""
    return df.select("key", "value")


class ReportsLate(ReadProcessWriteOperator):
    """Waits at a gate after its commit, before Airflow learns of it."""

    def finish(self, context: Any, record: Any) -> dict[str, Any]:
        from gates import hold

        hold("committed")
        return super().finish(context, record)


class StoppedAt(ReadProcessWriteOperator):
    """Calls :meth:`at` at every point of its run."""

    def at(self, point: str) -> None:
        raise NotImplementedError

    def execute(self, context: Any) -> dict[str, Any]:
        from airflow_eos import engine
        from airflow_eos.run.states import State
        from airflow_eos_testing.faults.held_run import HeldRun

        def run(*args: Any, on_state: Any) -> Any:
            def entered(point: str) -> None:
                if point in set(State):
                    on_state(State(point))
                self.at(point)

            return HeldRun(*args, entered)

        engine.RunAttempt = run  # type: ignore[assignment,misc]
        return super().execute(context)


class StaysOpen(StoppedAt):
    """Waits at a gate while its transaction is open."""

    def at(self, point: str) -> None:
        from gates import hold

        if point == "OPEN":
            hold("open")


class LosesItsAnswer(StoppedAt):
    """Commits, but loses the answer."""

    def at(self, point: str) -> None:
        if point == "COMMITTING":
            raise TimeoutError("the answer is lost")


COMMON: dict[str, Any] = {"conn_id": "spark_shared", "retry_delay": dt.timedelta(seconds=1)}


def pipeline(name: str, process: Any, **changes: Any) -> dict[str, Any]:
    """Return the parameters of a copy from ``<name>-in`` to ``<name>-out`` by the group ``<name>``."""
    given = {"topics": [f"{name}-in"], "sink_topic": f"{name}-out", "group_id": name, "retries": 1}
    return {"task_id": "copy", "process": process, **COMMON, **given, **changes}


with DAG("unlimited", schedule=None) as dag:
    # Without the default limit of one at a time, concurrent runs of one cursor fence each other.
    ReadProcessWriteOperator(
        **pipeline("unlimited", functools.partial(copy_at, "unlimited"), retries=3),
        max_active_tis_per_dag=None,
        outlets=[Asset("unlimited-out", uri="kafka://broker:9092/unlimited-out")],
    )

with DAG("one_at_a_time", schedule=None) as one_dag:
    ReadProcessWriteOperator(**pipeline("one", functools.partial(copy_at, "one"), retries=3))

with DAG("narrow", schedule=None, max_active_runs=1) as narrow_dag:
    # Two cursors, one slot, one Dag run at a time.
    for number in (1, 2):
        name = f"narrow{number}"
        given = pipeline(name, functools.partial(copy_at, "narrow"), task_id=f"copy{number}", pool="single")
        ReadProcessWriteOperator(**{**given, "topics": ["narrow-in"], "sink_topic": "narrow-out"})

with DAG("reports_late", schedule=None) as late_dag:
    ReportsLate(**pipeline("late", plain_copy))

with DAG("stays_open", schedule=None) as open_dag:
    StaysOpen(**pipeline("open", plain_copy))

with DAG("loses_its_answer", schedule=None) as lost_dag:
    LosesItsAnswer(**pipeline("lost", plain_copy))

for dag in (one_dag, lost_dag):
    enable_lineage(dag)


def limited_at_first(context: Any) -> None:
    """Give only the first try, which is held at the gate, a short execution time-out."""
    if context["ti"].try_number == 1:
        context["task"].execution_timeout = dt.timedelta(seconds=12)


with DAG("timed", schedule=None) as timed_dag:
    ReadProcessWriteOperator(
        **pipeline("timed", functools.partial(copy_at, "timed")), pre_execute=limited_at_first
    )

with DAG("rounds", schedule=None) as rounds_dag:
    ReadProcessWriteOperator(
        **pipeline("rounds", functools.partial(copy_at, "rounds", passing=1)),
        ranges=Cursor(max_records=40, until_caught_up=True),
    )

with DAG("cleared", schedule=None) as cleared_dag:
    # One task reprocesses committed work on purpose, the other one refuses to.
    for task_id, on_committed in (("again", "reprocess"), ("never", "fail")):
        given = pipeline(task_id, plain_copy, task_id=task_id, on_committed=on_committed)
        ReadProcessWriteOperator(**{**given, "topics": ["cleared-in"], "sink_topic": f"cleared-{task_id}"})

with DAG("replayed", schedule=None) as replayed_dag:
    ReplayOffsetRangesOperator(
        **pipeline("one", plain_copy, task_id="replay", sink_topic="replayed-out"),
        offset_ranges="{{ dag_run.conf['ranges'] | tojson }}",
        reason="{{ dag_run.conf['reason'] }}",
        confirm="{{ dag_run.conf['confirm'] }}",
    )

with DAG("mapped", schedule=None) as mapped_dag:

    @kafka_eos_task(
        topics=["mapped-in"],
        sink_topic="mapped-out",
        group_id="mapped",
        retries=1,
        max_active_tis_per_dag=None,
        **COMMON,
    )
    def copy(df: Any, source_partition: int) -> Any:
        assert source_partition in (0, 1)
        return df.select("key", "value")

    copy.expand(source_partition=[0, 1])


def copy_element(df: Any, name: str) -> Any:
    """Wait at the gate of an element, then copy."""
    return copy_at(name, df)


with DAG("listed", schedule=None) as listed_dag:
    # The list of another process may have another order, as one made from a set.
    is_reversed = Path(os.environ["EOS_TEST_FOLDER"], "listed.reversed").exists()
    ReadProcessWriteOperator.partial(task_id="copy", process=copy_element, retries=1, **COMMON).expand_kwargs(
        [
            {
                "pipeline": name,
                "topics": [f"{name}-in"],
                "sink_topic": f"{name}-out",
                "group_id": name,
                "op_kwargs": {"name": name},
            }
            for name in sorted(("listed1", "listed2"), reverse=is_reversed)
        ]
    )
