"""Reports the state of a deployment: ledger, progress of groups, runs, open transactions, exceeded limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of, is_pruned
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.group_progress import GroupProgress, progress_of
from airflow_eos.operations.open_transactions import OpenTransaction, open_transactions
from airflow_eos.operations.queries import (
    LedgerNames,
    ledger_names,
    near,
    pruned_of,
    pruned_runs,
    readable_runs,
)
from airflow_eos.wording import counted

Kind = Literal["group", "pipeline", "transactional_id"]


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run whose record was pruned."""

    run_id: str

    def summary(self) -> dict[str, Any]:
        """Return the form that commands show."""
        return {"state": "PRUNED", "run_id": self.run_id}


RunInLedger = RunRecord | PrunedRun | LedgerUnreadable | None
"""The record of a run; None if there is none, an error if it is unreadable."""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """The state of all groups, pipelines and transactions of a deployment, or of those that were named.

    :param cursors: by consumer group; None without a record, an error if it is unreadable.
    :param runs: named runs by ``<pipeline>/<run id>``, with the latest record of a run in rounds or mapped
        tasks; None without a record.
    :param progress: by group, for groups with a readable cursor.
    :param open_transactions: the oldest first.
    :param names: all names in the ledger; None if groups or runs were named.
    """

    topic: str
    ledger: LedgerId
    cursors: Mapping[str, CursorRecord | LedgerUnreadable | None]
    runs: Mapping[str, RunInLedger]
    progress: Mapping[str, GroupProgress] = field(default_factory=dict)
    open_transactions: tuple[OpenTransaction, ...] = ()
    names: LedgerNames | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        identity = {"topic_id": self.ledger.topic_id, "partitions": self.ledger.partitions}
        cursors = {group: _cursor_summary(cursor) for group, cursor in self.cursors.items()}
        for group, progress in self.progress.items():
            cursors[group] = {**(cursors[group] or {}), **progress.to_dict()}
        runs = {name: _run_summary(run) for name, run in self.runs.items()}
        data = {"ledger": {"topic": self.topic, **identity}, "cursors": cursors, "runs": runs}
        data["open_transactions"] = [transaction.to_dict() for transaction in self.open_transactions]
        if self.names is not None:
            data["pipelines"] = {name: record.summary() for name, record in self.names.runs.items()}
            data["gaps"] = [gap.to_dict() for gap in self.names.gaps]
            data["tables"] = [_in_table(name, record) for name, record in self.names.in_tables.items()]
            data["intents"] = [intent.to_dict() for intent in self.names.intents]
        return data


def _in_table(pipeline: str, record: RunRecord) -> dict[str, Any]:
    table = record.details[TABLE]
    named = {"pipeline": pipeline, "table": table["sink"], "snapshot": table["snapshot"]}
    return {**named, "rows": table["rows"], "at": record.staged_at, "run_key": record.run_key}


def deployment_status(
    deployment: Deployment, *, groups: Sequence[str] = (), runs: Sequence[Sequence[tuple[str, str]]] = ()
) -> DeploymentStatus:
    """Return the state of groups and runs; of everything, if none are named.

    :param runs: for each run the pairs of pipeline and run id that its name may mean.
    :raises LedgerMissing: there is no initialised ledger.
    :raises BrokersUnavailable: no broker answers.
    """
    names = None if groups or runs else ledger_names(deployment)
    with ControlPlane(deployment) as control:
        ledger = control.verify_ledger()
        cursors = {group: _cursor_of(control, group) for group in (groups if names is None else names.groups)}
        by_name = {keys.run_name(*name): _run_of(control, *name) for meanings in runs for name in meanings}
        transactions = open_transactions(control) if groups or names is not None else []
        progress = {
            group: progress_of(control, group, cursor)
            for group, cursor in cursors.items()
            if isinstance(cursor, CursorRecord)
        }
    if names is None:
        transactions = _of_groups(transactions, deployment.prefix, groups)
    meant = dict(_meant(by_name, meanings) for meanings in runs)
    return DeploymentStatus(
        deployment.ledger.topic, ledger, cursors, meant, progress, tuple(transactions), names
    )


def _cursor_of(control: ControlPlane, group: str) -> CursorRecord | LedgerUnreadable | None:
    try:
        return control.authority.record(CursorRecord, keys.cursor_key(group), routing=group)
    except LedgerUnreadable as error:
        return error


def _run_of(control: ControlPlane, pipeline: str, run_id: str) -> RunInLedger:
    run_key = keys.cursor_run_key(pipeline, run_id)
    try:
        record = control.authority.record(RunRecord, keys.run_record_key(run_key), routing=pipeline)
    except LedgerUnreadable as error:
        return error
    if record is not None:
        return record
    # The keys of intervals, rounds and mapped tasks name more than the run.
    prefixes = tuple(keys.run_record_key(prefix) for prefix in keys.run_key_prefixes(pipeline))
    view = control.ledger.view(control.ledger.partition_for(pipeline), (), prefixes)
    by_offset = sorted(answer_of(view).committed.items(), key=lambda record: record[1].offset)
    records = [record for record in readable_runs(by_offset) if record.run_id == run_id]
    if records:
        return records[-1]
    whole, values = pruned_of(control, pipeline, run_key)
    return PrunedRun(run_id) if is_pruned(whole, pipeline, values) else None


