"""Finds the committed record of a run, by a spec or by a run key, from outside the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError, NotYetVisible
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import Deployment, MayCreate, RunSpec
from airflow_eos.run import laws
from airflow_eos.run.lookup import CommittedRuns
from airflow_eos.run.work import as_named

log = logging.getLogger(__name__)


def find_committed(spec: RunSpec) -> RunRecord | None:
    """Return the committed record of a spec's run, once all of its output is visible to readers.

    None does not prove that the run is uncommitted: only a run under its fence can know that. With
    ``on_committed="reprocess"`` it is a repetition, not what another run or clear has committed.

    :raises DifferentWork: the record of that name describes other work.
    """
    query = replace(spec, on_committed="skip") if spec.on_committed == "fail" else spec
    try:
        return answer(query)
    except NotYetVisible as error:
        log.info("%s", error)
        return None


def answer(spec: RunSpec, *, may_create: MayCreate = MayCreate.NEVER, wait: bool = False) -> RunRecord | None:
    """Return the record that a run of this spec would find in the ledger, without fencing or writing.

    None if the run would do the work, or would find a record only under its fence.

    :param may_create: whether to create a missing ledger.
    :param wait: wait for a record whose transaction has not ended yet.
    :raises RunAlreadyCommitted: ``on_committed`` is ``fail`` and another run committed it.
    :raises DifferentWork: the record of that name describes other work.
    :raises NotYetVisible: it is committed, but not yet visible on all leaders.
    :raises OutcomeUnknown: with ``wait``, such a transaction stays open.
    """
    if spec.round is not None:
        spec = replace(spec, round=None)
    with ControlPlane(spec) as control:
        if may_create is MayCreate.NEVER:
            control.verify_ledger()
        else:
            control.known_ledger(spec, may_create)
        record = CommittedRuns(spec, control.authority).ask(fenced=False, wait=wait)
        if not isinstance(record, RunRecord):
            return None
        seconds = spec.transaction_timeout.total_seconds() if wait else 0.0
        control.visibility.wait(record, seconds=seconds)
        return record


def record_of(authority: Authority, pipeline: str, run_key: str) -> RunRecord | None:
    """Return the record of a run key, of its last round if it reads in rounds; None proves nothing.

    :raises LedgerPruned: the run was committed, and its record was pruned.
    """
    wanted = [keys.run_record_key(name) for name in (run_key, keys.last_key(run_key))]
    whole = keys.whole_run_key(run_key)
    values = authority.peek([*wanted, keys.pruned_key(pipeline, whole)], routing=pipeline)
    record = next((RunRecord.from_json(values[key], key) for key in wanted if key in values), None)
    if record is None:
        laws.not_pruned(whole, pipeline, values)
    return record


def find_committed_by_key(
    deployment: Deployment, *, pipeline: str, run_key: str, work: Mapping[str, Any] | None = None
) -> RunRecord | None:
    """Return the committed record of a run key, once all of its output is visible to readers.

    None does not prove that the run is uncommitted: only a run under its fence can know that.

    :param work: known parameters of the run: fields of the JSON form of a
        :class:`~airflow_eos.run.work.WorkDefinition`.
    :raises LedgerMissing: there is no initialised ledger.
    :raises LedgerPruned: the run was committed, and its record was pruned.
    :raises DifferentWork: the record of that name describes other work.
    """
    if not run_key:
        raise ConfigurationError("run_key is empty; `airflow eos ledger --pipeline NAME` lists run keys")
    with ControlPlane(deployment) as control:
        control.verify_ledger()
        record = record_of(control.authority, pipeline, run_key)
        if record is None:
            return None
        named = as_named(record, work or {})
        if named is not None:
            laws.same_work(record, record.producer.transactional_id, named)
        if hidden := control.visibility.missing(record):
            log.info("%s is committed, not yet visible in %s", run_key, "; ".join(hidden))
            return None
    return record
