"""Creates a ledger, and lists its records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of, is_pruned
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.ledger import LedgerId, LedgerValue
from airflow_eos.model.spec import Deployment, MayCreate
from airflow_eos.model.versioned import JsonForm, V, finite, readable
from airflow_eos.operations.gaps import Gap, gaps
from airflow_eos.run import laws
from airflow_eos.wording import some_of

_DEEPEST = 100  # levels of JSON; YAML needs several frames of Python's stack for each


def create_ledger(deployment: Deployment, *, adopt_new: bool = False) -> LedgerId:
    """Create the ledger topic and pin its identity, unless both exist.

    :param adopt_new: also create it if an earlier ledger was lost; its runs may then be written again.
    :returns: topic id and number of partitions.
    :raises LedgerMissing: there is no ledger, there was one, and ``adopt_new`` is false.
    :raises LedgerReplaced: the topic is not the one that was initialised, or lost its identity.
    :raises ConfigurationError: the topic exists without an identity, and deletes records.
    """
    with ControlPlane(deployment) as control:
        return control.verify_ledger(
            may_create=MayCreate.ANYWAY if adopt_new else MayCreate.WHERE_NEW, to_write=True
        )


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
class LedgerStatus:
    """The identity of a ledger, and its records of groups and runs.

    A value is None if the ledger has no such record, an error if the record is unreadable.

    :param runs: runs by ``<pipeline>/<run id>``; of a run in rounds or mapped tasks its latest record.
    """

    topic: str
    ledger: LedgerId
    cursors: Mapping[str, CursorRecord | LedgerUnreadable | None]
    runs: Mapping[str, RunInLedger]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        identity = {"topic_id": self.ledger.topic_id, "partitions": self.ledger.partitions}
        return {
            "ledger": {"topic": self.topic, **identity},
            "cursors": {group: _cursor_summary(cursor) for group, cursor in self.cursors.items()},
            "runs": {name: _run_summary(run) for name, run in self.runs.items()},
        }


def ledger_status(
    deployment: Deployment, *, groups: Sequence[str] = (), runs: Sequence[tuple[str, str]] = ()
) -> LedgerStatus:
    """Return the ledger's identity, the cursors of groups, and runs given as (pipeline, run id).

    :raises LedgerMissing: there is no initialised ledger.
    """
    with ControlPlane(deployment) as control:
        ledger = control.verify_ledger()
        cursors = {
            group: _record_or_error(control, CursorRecord, keys.cursor_key(group), group) for group in groups
        }
        by_name = {
            keys.run_name(pipeline, run_id): _run_of(control, pipeline, run_id) for pipeline, run_id in runs
        }
    return LedgerStatus(deployment.ledger.topic, ledger, cursors, by_name)


def _run_of(control: ControlPlane, pipeline: str, run_id: str) -> RunInLedger:
    run_key = keys.cursor_run_key(pipeline, run_id)
    run = _record_or_error(control, RunRecord, keys.run_record_key(run_key), pipeline)
    if run is not None:
        return run
    # The keys of intervals, rounds and mapped tasks name more than the run.
    prefixes = tuple(keys.run_record_key(prefix) for prefix in keys.run_key_prefixes(pipeline))
    view = control.ledger.view(control.ledger.partition_for(pipeline), (), prefixes)
    by_offset = sorted(answer_of(view).committed.items(), key=lambda record: record[1].offset)
    records = [record for record in readable_runs(by_offset) if record.run_id == run_id]
    if records:
        return records[-1]
    whole, values = _pruned_of(control, pipeline, run_key)
    return PrunedRun(run_id) if is_pruned(whole, pipeline, values) else None


def _record_or_error(
    control: ControlPlane, kind: type[V], key: str, routing: str
) -> V | LedgerUnreadable | None:
    try:
        return control.authority.record(kind, key, routing=routing)
    except LedgerUnreadable as error:
        return error


def _pruned_of(control: ControlPlane, pipeline: str, run_key: str) -> tuple[str, Mapping[str, LedgerValue]]:
    """Return the key of the whole run, and the ledger's digests among which it is if it was pruned."""
    whole = keys.whole_run_key(run_key)
    return whole, control.authority.peek([keys.pruned_key(pipeline, whole)], routing=pipeline)


def pruned_runs(deployment: Deployment, pipeline: str) -> int:
    """Return the number of runs of a pipeline whose records were pruned."""
    with ControlPlane(deployment) as control:
        horizon = control.authority.record(Horizon, keys.horizon_key(pipeline), routing=pipeline)
    return 0 if horizon is None else horizon.runs


def refuse_pruned(deployment: Deployment, pipeline: str, run_key: str) -> None:
    """Raise if the record of a run was pruned.

    :raises LedgerPruned: it was pruned.
    """
    with ControlPlane(deployment) as control:
        whole, values = _pruned_of(control, pipeline, run_key)
        laws.not_pruned(whole, pipeline, values)


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


def run_records(deployment: Deployment, pipeline: str) -> tuple[list[RunRecord], list[str]]:
    """Return the committed runs of a pipeline in commit order, and the errors of unreadable records."""
    unreadable: list[str] = []
    return readable_runs(_records(deployment, pipeline), unreadable), unreadable


@dataclass(frozen=True, slots=True)
class OpenIntent(JsonForm):
    """An open INTENT: its run is at work, or died. The pipeline's next run settles it.

    :param since: when it was written, by the driver's clock.
    """

    pipeline: str
    run_key: str
    table: str
    transactional_id: str
    since: str


