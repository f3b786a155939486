"""Refuses a record that another task of the Dag committed: this task would succeed without doing its work.

Law 7 compares the work of a record with the requested work. Two tasks of one pipeline may request the same
work, topics, ranges and sink, and differ only in their functions, which cannot be compared.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import DifferentWork
from airflow_eos.ledger.records.run_record import AIRFLOW
from airflow_eos.operators.task_identity import clear_number, task_of
from airflow_eos.run.work import OWN_PIPELINE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ledger.records.run_record import RunRecord

log = logging.getLogger(__name__)

_REORDERED = (
    "The list that the task is mapped over had another order then, and an element may have been left out: "
    "give the list a fixed order (a set has none), then clear all instances of the task"
)


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """The key of a task instance, as in the ledger."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int

    @classmethod
    def from_dict(cls, names: Any) -> TaskInstance | None:
        """Read the detail of a record, which others may have written; None if it does not name a task."""
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

    Accepts a record of a task that the Dag no longer has under this pipeline (a renamed task keeps its
    records), and of another instance in an earlier Dag run or before a clear (lists may have changed their
    order). A record of another Dag is only logged, because a task cannot know whether that Dag was renamed.

    :param task: the operator, as it runs.
    :param told_apart: whether the instances of this mapped task are different runs, at whatever map index.
    :raises DifferentWork: names both tasks and the alternatives.
    """
    names = task_of(context, task.dag_id, task.task_id)
    author, asking = TaskInstance.from_dict(record.details.get(AIRFLOW)), TaskInstance.from_dict(names)
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
    advice = f"{OWN_PIPELINE}. Where either may do this work: on_committed='accept' lets the record stand"
    if author.task_id == asking.task_id:
        other = author.run_id == asking.run_id and author.map_index != asking.map_index
        if other and told_apart:
            is_reordered = min(author.map_index, asking.map_index) >= 0  # not mapped or unmapped since
            start, advice = record.of_task("dag_run_start"), _REORDERED
            was_cleared = start is None or start != names["dag_run_start"] or clear_number(context) > 0
            other = is_reordered and not was_cleared
            if is_reordered and was_cleared:
                log.warning("%s was committed by %s in this Dag run. %s", record.run_key, author, _REORDERED)
    else:
        other = _has_task(context["dag"], author.task_id, record.pipeline)
    if other:
        raise DifferentWork(
            f"the ledger's record of {record.run_key} is of other work with the same name: recorded task "
            f"{author} in Dag run {author.run_id!r}, asked {asking}. {advice}"
        )


def _has_task(dag: Any, task_id: str, pipeline: str) -> bool:
    """Return whether the Dag still has this task, and its runs may be those of the pipeline."""
    if not dag.has_task(task_id):
        return False
    task = dag.get_task(task_id)
    if not hasattr(getattr(task, "operator_class", type(task)), "run_fields"):
        return False  # another kind of task has taken its id
    templates = getattr(task, "_templates", None)
    if templates is None or "pipeline" in templates:  # mapped, or known only in that task
        return True
    return bool((task.pipeline or f"{dag.dag_id}.{task_id}") == pipeline)
