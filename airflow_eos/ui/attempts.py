"""The last tries of tasks that run pipelines, from Airflow's metadata database."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import JSON, and_, func, or_, select, tuple_, type_coerce
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_eos.operators.failure_record import FAILURE_KEY, FailureRecord

log = logging.getLogger(__name__)

OPERATORS = (
    "ReadProcessWriteOperator",
    "ReadProcessWriteSubmitOperator",
    "ReplayOffsetRangesOperator",
    "_KafkaEosDecoratedOperator",
)
"""Classes of this package that run a pipeline, as Airflow names them in task instances."""
RUNS_OF_A_DAG = 10
"""Number of newest runs of a Dag that are read."""
LOOKED_BACK = dt.timedelta(days=31)
"""Maximum age of Dag runs that are read."""

Tasks = Mapping[tuple[str, str, int], str]
"""Pipelines by Dag id, task id and map index."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The latest try of one task instance.

    :param group: consumer group; empty before the task's first start.
    :param map_index: -1 if the task is not mapped.
    :param state: Airflow's state of the task instance; empty before it is scheduled.
    :param try_number: number of the latest try, from 1; 0 before the first.
    :param max_tries: number of tries after the first that Airflow may make.
    :param at: start of the try, or else of its Dag run; aware.
    """

    pipeline: str
    group: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    state: str
    try_number: int
    max_tries: int
    at: dt.datetime
    failure: FailureRecord | None = None


def read_attempts(
    dag_ids: Collection[str], now: dt.datetime, tasks: Tasks | None = None
) -> list[Attempt] | None:
    """Return the attempts in the newest runs of Dags, the newest first.

    None if this process cannot, or may not, read Airflow's metadata database; its log has the reason.

    :param dag_ids: Dags that the user may see; no others are read.
    :param tasks: tasks that run a pipeline, of any class of operator.
    """
    if not dag_ids:
        return []
    permitted = frozenset(dag_ids)
    pipelines = {task: pipeline for task, pipeline in (tasks or {}).items() if task[0] in permitted}
    try:
        with create_session(scoped=False) as session:
            rows = list(_rows(session, permitted, now, pipelines).mappings())
    # RuntimeError: no session in this process; ValueError: the driver cannot encode a name.
    except (SQLAlchemyError, RuntimeError, ValueError) as error:
        log.warning("The page cannot read Airflow's metadata database", exc_info=error)
        return None
    rows.sort(key=_moment, reverse=True)
    for row in reversed(rows):  # the newest last: it replaces the others
        if row["group"]:
            pipelines[row["dag_id"], row["task_id"], row["map_index"]] = _pipeline(row)
    of_task: dict[tuple[str, str], set[str]] = {}
    for (dag_id, task_id, _), pipeline in pipelines.items():
        of_task.setdefault((dag_id, task_id), set()).add(pipeline)
    return [_attempt(row, pipeline) for row in rows for pipeline in _pipelines(row, pipelines, of_task)]


def _rows(session: Session, dag_ids: Collection[str], now: dt.datetime, tasks: Tasks) -> Any:
    started = func.coalesce(DagRun.start_date, DagRun.queued_at, DagRun.run_after)
    order = (started.desc(), DagRun.id.desc())
    runs = (
        select(
            DagRun.dag_id,
            DagRun.run_id,
            started.label("started"),
            func.row_number().over(partition_by=DagRun.dag_id, order_by=order).label("rank"),
        )
        .where(DagRun.dag_id.in_(dag_ids), started >= now - LOOKED_BACK)
        .subquery()
    )
    task = TaskInstance
    fields = RenderedTaskInstanceFields
    rendered = type_coerce(fields.rendered_fields, JSON)  # Airflow 3.1 has a type without elements
    columns = ("dag_id", "task_id", "run_id", "map_index")

    def same(other: Any) -> list[Any]:
        return [getattr(other, name) == getattr(task, name) for name in columns]

    conditions = [task.operator.in_(OPERATORS), XComModel.key.is_not(None)]
    if tasks:
        conditions.append(tuple_(task.dag_id, task.task_id).in_(list({task[:2] for task in tasks})))
    return session.execute(
        select(
            *(getattr(task, name) for name in columns),
            task.state,
            task.try_number,
            task.max_tries,
            task.start_date,
            runs.c.started,
            rendered["pipeline"].as_string().label("pipeline"),
            rendered["group_id"].as_string().label("group"),
            XComModel.value.label("failure"),
        )
        .join(runs, and_(runs.c.dag_id == task.dag_id, runs.c.run_id == task.run_id))
        .outerjoin(fields, and_(*same(fields)))
        .outerjoin(XComModel, and_(*same(XComModel), XComModel.key == FAILURE_KEY))
        .where(runs.c.rank <= RUNS_OF_A_DAG, or_(*conditions))
    )


def _attempt(row: Mapping[str, Any], pipeline: str) -> Attempt:
    failure = FailureRecord.from_value(row["failure"])
    return Attempt(
        pipeline=pipeline,
        group=row["group"] or "",
        dag_id=row["dag_id"],
        task_id=row["task_id"],
        run_id=row["run_id"],
        map_index=row["map_index"],
        state=row["state"] or "",
        try_number=row["try_number"],
        max_tries=row["max_tries"],
        at=_moment(row),
        failure=failure if failure is not None and failure.try_number == row["try_number"] else None,
    )


def _pipelines(
    row: Mapping[str, Any], by_task: Tasks, of_task: Mapping[tuple[str, str], Collection[str]]
) -> Collection[str]:
    """Return the pipelines of a task instance: all of its task's if Airflow has not expanded it yet."""
    if row["group"]:
        return [_pipeline(row)]
    task = (row["dag_id"], row["task_id"])
    if (pipeline := by_task.get((*task, row["map_index"]))) is not None:
        return [pipeline]
    pipelines = sorted(of_task.get(task, ()))
    is_of_all = len(pipelines) == 1 or (pipelines and row["map_index"] < 0)
    return pipelines if is_of_all else [_pipeline(row)]


def _pipeline(row: Mapping[str, Any]) -> str:
    """Return the pipeline by the rendered fields, which Airflow stores when a try starts, or its default."""
    return row["pipeline"] or f"{row['dag_id']}.{row['task_id']}"


def _moment(row: Mapping[str, Any]) -> dt.datetime:
    """Return the start of a try, or else of its Dag run.

    Clearing restarts a Dag run, but a waiting task in it keeps its old start.
    """
    moments = [moment for moment in (row["start_date"], row["started"]) if moment is not None]
    return max(moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc) for moment in moments)