def open_intents(values: Iterable[tuple[str, LedgerValue]]) -> tuple[OpenIntent, ...]:
    """Return the INTENTs among ledger values, the oldest first; logs and omits unreadable ones."""
    intents = [
        OpenIntent(
            intent.record.pipeline,
            intent.key,
            intent.sink,
            key.removeprefix(keys.INTENTS),
            intent.record.staged_at,
        )
        for key, intent in readable(Intent, [pair for pair in values if pair[0].startswith(keys.INTENTS)])
    ]
    return tuple(sorted(intents, key=lambda intent: intent.since))


@dataclass(frozen=True, slots=True)
class LedgerNames:
    """The pipelines and groups with records in a ledger.

    :param runs: the latest run of each pipeline.
    :param groups: consumer groups with a cursor.
    :param in_tables: the latest run of each pipeline that put rows into a table.
    """

    runs: Mapping[str, RunRecord]
    groups: tuple[str, ...]
    gaps: tuple[Gap, ...] = ()
    in_tables: Mapping[str, RunRecord] = field(default_factory=dict)
    intents: tuple[OpenIntent, ...] = ()


def ledger_names(deployment: Deployment) -> LedgerNames:
    """Return the pipelines and groups of a ledger, sorted; omits unreadable records.

    It reads the whole ledger.
    """
    values = _records(deployment)
    runs = readable_runs((key, value) for key, value in values if keys.is_run_record(key))
    cursors = readable(CursorRecord, [pair for pair in values if pair[0].startswith(keys.CURSORS)])
    horizons = readable(Horizon, [pair for pair in values if pair[0].startswith(keys.HORIZONS)])
    latest = {run.pipeline: run for run in runs}
    in_tables = {run.pipeline: run for run in runs if TABLE in run.details}
    return LedgerNames(
        dict(sorted(latest.items())),
        tuple(sorted({cursor.group for _, cursor in cursors})),
        tuple(gaps(runs, [horizon for _, horizon in horizons])),
        dict(sorted(in_tables.items())),
        open_intents(values),
    )


def no_such_pipeline(deployment: Deployment, pipeline: str) -> ConfigurationError:
    """Return the error for a pipeline without a run, with similar names."""
    names = tuple(ledger_names(deployment).runs)
    return ConfigurationError(
        f"the ledger {deployment.ledger.topic!r} has no run of the pipeline {pipeline!r}; "
        f"{near(pipeline, names)}"
    )


def near(name: str, names: Sequence[str]) -> str:
    """Return a hint with the names that are similar to an unknown one, or with all names."""
    if not names:
        return "it has none at all"
    like = get_close_matches(name, names, n=3, cutoff=0.6)
    shown = some_of(map(repr, like or names), 10, ", ")
    return f"did you mean {shown}?" if like else f"it has {shown}"


def readable_runs(
    values: Iterable[tuple[str, LedgerValue]], unreadable: list[str] | None = None
) -> list[RunRecord]:
    """Return the run records of ledger values; see :func:`~airflow_eos.model.versioned.readable`."""
    return [record for _, record in readable(RunRecord, values, unreadable)]


def _parsed(value: str) -> Any:
    """Return a value parsed as JSON; as text if it is not JSON, or nested deeper than printing can follow."""
    try:
        data = json.loads(value, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError):
        return value
    level = [data]
    for _ in range(_DEEPEST):
        level = [child for item in level for child in _children(item)]
    return value if level else data


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


@dataclass(frozen=True, slots=True)
class LedgerRecord(JsonForm):
    """A committed record of the ledger.

    :param value: the parsed JSON; text if it is not JSON, or nested deeper than 100 levels.
    """

    key: str
    partition: int
    offset: int
    value: Any


def ledger_records(
    deployment: Deployment, *, pipeline: str | None = None, key: str | None = None, latest: int | None = None
) -> list[LedgerRecord]:
    """Return the latest committed records of the ledger, sorted by key.

    :param pipeline: only the runs of this pipeline; default: all records, which reads the whole ledger.
    :param key: only this key, such as ``run:<run key>`` or ``cursor:<group>``.
    :param latest: at least this many of the newest records of each partition, if it has them; reads no more
        than necessary.
    :raises LedgerMissing: there is no initialised ledger.
    """
    values = _records(deployment, pipeline, key, latest)
    records = (
        LedgerRecord(name, value.partition, value.offset, _parsed(value.text)) for name, value in values
    )
    return sorted(records, key=lambda record: record.key)


def _records(
    deployment: Deployment, pipeline: str | None = None, key: str | None = None, latest: int | None = None
) -> list[tuple[str, LedgerValue]]:
    """Return key and value of the records, in log order; see :func:`ledger_records`.

    A pipeline's records share a partition: they are in the order in which its runs staged them.
    """
    names: list[str] = [] if key is None else [key]
    with ControlPlane(deployment) as control:
        partitions = control.verify_ledger().partitions
        wanted = [*range(partitions)]
        prefixes: tuple[str, ...] = keys.RECORD_KINDS if key is None else ()
        if pipeline is not None:
            wanted = [control.ledger.partition_for(pipeline)]
            prefixes = tuple(keys.run_record_key(number) for number in keys.run_key_prefixes(pipeline))
        if latest is None or key is not None:
            views = (control.ledger.view(number, names, prefixes) for number in wanted)
        else:
            views = (control.ledger.latest(number, prefixes, latest) for number in wanted)
        records = [record for view in views for record in answer_of(view).committed.items()]
        return sorted(records, key=lambda record: (record[1].partition, record[1].offset))
