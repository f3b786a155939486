"""What a run would read, if it started now: nothing is fenced, pinned or committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.engine.unpinned import Unpinned
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.model.spec import MayCreate
from airflow_eos.run import laws
from airflow_eos.run.planner import Planner
from airflow_eos.run.work import SINK, WorkDefinition, differences

if TYPE_CHECKING:
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.spec import RunSpec


@dataclass(frozen=True, slots=True)
class RunPreview:
    """What a run would read.

    :param plan: as the run would make it now.
    :param notes: those of the plan, and where a record in the ledger is of other work.
    :param committed: the run's record; None: it is not committed.
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
    """Return ids, ranges and notes of the run a spec describes, and its record where it is committed.

    :raises PlanError: what a run would raise: pruned, no starting point, a moved cursor, ...
    """
    key = keys.run_key(spec)
    record_key = keys.run_record_key(key)
    with ControlPlane(spec) as control, control.refusing_lost_ledger():
        known = control.verify_ledger_of_run(may_create=MayCreate.NEVER)
        whole = keys.whole_run_key(key)
        found = control.authority.peek(
            [record_key, keys.pruned_key(spec.pipeline, whole)], routing=spec.pipeline
        )
        value = found.get(record_key)
        if value is None:
            laws.not_pruned(whole, spec.pipeline, found)
        record = None if value is None else RunRecord.from_json(value, record_key)
        boundaries = Unpinned(control, spec.prefix)
        planner = Planner(spec, control.cluster, control.authority, boundaries, known, utc_now)
        plan = planner.plan().plan
    notes = (*plan.notes, *boundaries.notes, *_other_work(spec, record))
    return RunPreview(key, keys.transactional_id(spec), plan, notes, record)


def _other_work(spec: RunSpec, record: RunRecord | None) -> list[str]:
    """Say where the record is of other work; a spec without a sink does not ask for one."""
    recorded = None if record is None else WorkDefinition.recorded(record)
    found = [] if recorded is None else differences(recorded, WorkDefinition.of(spec))
    return [
        f"the ledger's record is of other work: {one}"
        for one in found
        if spec.sink_topic is not None or one.field != SINK
    ]
