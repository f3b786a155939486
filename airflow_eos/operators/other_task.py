"""Refuses the answer of another task of the Dag: green, this task would have done nothing of its own.

Law 7 compares the work of a record with the work that is asked for. Two tasks of one pipeline may ask for the
same work, topics, ranges and sink, and differ in their functions alone, which cannot be compared.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger.records.run_record import AIRFLOW
from airflow_eos.operators.task_identity import task_of
from airflow_eos.run.work import OWN_PIPELINE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ledger.records.run_record import RunRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """The names of a task instance, as the ledger keeps them."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int

    @classmethod
    def from_dict(cls, names: Any) -> TaskInstance | None:
        """Read the detail of a record, which may be a stranger's; None if it does not name a task."""
        match names:
            case {
                "dag_id": str(dag_id),
                "task_id": str(task_id),
                "run_id": str(run_id),
                "map_index": int(map_index),
            }:
                return cls(dag_id, task_id, run_id, map_index)
        return None

    def __str__(self) -> str:
        return f"{self.task_id!r}" + (f" (map index {self.map_index})" if self.map_index >= 0 else "")


def refuse_other_task(task: Any, context: Context, record: RunRecord, *, told_apart: bool) -> None:
    """Refuse a record that another task of the Dag, or another instance of this mapped one, has written.

    Not one of a task that the Dag no longer has under this pipeline: it was renamed, and keeps its records.
    Nor one of an earlier Dag run's instance: lists may have changed their order. One of another Dag is logged
    alone, since a task cannot know whether that Dag was renamed.

    :param task: the operator, as it runs.
    :param told_apart: the instances of this mapped task are runs of their own, at whatever map index.
    :raises DifferentWork: names both, and the ways on.
    """
    author = TaskInstance.from_dict(record.details.get(AIRFLOW))
    asking = TaskInstance.from_dict(task_of(context, task.dag_id, task.task_id))
    if author is None or asking is None or author == asking or task.on_committed == "accept":
        return
    if author.dag_id != asking.dag_id:
        log.warning(
            "%s was committed by task %s of Dag %r, and this task did nothing. If that Dag still runs, set "
            "pipeline= to another name",
            record.run_key,
            author,
            author.dag_id,
        )
        return
    if author.task_id == asking.task_id:
        other = not told_apart and author.run_id == asking.run_id and author.map_index != asking.map_index
    else:
        other = _has_task(context["dag"], author.task_id, record.pipeline)
    if other:
        raise DifferentWork(
            f"the ledger's record of {record.run_key} is of other work with the same name: recorded task "
            f"{author} in Dag run {author.run_id!r}, asked {asking}. {OWN_PIPELINE}. "
            "Where either may do this work: on_committed='accept' lets the record stand"
        )


def _has_task(dag: Any, task_id: str, pipeline: str) -> bool:
    """Return whether the Dag has a task whose runs may have the name."""
    if not dag.has_task(task_id):
        return False
    task = dag.get_task(task_id)
    if not hasattr(getattr(task, "operator_class", type(task)), "run_fields"):
        return False  # another kind of task has taken its id
    templates = getattr(task, "_templates", None)
    if templates is None or "pipeline" in templates:  # mapped, or known in that task alone
        return True
    return bool((task.pipeline or f"{dag.dag_id}.{task_id}") == pipeline)
