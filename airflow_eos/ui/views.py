"""The contents of the pages as plain values, from records that a user may see.

A record belongs to the Dag that it names. A user sees a pipeline if a record of it belongs to one of the
user's Dags, with the topics of these records. Records of other Dags count in the coverage of these topics
anonymously.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_eos.coverage.lanes import WRONG
from airflow_eos.coverage.sentence import place
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.operations.checks import Check
from airflow_eos.run.work import recorded_interval
from airflow_eos.ui.attempts import Tasks
from airflow_eos.ui.drawings import bars_of, lane_of, shares_of, states_of
from airflow_eos.ui.epochs import epoch_rows
from airflow_eos.ui.known_runs import KnownRuns
from airflow_eos.ui.lag_history import Lag, lags_of
from airflow_eos.ui.moments import age_text
from airflow_eos.ui.pipeline_rows import ledger_warnings, pipeline_row, tasks_of
from airflow_eos.ui.record_parts import (
    flat,
    intent_rows,
    run_row,
    table_row,
    task_key,
    task_of_record,
)
from airflow_eos.ui.viewer import Viewer, not_shown
from airflow_eos.wording import counted

RUNS_A_PAGE = 50
LANES_SHOWN = 64
RUNS_DRAWN = 50
"""Newest runs of a pipeline whose lag and throughput its page draws."""
SHARES_SHOWN = 20
"""Newest runs of a page whose time is drawn by state."""
TOPICS_SHOWN = 50
"""Maximum number of topics whose health is checked."""
_WORST_FIRST = ("fail", "warn", "unknown", "ok")


def pipeline_view(
    history: KnownRuns,
    viewer: Viewer,
    name: str,
    now: dt.datetime,
    *,
    page: int = 0,
    find: str = "",
) -> dict[str, Any]:
    """Return one pipeline: its coverage, and a page of its runs, newest first."""
    pipeline = viewer.pipeline(history, name)
    coverage = history.coverage(pipeline).of_topics(viewer.topics(pipeline))
    visible = {key: record for key, record in pipeline.runs.items() if viewer.may_see(record)}
    matching = [
        record for record in reversed(visible.values()) if find in record.run_key or find in record.run_id
    ]
    # Backfills commit in any order: sort runs of intervals by interval; others keep their commit order.
    matching.sort(key=lambda record: recorded_interval(record) or (), reverse=True)
    shown = matching[page * RUNS_A_PAGE : (page + 1) * RUNS_A_PAGE]
    lags = lags_of(visible.values())
    newest = list(visible.values())[-RUNS_DRAWN:]
    lanes = sorted(coverage.lanes, key=lambda lane: not any(part.kind in WRONG for part in lane.segments))
    return {
        **pipeline_row(history, viewer, pipeline, coverage, now),
        "table": next(filter(None, map(table_row, reversed(visible.values()))), None),
        "intents": intent_rows(history.intents.values(), viewer, name),
        "problems": [place(*problem) for problem in coverage.problems],
        "damaged": [
            {"run_key": record.run_key, "run_id": record.run_id}
            for record in visible.values()
            if (name, record.run_key) in history.damaged
        ],
        "lanes": [lane_of(lane, visible) for lane in lanes[:LANES_SHOWN]],
        "lanes_left_out": max(0, len(lanes) - LANES_SHOWN),
        "runs_shown": [run_row(record, lags[record.run_key]) for record in shown],
        "drawings": _drawings([run_row(record, lags[record.run_key]) for record in newest]),
        "runs_earlier": pipeline.earlier.runs,
        "runs_hidden": len(pipeline.runs) - len(visible),
        "find": find,
        "page": page,
        "pages": max(1, math.ceil(len(matching) / RUNS_A_PAGE)),
        "shares": shares_of(shown[:SHARES_SHOWN]),
        "warnings": ledger_warnings(history),
    }


def _drawings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a drawing of each metric with known values in these rows, the oldest run first."""
    drawn = [
        (title, bars_of([row[name] for row in rows], text))
        for title, name, text in (
            ("Lag in time", "lag_seconds", age_text),
            ("Lag in offsets", "lag_offsets", "{:,}".format),
            ("Records a second", "records_per_second", "{:,.0f}".format),
        )
    ]
    return [{"title": title, **bars} for title, bars in drawn if bars is not None]


