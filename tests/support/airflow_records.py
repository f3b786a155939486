"""Rows of Airflow's metadata database as scheduler and workers write them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow_eos.operators.failure_record import FAILURE_KEY, FailureRecord

RECENT = dt.datetime(2026, 11, 20, 22, tzinfo=dt.timezone.utc)
"""Default start of attempts."""


def dag_known(dag_id: str) -> None:
    """Register a Dag with Airflow."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="pages"))
        session.flush()
        session.merge(DagModel(dag_id=dag_id, bundle_name="pages", is_stale=False))


def attempted(
    dag_id: str,
    task_id: str = "copy",
    *,
    run_id: str = "r1",
    state: str | None = "failed",
    at: dt.datetime = RECENT,
    failure: FailureRecord | dict[str, Any] | str | None = None,
    fields: dict[str, Any] | None = None,
    started: bool = True,
    map_index: int = -1,
    try_number: int = 1,
    max_tries: int = 2,
    operator: str = "ReadProcessWriteOperator",
) -> None:
    """Write a task instance, and its Dag run unless it exists.

    :param failure: value of its failure XCom.
    :param fields: rendered fields besides the group ``"<dag_id>-group"``; stored if it has started.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import insert, select
    from sqlalchemy.orm import Session

    def add(session: Session, model: Any, **values: Any) -> None:
        session.execute(insert(model.__table__).values(**values))

    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance, uuid7

    dag_known(dag_id)
    named = {"dag_id": dag_id, "run_id": run_id}
    task = {**named, "task_id": task_id, "map_index": map_index}
    with create_session() as session:
        query = select(DagRun.id).filter_by(**named)
        if session.scalar(query) is None:
            moments = {"start_date": at, "run_after": at, "queued_at": at}
            add(session, DagRun, **named, **moments, run_type="manual", state="running", clear_number=0)
        add(
            session,
            TaskInstance,
            id=uuid7(),
            **task,
            state=state,
            operator=operator,
            start_date=at if started else None,
            try_number=try_number if started else 0,
            max_tries=max_tries,
            pool="default_pool",
            pool_slots=1,
        )
        if started:
            rendered = {"group_id": f"{dag_id}-group", "pipeline": None, **(fields or {})}
            add(session, RenderedTaskInstanceFields, **task, rendered_fields=rendered)
        if failure is not None:
            value = failure.to_value() if isinstance(failure, FailureRecord) else failure
            add(session, XComModel, **task, dag_run_id=session.scalar(query), key=FAILURE_KEY, value=value)


def forget_attempts() -> None:
    """Delete all Dag runs, with everything that belongs to them."""
    from airflow.models.dagrun import DagRun
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        for model in (XComModel, RenderedTaskInstanceFields, TaskInstance, DagRun):
            session.execute(delete(model))