def _run_summary(run: RunInLedger) -> dict[str, Any] | None:
    if isinstance(run, LedgerUnreadable):
        return {"state": f"unreadable: {run}"}
    return None if run is None else run.summary()


def _cursor_summary(cursor: CursorRecord | LedgerUnreadable | None) -> dict[str, Any] | None:
    if isinstance(cursor, LedgerUnreadable):
        return {"unreadable": str(cursor)}
    if cursor is None:
        return None
    return {
        "pipeline": cursor.pipeline,
        "layout": cursor.layout,
        "ends": {str(tp): end for tp, end in sorted(cursor.ends.items())},
        "run_key": cursor.run_key,
    }


def _meant(runs: Mapping[str, RunInLedger], meanings: Sequence[tuple[str, str]]) -> tuple[str, RunInLedger]:
    """Return the first of these names that is in the ledger, with its run; the first name without one."""
    answers = [(name, runs[name]) for name in (keys.run_name(*meaning) for meaning in meanings)]
    return next((answer for answer in answers if answer[1] is not None), answers[0])


def _of_groups(
    transactions: Sequence[OpenTransaction], prefix: str, groups: Sequence[str]
) -> list[OpenTransaction]:
    """Return the open transactions of the groups' cursors, even before their first commit."""
    return [
        transaction
        for transaction in transactions
        if any(keys.belongs_to(transaction.transactional_id, prefix, "", group) for group in groups)
    ]


def missing(deployment: Deployment, status: DeploymentStatus) -> list[tuple[str, str]]:
    """Return the named groups and runs that are not in the ledger, each with similar names or a reason."""
    groups = [name for name, cursor in status.cursors.items() if cursor is None]
    runs = [name for name, run in status.runs.items() if run is None]
    if not groups and not runs:
        return []
    names = ledger_names(deployment)
    entries = []
    for name in groups:
        hint = near(name, names.groups)
        if begun := _of_groups(status.open_transactions, deployment.prefix, [name]):
            age = begun[0].age_seconds
            hint = f"a first run has its transaction open for {age} s: it is at work, or was killed"
        entries.append((name, hint))
    for name in runs:
        pipeline, _ = keys.named_runs(name)[0]
        latest = names.runs.get(pipeline)
        hint = f"the latest run is {latest.run_id!r}" if latest else near(pipeline, tuple(names.runs))
        if latest and (pruned := pruned_runs(deployment, pipeline)):
            are = "is" if pruned == 1 else "are"
            hint = f"it may be pruned, as {counted(pruned, 'run')} of the pipeline {are}; {hint}"
        entries.append((name, hint))
    return entries


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that is exceeded.

    :param kind: kind of ``name``.
    :param value: None if unknown, which exceeds every limit.
    """

    kind: Kind
    name: str
    limit: str
    allowed: float
    value: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {self.kind: self.name, "limit": self.limit, "allowed": self.allowed, "found": self.value}


def exceeded(
    status: DeploymentStatus,
    *,
    max_lag: int | None = None,
    max_open: float | None = None,
    max_gaps: int | None = None,
) -> list[Exceeded]:
    """Return the limits that groups, pipelines and open transactions exceed; None for no limit.

    :param max_lag: unread offsets of a group, up to the high watermarks.
    :param max_open: seconds for which a transaction is open.
    :param max_gaps: gaps between the committed intervals of a pipeline.
    """
    allowed = {"max-lag": max_lag, "max-open": max_open, "max-gaps": max_gaps}
    return [
        Exceeded(kind, name, limit, most, value)
        for kind, name, limit, value in _measured(status)
        if (most := allowed[limit]) is not None and (value is None or value > most)
    ]


def _measured(status: DeploymentStatus) -> Iterator[tuple[Kind, str, str, float | None]]:
    """Yield kind and name of each measured object, the limit's name, and the value; None if unknown."""
    for group, cursor in status.cursors.items():
        if cursor is not None:
            progress = status.progress.get(group)  # an unreadable cursor has none
            unread = progress and progress.unread
            yield "group", group, "max-lag", unread.offsets_to_end if unread else None
            yield "group", group, "max-open", progress.oldest_open_seconds if progress else None
    gaps = () if status.names is None else status.names.gaps
    for pipeline, count in sorted(Counter(gap.pipeline for gap in gaps).items()):
        yield "pipeline", pipeline, "max-gaps", count
    own = [progress.open_transaction for progress in status.progress.values()]
    of_groups = {transaction.transactional_id for transaction in own if transaction is not None}
    for transaction in status.open_transactions:
        name = transaction.transactional_id
        if name not in of_groups:
            yield "transactional_id", name, "max-open", transaction.age_seconds