def tasks_beside(history: KnownRuns, viewer: Viewer, name: str) -> Tasks:
    """Return all tasks of one pipeline, and the last pipeline of each task instance that a user may see."""
    runs = viewer.pipeline(history, name).runs.values()
    own = {task_key(record): name for record in runs if viewer.may_see(record)}
    return {**own, **tasks_of(viewer, viewer.pipelines(history))}


def run_of(history: KnownRuns, viewer: Viewer, pipeline: str, run_key: str) -> RunRecord:
    """Return the record of a run.

    :raises Trouble: it does not exist, or this user may not see it.
    """
    viewer.pipeline(history, pipeline)  # before anything is looked up
    record = history.record(pipeline, run_key)
    if record is None or not viewer.may_see(record):
        raise not_shown("run")
    return record


def run_view(history: KnownRuns, viewer: Viewer, pipeline: str, run_key: str) -> dict[str, Any]:
    """Return one run; errors as :func:`run_of`."""
    record = run_of(history, viewer, pipeline, run_key)
    pipeline_history = history.pipelines.get(pipeline)
    runs = list(pipeline_history.runs.values()) if pipeline_history is not None else []
    lags = lags_of(run for run in runs if viewer.may_see(run))
    reads = record.records_read_by_partition
    return {
        **record.summary(),
        **run_row(record, lags.get(run_key, Lag())),
        "damaged": (pipeline, run_key) in history.damaged,
        "group": record.group_id,
        "producer": record.producer.to_dict(),
        "epochs": epoch_rows(record, runs, viewer.may_see),
        "task": task_of_record(record),
        "reads": [
            {
                "where": str(offsets.topic_partition),
                "start": offsets.start,
                "end": offsets.end,
                "records": reads.get(str(offsets.topic_partition)),
            }
            for offsets in record.ranges
        ],
        "receipts": [receipt.to_dict() for receipt in record.receipts],
        "table": table_row(record),
        "states": states_of(record),
        "versions": flat(record.details.get("versions", {})),
        "record": json.loads(record.to_json()),
    }


def health_view(history: KnownRuns, viewer: Viewer, transactions: Check) -> dict[str, Any]:
    """Return the checks of brokers and ledger, and of the topics of a user's pipelines; empty without any."""
    pipelines = viewer.pipelines(history)
    newest = [record for pipeline in pipelines if (record := viewer.newest(pipeline)) is not None]
    sources = {range_.topic for record in newest for range_ in record.ranges}
    sinks = {receipt.topic for record in newest for receipt in record.receipts}
    shown = set(sorted(sources | sinks)[:TOPICS_SHOWN])
    checks = history.health(sources=sources & shown, sinks=sinks & shown) if pipelines else []
    checks += [transactions] if pipelines else []
    rows = [check.to_dict() for check in sorted(checks, key=lambda check: _WORST_FIRST.index(check.status))]
    failed = [row["name"] for row in rows if row["status"] == "fail"]
    return {
        "healthy": not failed,
        "failed": failed,
        "sentence": _health(checks),
        "checks": rows,
        "topics_left_out": len(sources | sinks) - len(shown),
        "warnings": ledger_warnings(history),
    }


def _health(checks: Sequence[Check]) -> str:
    fails, warns, unseen = (
        sum(check.status == status for check in checks) for status in ("fail", "warn", "unknown")
    )
    parts = [
        f"{fails} of {len(checks)} checks {'fails' if fails == 1 else 'fail'}"
        if fails
        else f"None of {counted(len(checks), 'check')} fails",
        *([f"{warns} {'warns' if warns == 1 else 'warn'}"] if warns else []),
        *([f"{unseen} could not be made"] if unseen else []),
    ]
    return ", ".join(parts)
