"""Shows what a run would read if it started now, without fencing, pinning or committing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_eos.engine.committed import record_of
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import utc_now
from airflow_eos.model.spec import MayCreate, RunSpec
from airflow_eos.run import laws
from airflow_eos.run.boundaries import Unpinned
from airflow_eos.run.planner import Planner
from airflow_eos.run.topics import described
from airflow_eos.run.work import SINK, WorkDefinition, differences


@dataclass(frozen=True, slots=True)
class RunPreview:
    """The plan of a run that started now.

    :param notes: notes of the plan, and differences from other work with the same run key.
    :param committed: the run's record; None if it is not committed.
    """

    run_key: str
    transactional_id: str
    plan: RunPlan
    notes: tuple[str, ...]
    committed: RunRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``ranges`` as ``[topic, partition, start, end]``."""
        return {
            "run_key": self.run_key,
            "transactional_id": self.transactional_id,
            "mode": self.plan.mode,
            "group": self.plan.offsets_group,
            "advances": self.plan.advances,
            "records_at_most": self.plan.offsets,
            "ranges": [offsets.to_list() for offsets in self.plan.ranges],
            "notes": list(self.notes),
            "committed": None if self.committed is None else self.committed.summary(),
        }


def preview(spec: RunSpec) -> RunPreview:
    """Return ids, ranges and notes of a spec's run, and its record if it is committed.

    :raises PlanError: as the run would: pruned, no starting point, a moved cursor, ...
    """
    key = keys.run_key(spec)
    with ControlPlane(spec) as control, control.refusing_lost_ledger():
        ledger_id = control.known_ledger(spec, MayCreate.NEVER)
        record = record_of(control.authority, spec.pipeline, key)
        boundaries = Unpinned(control.cluster, control.pins, spec.prefix, utc_now, control.authority)
        if keys.moves_cursor(spec):
            laws.group_is_empty(spec.group_id, control.cluster.describe_group(spec.group_id).members)
        planner = Planner(spec, control.cluster, control.authority, boundaries, ledger_id, utc_now)
        plan = planner.plan(described(control.cluster, {"source": spec.source_topics})).plan
    notes = (*plan.notes, *boundaries.notes, *_other_work(spec, record))
    return RunPreview(key, keys.transactional_id(spec), plan, notes, record)


def _other_work(spec: RunSpec, record: RunRecord | None) -> list[str]:
    recorded = None if record is None else WorkDefinition.recorded(record)
    differing = [] if recorded is None else differences(recorded, WorkDefinition.of(spec))
    return [
        f"the ledger's record is of other work: {difference}"
        for difference in differing
        if spec.sink_topic is not None or difference.field != SINK
    ]
