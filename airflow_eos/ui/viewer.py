"""The pipelines and runs that a user may see: those of the user's Dags in Airflow."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ui.known_runs import KnownRuns, PipelineHistory
from airflow_eos.ui.trouble import Trouble

NOT_SHOWN = 403
"""HTTP status for an object that does not exist, or belongs to another user."""


@dataclass(eq=False)
class Viewer:
    """A user's permissions.

    :param name: name of the user; the number of concurrent queries per user is limited.
    :param is_admin: whether the user may see transactions without a Dag.
    :param sees_attempts: whether the user may see task instances of these Dags and their XComs, with errors.
    """

    dag_ids: AbstractSet[str]
    name: str = ""
    is_admin: bool = field(default=False, kw_only=True)
    sees_attempts: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.dag_ids = frozenset(self.dag_ids) - {""}

    def may_see(self, record: RunRecord) -> bool:
        """Return whether the record names a Dag that this user may see."""
        return record.dag_id in self.dag_ids

    def pipelines(self, history: KnownRuns) -> list[PipelineHistory]:
        """Return the user's pipelines, sorted by name."""
        visible = [pipeline for pipeline in history.pipelines.values() if self.newest(pipeline) is not None]
        return sorted(visible, key=lambda pipeline: pipeline.name)

    def pipeline(self, history: KnownRuns, name: str) -> PipelineHistory:
        """Return one pipeline.

        :raises Trouble: it does not exist, or the user may not see it; the message does not tell which.
        """
        pipeline = history.pipelines.get(name)
        if pipeline is None or self.newest(pipeline) is None:
            raise not_shown("pipeline")
        return pipeline

    def newest(self, pipeline: PipelineHistory) -> RunRecord | None:
        """Return the newest visible record of a pipeline; None if there is none."""
        return next((record for record in reversed(pipeline.runs.values()) if self.may_see(record)), None)

    def topics(self, pipeline: PipelineHistory) -> frozenset[str]:
        """Return the source topics of a pipeline's visible records."""
        seen = (record for record in pipeline.runs.values() if self.may_see(record))
        return frozenset(range_.topic for record in seen for range_ in record.ranges)


def not_shown(subject: str) -> Trouble:
    """Return the error about an object that does not exist, or belongs to another user."""
    text = f"There is no such {subject}, or it belongs to a Dag that you may not see."
    return Trouble(NOT_SHOWN, "Not shown", text)
