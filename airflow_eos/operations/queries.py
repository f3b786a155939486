"""Creates a ledger, and lists its records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.ledger import LedgerId, LedgerValue
from airflow_eos.model.spec import Deployment, MayCreate
from airflow_eos.model.versioned import JsonForm, finite, readable
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


def pruned_of(control: ControlPlane, pipeline: str, run_key: str) -> tuple[str, Mapping[str, LedgerValue]]:
    """Return the key of the whole run, and the ledger's digests that contain it if it was pruned."""
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
        whole, values = pruned_of(control, pipeline, run_key)
        laws.not_pruned(whole, pipeline, values)


def run_records(deployment: Deployment, pipeline: str) -> tuple[list[RunRecord], list[str]]:
    """Return the committed runs of a pipeline in commit order, and the errors of unreadable records."""
    unreadable: list[str] = []
    return readable_runs(_records(deployment, pipeline), unreadable), unreadable


@dataclass(frozen=True, slots=True)
class OpenIntent(JsonForm):
    """An open INTENT: its run is active or has died. The pipeline's next run settles it.

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
    """Return a value parsed as JSON; as text if it is not JSON, or nested too deeply to print."""
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
