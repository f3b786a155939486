"""Is it committed? Asked from outside a run, by a spec or by the key of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError, NotYetVisible
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.model.spec import Deployment, LedgerSettings, MayCreate, RunSpec
from airflow_eos.run import laws
from airflow_eos.run.lookup import CommittedRuns
from airflow_eos.run.visibility import Visibility
from airflow_eos.run.work import as_named

log = logging.getLogger(__name__)


def find_committed(spec: RunSpec) -> RunRecord | None:
    """Return the committed record of a spec's run, once readers see all of its output.

    None says nothing: only a run under its fence may believe a no.

    :raises DifferentWork: the record of that name is of other work.
    """
    asked = spec if spec.on_committed == "accept" else replace(spec, on_committed="skip")
    try:
        return answer(asked)
    except NotYetVisible as error:
        log.info("%s", error)
        return None


def answer(spec: RunSpec, *, may_create: MayCreate = MayCreate.NEVER, wait: bool = False) -> RunRecord | None:
    """Return the record that a run of this spec would be answered with, without touching anything.

    None: it would do the work, or find out under its fence that it need not.

    :param may_create: whether to make a missing ledger.
    :param wait: wait for a record whose transaction is still being ended.
    :raises RunAlreadyCommitted: ``on_committed`` is ``fail`` and another run committed it.
    :raises DifferentWork: the record of that name is of other work.
    :raises NotYetVisible: it is committed, but some leader does not show it.
    :raises OutcomeUnknown: ``wait``, and such a transaction stays open.
    """
    if spec.round is not None:
        spec = replace(spec, round=None)
    with ControlPlane(spec) as control:
        if may_create is MayCreate.NEVER:
            control.verify_ledger()
        else:
            control.verify_ledger_of_run(may_create=may_create)
        found = CommittedRuns(spec, control.authority).ask(fenced=False, wait=wait)
        if not isinstance(found, RunRecord):
            return None
        seconds = spec.transaction_timeout.total_seconds() if wait else 0.0
        Visibility(control.cluster, control.transactions).wait_for_found(found, seconds=seconds)
        return found


def find_committed_by_key(
    kafka: Mapping[str, Any],
    settings: LedgerSettings,
    prefix: str,
    *,
    pipeline: str,
    run_key: str,
    work: Mapping[str, Any] | None = None,
) -> RunRecord | None:
    """Return the committed record of a run key, once readers see all of its output.

    None says nothing: only a fence makes a no believable.

    :param work: what is known of the run: fields of the JSON form of a
        :class:`~airflow_eos.run.work.WorkDefinition`.
    :raises LedgerMissing: when there is no initialised ledger.
    :raises LedgerPruned: it was committed, and its record was pruned.
    :raises DifferentWork: the run of that name did something else.
    """
    if not run_key:
        raise ConfigurationError("run_key is empty; `airflow eos ledger --pipeline NAME` lists run keys")
    # A cursor that reads in rounds is committed with its last one.
    names = (run_key, keys.last_key(run_key))
    wanted = [keys.run_record_key(name) for name in names]
    whole = keys.whole_run_key(run_key)
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        control.verify_ledger()
        found = control.authority.peek([*wanted, keys.pruned_key(pipeline, whole)], routing=pipeline)
        record = next((RunRecord.from_json(found[key], key) for key in wanted if key in found), None)
        if record is None:
            laws.not_pruned(whole, pipeline, found)
            return None
        named = as_named(record, work or {})
        if named is not None:
            laws.same_work(record, record.producer.transactional_id, named)
        if hidden := Visibility(control.cluster, None).missing(record):
            log.info("%s is committed, not yet visible in %s", run_key, "; ".join(hidden))
            return None
    return record
