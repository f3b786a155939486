"""What a run would read, if it started now: nothing is fenced, pinned or committed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.ledger import keys
from airflow_eos.model.record import RunRecord
from airflow_eos.model.spec import MayCreate
from airflow_eos.run import laws
from airflow_eos.run.boundaries import Boundaries, Boundary, Pinned, neighbours
from airflow_eos.run.planner import Planner
from airflow_eos.run.work import SINK, WorkDefinition, differences

if TYPE_CHECKING:
    from airflow_eos.ledger.authority import Authority
    from airflow_eos.model.kafka import TopicDescription
    from airflow_eos.model.spec import RunSpec


def preview(spec: RunSpec) -> dict[str, Any]:
    """Return ids, ranges and notes of the run a spec describes, and its record where it is committed.

    :raises PlanError: what a run would raise: pruned, no starting point, a moved cursor, ...
    """
    key = keys.run_key(spec)
    record_key = keys.run_record_key(key)
    with ControlPlane(spec) as control:
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
    return {
        "run_key": key,
        "transactional_id": keys.transactional_id(spec),
        "mode": plan.mode,
        "group": plan.offsets_group,
        "advances": plan.advances,
        "records_at_most": sum(one.span for one in plan.ranges),
        "ranges": [one.to_list() for one in plan.ranges],
        "notes": [*plan.notes, *boundaries.notes, *_other_work(spec, record)],
        "committed": None if record is None else record.summary(),
    }


def _other_work(spec: RunSpec, record: RunRecord | None) -> list[str]:
    """Say where the record is of other work; a spec without a sink does not ask for one."""
    recorded = None if record is None else WorkDefinition.recorded(record)
    found = [] if recorded is None else differences(recorded, WorkDefinition.of(spec))
    return [
        f"the ledger's record is of other work: {one}"
        for one in found
        if spec.sink_topic is not None or one.field != SINK
    ]


class Unpinned(Boundaries):
    """Reads pinned boundaries, works out the others and leaves them unpinned.

    :param now: the current time, aware.
    :param asks_ledger: whether what is pinned counts; without it all is worked out.
    """

    def __init__(
        self,
        control: ControlPlane,
        prefix: str,
        now: Callable[[], dt.datetime] = utc_now,
        *,
        asks_ledger: bool = True,
    ) -> None:
        super().__init__(control.cluster, control.pins, prefix, now)
        self._authority: Authority = control.authority
        self._asks_ledger = asks_ledger
        self.notes: list[str] = []

    def boundary(
        self,
        topic: TopicDescription,
        moment: dt.datetime,
        lateness: dt.timedelta,
        *,
        accept_deleted: bool = False,
    ) -> Boundary:
        """Return the boundary as the ledger has it, or as it would be pinned now."""
        key = keys.boundary_key(topic.topic, moment)
        pinned = self._known(topic.topic, key, neighbours(topic.topic, moment))
        if key in pinned:
            return self.known(topic, pinned[key], accept_deleted=accept_deleted)
        self.notes.append(f"{topic.topic}: the boundary at {keys.utc_text(moment)} is not pinned yet")
        near = Pinned(
            topic, moment, pinned, lambda: self._known(topic.topic, key, keys.boundary_prefix(topic.topic))
        )
        return self.compute(topic, moment, lateness, near, accept_deleted=accept_deleted)

    def _known(self, topic: str, key: str, prefix: str) -> Mapping[str, str]:
        if not self._asks_ledger:
            return {}
        return self._authority.settle([key], routing=topic, prefixes=(prefix,))
