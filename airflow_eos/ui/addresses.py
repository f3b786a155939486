"""Finds the page for a Dag, a Dag run or a task instance of Airflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ui.attempts import Attempt
from airflow_eos.ui.known_runs import KnownRuns
from airflow_eos.ui.record_parts import task_of_record
from airflow_eos.ui.trouble import Trouble
from airflow_eos.ui.viewer import Viewer


@dataclass(frozen=True, slots=True)
class Requested:
    """The requested Dag, Dag run or task instance; an empty name matches any.

    :param map_index: a number, or another text of Airflow for a task that is not mapped.
    """

    dag_id: str
    run_id: str = ""
    task_id: str = ""
    map_index: str = ""

    def names(self, task: Mapping[str, Any]) -> bool:
        """Return whether these names match a task instance, also if Airflow 3.1 did not encode them.

        It puts raw names into the addresses of tabs, where a plus is decoded as a blank.
        """
        values = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": self.task_id}
        if self.map_index.isdecimal():
            values["map_index"] = self.map_index
        return all(
            not name or name in (str(task[key]), str(task[key]).replace("+", " "))
            for key, name in values.items()
        )


def runs_of(history: KnownRuns, viewer: Viewer, query: Requested) -> Iterator[RunRecord]:
    """Return the runs in memory that match and that the user may see, newest first."""
    for pipeline in viewer.pipelines(history):
        for record in reversed(pipeline.runs.values()):
            if viewer.may_see(record) and query.names(task_of_record(record)):
                yield record


def page_of(runs: Iterable[RunRecord], attempts: Iterable[Attempt], query: Requested) -> str:
    """Return the page of the only matching run or pipeline, or the list of all of them.

    :raises Trouble: no pipeline matches.
    """
    committed = list(runs)
    tried = [attempt for attempt in attempts if query.names(asdict(attempt))]
    if query.run_id and query.task_id and len(committed) == 1:
        return f"/run?{urlencode({'pipeline': committed[0].pipeline, 'key': committed[0].run_key})}"
    pipelines = {run.pipeline for run in committed} | {attempt.pipeline for attempt in tried}
    if not pipelines:
        text = "None of its tasks has run a pipeline lately, as far as you may see."
        raise Trouble(404, "No pipeline is known here", text)
    if len(pipelines) == 1:
        return f"/pipeline?{urlencode({'name': pipelines.pop()})}"
    return f"/?{urlencode({'dag': query.dag_id})}"
