"""The ledger outside a run: make it, list what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.cursor import CursorRecord
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.record import RunRecord
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment, LedgerSettings, MayCreate

if TYPE_CHECKING:
    from collections.abc import Sequence


def create_ledger(
    kafka: Mapping[str, Any],
    settings: LedgerSettings | None = None,
    prefix: str = DEFAULT_PREFIX,
    *,
    adopt_new: bool = False,
) -> LedgerId:
    """Create the ledger topic and fix its identity; does nothing when both are there.

    :param adopt_new: also where a ledger was used before and is lost: its runs may be written again.
    :returns: topic id and number of partitions.
    :raises LedgerMissing: there is none, there was one, and ``adopt_new`` is false.
    :raises LedgerReplaced: when the topic is not the one that was initialised, or lost its identity.
    """
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        return control.verify_ledger(may_create=MayCreate.ANYWAY if adopt_new else MayCreate.WHERE_NEW)


def partition_counts(kafka: Mapping[str, Any], topics: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions of each topic.

    :raises UnknownTopic: naming those that do not exist.
    """
    with ControlPlane(Deployment(kafka)) as control:
        found = control.cluster.describe_topics(topics)
        return {name: found[name].partitions for name in topics}


def ledger_status(
    kafka: Mapping[str, Any],
    settings: LedgerSettings | None = None,
    *,
    groups: Sequence[str] = (),
    runs: Sequence[tuple[str, str]] = (),
    prefix: str = DEFAULT_PREFIX,
) -> dict[str, Any]:
    """Return what the ledger says: its identity, the cursors of groups, and runs given as (pipeline, run id).

    :raises LedgerMissing: when there is no initialised ledger.
    """
    settings = settings or LedgerSettings()
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        ledger = control.verify_ledger()
        status: dict[str, Any] = {
            "ledger": {"topic": settings.topic, "topic_id": ledger.topic_id, "partitions": ledger.partitions},
            "cursors": {},
            "runs": {},
        }
        for group in groups:
            key = keys.cursor_key(group)
            value = control.authority.peek([key], routing=group).get(key)
            record = None if value is None else CursorRecord.from_json(value)
            status["cursors"][group] = None if record is None else _cursor_summary(record)
        for pipeline, run_id in runs:
            key = keys.run_record_key(keys.cursor_run_key(pipeline, run_id))
            value = control.authority.peek([key], routing=pipeline).get(key)
            status["runs"][f"{pipeline}/{run_id}"] = (
                None if value is None else RunRecord.from_json(value).summary()
            )
    return status


def _cursor_summary(record: CursorRecord) -> dict[str, Any]:
    return {
        "pipeline": record.pipeline,
        "layout": record.layout,
        "topics": sorted(record.topic_ids),
        "ends": {str(tp): end for tp, end in sorted(record.ends.items())},
        "run_key": record.run_key,
    }


def run_records(
    kafka: Mapping[str, Any], settings: LedgerSettings, *, pipeline: str, prefix: str = DEFAULT_PREFIX
) -> tuple[list[RunRecord], list[str]]:
    """Return the committed runs of a pipeline, in the order of their commits, and what cannot be read."""
    unreadable: list[str] = []

    def read(one: Mapping[str, Any]) -> list[RunRecord]:
        try:
            return [RunRecord.from_json(one["value"], one["key"])]
        except LedgerUnreadable as error:
            unreadable.append(str(error))
            return []

    found = ledger_records(kafka, settings, pipeline=pipeline, prefix=prefix)
    records = [record for one in found for record in read(one)]
    return sorted(records, key=lambda record: record.staged_at), unreadable


def _parsed(value: str) -> Any:
    """Return the JSON of a value; what is none as text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def ledger_records(
    kafka: Mapping[str, Any],
    settings: LedgerSettings | None = None,
    *,
    pipeline: str | None = None,
    key: str | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> list[dict[str, Any]]:
    """Return the latest committed records of the ledger, as ``{"key", "partition", "value"}``, sorted by key.

    A value that is no JSON is given as text.

    :param pipeline: only the runs of this pipeline; default: everything, which reads the whole ledger.
    :param key: only this key, such as ``run:<run key>`` or ``cursor:<group>``.
    :raises LedgerMissing: when there is no initialised ledger.
    """
    settings = settings or LedgerSettings()
    names: list[str] = [] if key is None else [key]
    with ControlPlane(Deployment(kafka, settings or LedgerSettings(), prefix)) as control:
        partitions = control.verify_ledger().partitions
        wanted = [*range(partitions)]
        prefixes: tuple[str, ...] = keys.RECORD_KINDS if key is None else ()
        if pipeline is not None:
            wanted = [control.ledger.partition_for(pipeline)]
            prefixes = tuple(keys.run_record_key(one) for one in keys.run_key_prefixes(pipeline))
        found = [
            {"key": name, "partition": partition, "value": _parsed(value)}
            for partition in wanted
            for name, value in answer_of(control.ledger.view(partition, names, prefixes)).committed.items()
        ]
    return sorted(found, key=lambda one: str(one["key"]))
