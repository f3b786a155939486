"""The transactions that are open now: of whose pipeline each is, and who may know of it."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.ledger import keys
from airflow_eos.operations.open_transactions import times_of

if TYPE_CHECKING:
    from airflow_eos.ui.attempts import Attempt
    from airflow_eos.ui.history import (
        PipelineHistory,
        RunHistory,
    )
    from airflow_eos.ui.viewer import Viewer
    from airflow_eos.wire.txn_requests import TransactionStatus


def transactions_view(
    open_now: Mapping[str, TransactionStatus],
    history: RunHistory,
    viewer: Viewer,
    attempts: Iterable[Attempt],
    prefix: str,
    now: dt.datetime,
) -> dict[str, Any]:
    """Return the open transactions that a user may know of, sorted by transactional id.

    Those of his pipelines: by the ledger, or, before the first commit, by the attempts in Airflow. One whose
    pipeline is known by neither is shown to administrators alone. Without a record nobody can tell whose
    topics it writes to: partitions are counted, not named.

    :param open_now: open transactions of the prefix, by transactional id.
    :param attempts: that the user may see.
    """
    rows = []
    everybodys = list(history.pipelines.values())
    shown = viewer.pipelines(history)
    groups = {(one.pipeline, one.group) for one in attempts if one.group}
    for name, status in sorted(open_now.items()):
        committed = _pipeline_of(name, shown, prefix)
        if not committed and _pipeline_of(name, everybodys, prefix):
            continue  # whoever names another team's group in a Dag of his own learns nothing of it
        pipeline = committed or _tried_by(name, groups, prefix)
        if not pipeline and not viewer.is_admin:
            continue
        row = {
            "transactional_id": name,
            "pipeline": pipeline,
            **_transaction(status, now),
            "command": (
                f"airflow eos abort --transactional-id {shlex.quote(name)} --epoch {status.producer_epoch} "
                "--yes"
            ),
        }
        rows.append(row if committed else {**row, "partitions": []})
    return {"transactions": rows}


def _transaction(status: TransactionStatus, now: dt.datetime) -> dict[str, Any]:
    times = times_of(status, now)
    age = times["age_seconds"]
    return {
        **times,
        "state": status.state.value,
        "producer_id": status.producer_id,
        "producer_epoch": status.producer_epoch,
        "share": None if age is None else min(1.0, age * 1000 / max(status.timeout_ms, 1)),
        "partitions": sorted(str(where) for where in status.partitions),
        "partition_count": len(status.partitions),
    }


def _pipeline_of(name: str, pipelines: Sequence[PipelineHistory], prefix: str) -> str:
    """Return which of the pipelines works under a transactional id; empty where none does."""
    for pipeline in pipelines:
        if not pipeline.runs:
            continue  # pruned, all of them
        owner = pipeline.newest
        its_last = owner.producer.transactional_id
        if name == its_last or keys.belongs_to(name, prefix, pipeline.name, owner.group_id):
            return pipeline.name
    return ""


def _tried_by(name: str, groups: Iterable[tuple[str, str]], prefix: str) -> str:
    """Return the pipeline of whose attempts one works under a transactional id; empty where none does."""
    matching = (pipeline for pipeline, group in groups if keys.belongs_to(name, prefix, pipeline, group))
    return min(matching, default="")
