"""What the pages show, as plain values: of the records that a user may see, and of nothing else.

A record belongs to the Dag that it names; one that names none belongs to nobody. A pipeline is shown to
whoever may see the Dag of one of its records, with the topics that those have read. Records of other Dags
count in the coverage of these topics, as offsets without a name.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.coverage.coverage import Coverage
from airflow_eos.coverage.segments import WRONG
from airflow_eos.coverage.sentence import place
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run import AIRFLOW
from airflow_eos.operations.open_transactions import times_of
from airflow_eos.run.work import recorded_interval
from airflow_eos.ui.epochs import rungs_of
from airflow_eos.ui.ladder import ladder_of
from airflow_eos.ui.lane_drawing import lane_of
from airflow_eos.ui.timeline import shares_of, states_of
from airflow_eos.ui.viewer import Viewer, not_shown
from airflow_eos.wording import counted

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run import RunRecord
    from airflow_eos.operations.checks import Check
    from airflow_eos.ui.history import PipelineHistory, RunHistory
    from airflow_eos.wire.txn_requests import TransactionStatus

log = logging.getLogger(__name__)

PIPELINES_A_PAGE = 50
RUNS_A_PAGE = 50
LANES_SHOWN = 64
SHARES_SHOWN = 20
"""Newest runs of a page whose time is drawn state by state."""
TOPICS_SHOWN = 50
"""Whose health is looked at."""
_WORST_FIRST = ("fail", "warn", "unknown", "ok")
_WEEK = dt.timedelta(days=7)


Damaged = Collection[tuple[str, str]]
"""Runs, by pipeline and run key, whose output was not what they wrote when it was verified last."""


def pipelines_view(
    history: RunHistory, viewer: Viewer, page: int, now: dt.datetime, *, damaged: Damaged = ()
) -> dict[str, Any]:
    """Return all pipelines of a user."""
    visible = viewer.pipelines(history)
    shown = visible[page * PIPELINES_A_PAGE : (page + 1) * PIPELINES_A_PAGE]
    covered = zip(shown, history.summaries(shown), strict=True)
    return {
        "pipelines": [_row_or_reason(viewer, one, coverage, now, damaged) for one, coverage in covered],
        "page": page,
        "pages": _pages(len(visible), PIPELINES_A_PAGE),
        "warnings": _warnings(history),
    }


def pipeline_view(
    history: RunHistory,
    viewer: Viewer,
    name: str,
    now: dt.datetime,
    *,
    page: int = 0,
    find: str = "",
    damaged: Damaged = (),
) -> dict[str, Any]:
    """Return one pipeline: its coverage, and a page of its runs, newest first."""
    pipeline = viewer.pipeline(history, name)
    coverage = history.coverage(pipeline).of_topics(viewer.topics(pipeline))
    visible = {key: one for key, one in pipeline.runs.items() if viewer.may_see(one)}
    matching = [one for one in reversed(visible.values()) if find in one.run_key or find in one.run_id]
    # Backfills commit in any order: runs of intervals come by interval, others (sorting is stable) by commit.
    matching.sort(key=lambda one: recorded_interval(one) or (), reverse=True)
    shown = matching[page * RUNS_A_PAGE : (page + 1) * RUNS_A_PAGE]
    lanes = sorted(coverage.lanes, key=lambda one: not any(it.kind in WRONG for it in one.segments))
    return {
        **_pipeline_row(viewer, pipeline, coverage, now, damaged),
        "problems": [place(*one) for one in coverage.problems],
        "damaged": [_named(one) for one in visible.values() if (name, one.run_key) in damaged],
        "lanes": [lane_of(one, visible) for one in lanes[:LANES_SHOWN]],
        "lanes_left_out": max(0, len(lanes) - LANES_SHOWN),
        "runs_shown": [_run_row(one) for one in shown],
        "runs_earlier": pipeline.earlier.runs,
        "runs_hidden": len(pipeline.runs) - len(visible),
        "find": find,
        "page": page,
        "pages": _pages(len(matching), RUNS_A_PAGE),
        "shares": shares_of(shown[:SHARES_SHOWN]),
        "warnings": _warnings(history),
    }


def run_of(history: RunHistory, viewer: Viewer, pipeline: str, run_key: str) -> RunRecord:
    """Return the record of a run.

    :raises Trouble: there is none, or it is of a Dag that this user may not see.
    """
    viewer.pipeline(history, pipeline)  # before anything is looked up
    found = history.record(pipeline, run_key)
    if found is None or not viewer.may_see(found):
        raise not_shown("run")
    return found


def run_view(
    history: RunHistory, viewer: Viewer, pipeline: str, run_key: str, *, damaged: bool = False
) -> dict[str, Any]:
    """Return one run.

    :param damaged: its output was not what it wrote when it was verified last.
    :raises Trouble: see :func:`run_of`.
    """
    record = run_of(history, viewer, pipeline, run_key)
    its = history.pipelines.get(pipeline)
    runs = list(its.runs.values()) if its is not None else []
    complete = its is not None and not its.earlier.runs and not its.pruned.runs
    ladder = ladder_of(record, runs, complete=complete)
    reads = record.records_read_by_partition
    return {
        **record.summary(),
        **_run_row(record),
        "damaged": damaged,
        "group": record.group_id,
        "producer": record.producer.to_dict(),
        "ladder": rungs_of(record, ladder, viewer.may_see),
        "task": _task(record),
        "reads": [
            {
                "where": str(one.topic_partition),
                "start": one.start,
                "end": one.end,
                "records": reads.get(str(one.topic_partition)),
            }
            for one in record.ranges
        ],
        "receipts": [one.to_dict() for one in record.receipts],
        "states": states_of(record),
        "notes": _texts(record.details.get("notes")),
        "versions": _flat(record.details.get("versions")),
        "record": json.loads(record.to_json()),
    }


def transactions_view(
    found: Mapping[str, TransactionStatus],
    history: RunHistory,
    viewer: Viewer,
    prefix: str,
    now: dt.datetime,
) -> dict[str, Any]:
    """Return the open transactions of a user's pipelines, and those of which the ledger knows no pipeline.

    Such a transaction may be of a first run: no record says whose. Its partitions are counted, not named.

    :param found: open transactions of the prefix, by transactional id.
    """
    rows = []
    everybodys = list(history.pipelines.values())
    shown = viewer.pipelines(history)
    for name, one in sorted(found.items()):
        pipeline = _pipeline_of(name, shown, prefix)
        if pipeline is None and _pipeline_of(name, everybodys, prefix) is not None:
            continue
        row = {
            "transactional_id": name,
            "pipeline": "" if pipeline is None else pipeline.name,
            **_transaction(one, now),
            "command": (
                f"airflow eos abort --transactional-id {shlex.quote(name)} --epoch {one.producer_epoch} --yes"
            ),
        }
        rows.append(row if pipeline is not None else {**row, "partitions": []})
    return {"transactions": rows}


def health_view(history: RunHistory, viewer: Viewer) -> dict[str, Any]:
    """Return what can be said of brokers and ledger, and of the topics of a user's pipelines.

    To whom no pipeline is shown nothing is.
    """
    pipelines = viewer.pipelines(history)
    newest = [record for its in pipelines if (record := viewer.newest(its)) is not None]
    sources = {one.topic for record in newest for one in record.ranges}
    sinks = {one.topic for record in newest for one in record.receipts}
    shown = set(sorted(sources | sinks)[:TOPICS_SHOWN])
    checks = history.health(sources=sources & shown, sinks=sinks & shown) if pipelines else []
    rows = [one.to_dict() for one in sorted(checks, key=lambda one: _WORST_FIRST.index(one.status))]
    failed = [one["name"] for one in rows if one["status"] == "fail"]
    return {
        "healthy": not failed,
        "failed": failed,
        "sentence": _health(checks),
        "checks": rows,
        "topics_left_out": len(sources | sinks) - len(shown),
        "warnings": _warnings(history),
    }


def _health(checks: Sequence[Check]) -> str:
    fails, warns, unseen = (
        sum(one.status == status for one in checks) for status in ("fail", "warn", "unknown")
    )
    parts = [
        f"{fails} of {len(checks)} checks {'fails' if fails == 1 else 'fail'}"
        if fails
        else f"None of {counted(len(checks), 'check')} fails",
        *([f"{warns} {'warns' if warns == 1 else 'warn'}"] if warns else []),
        *([f"{unseen} could not be made"] if unseen else []),
    ]
    return ", ".join(parts)


# -- rows -------------------------------------------------------------------------------------------------


def _row_or_reason(
    viewer: Viewer, pipeline: PipelineHistory, coverage: Coverage, now: dt.datetime, damaged: Damaged
) -> dict[str, Any]:
    """Return the row of a pipeline, or one that says that it cannot be made: the others are shown."""
    try:
        return _pipeline_row(viewer, pipeline, coverage, now, damaged)
    except Exception:
        log.exception("Pipeline %r cannot be shown", pipeline.name)
        return {
            "pipeline": pipeline.name,
            "dag_id": "",
            "other_dag_ids": [],
            "mode": "",
            "topics": [],
            "last_commit": "",
            "last_commit_ago": "",
            "records_of_7_days": None,
            "runs": coverage.runs,
            "unread": None,
            "unseen": [],
            "whole": False,
            "sentence": "It cannot be shown; the API server's log has the reason",
        }


def _pipeline_row(
    viewer: Viewer, pipeline: PipelineHistory, coverage: Coverage, now: dt.datetime, damaged: Damaged
) -> dict[str, Any]:
    newest = viewer.newest(pipeline)
    assert newest is not None
    topics = viewer.topics(pipeline)
    coverage = coverage.of_topics(topics)
    seen = [one for one in pipeline.runs.values() if viewer.may_see(one)]
    modes = (one.mode for one in reversed(seen))
    wrong = sum(one.run_key in {key for name, key in damaged if name == pipeline.name} for one in seen)
    recent = [one for one in seen if _is_since(one, now - _WEEK)]
    others = sorted({one.dag_id for one in seen} - {newest.dag_id})
    return {
        "pipeline": pipeline.name,
        "dag_id": newest.dag_id,
        "other_dag_ids": others,
        "mode": next((mode for mode in modes if mode != "reprocess"), newest.mode),
        "topics": sorted(topics),
        "last_commit": newest.staged_at,
        "last_commit_ago": _ago(newest.staged_at, now),
        "records_of_7_days": sum(one.records_written for one in recent),
        "runs": coverage.runs,
        "unread": None if coverage.unseen else coverage.unread,
        "unseen": list(coverage.unseen),
        "whole": coverage.is_whole and not wrong,
        "sentence": f"{coverage.sentence}{_of_damaged(wrong)}{_of_unseen(coverage.unseen)}",
    }


def _of_damaged(runs: int) -> str:
    if not runs:
        return ""
    return f"; and what {counted(runs, 'run')} wrote is not there as it was written"


def _of_unseen(topics: Sequence[str]) -> str:
    if not topics:
        return ""
    more = f" and {counted(len(topics) - 1, 'other topic')}" if len(topics) > 1 else ""
    return f"; what is left to read is unknown: the page's principal may not Describe {topics[0]}{more}"


def _named(record: RunRecord) -> dict[str, Any]:
    return {"run_key": record.run_key, "run_id": record.run_id}


def _run_row(record: RunRecord) -> dict[str, Any]:
    return {
        "pipeline": record.pipeline,
        "run_key": record.run_key,
        "run_id": record.run_id,
        "dag_id": record.dag_id,
        "mode": record.mode,
        "interval": recorded_interval(record),
        "committed": record.staged_at,
        "seconds": _seconds(record),
        "offsets": sum(one.span for one in record.ranges),
        "partitions": sum(one.span > 0 for one in record.ranges),
        "records_read": record.records_read,
        "records_late": record.records_late,
        "records_written": record.records_written,
        "producer_epoch": record.producer.producer_epoch,
    }


def _transaction(one: TransactionStatus, now: dt.datetime) -> dict[str, Any]:
    times = times_of(one, now)
    age = times["age_seconds"]
    return {
        **times,
        "state": one.state.value,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "share": None if age is None else min(1.0, age * 1000 / max(one.timeout_ms, 1)),
        "partitions": sorted(str(where) for where in one.partitions),
        "partition_count": len(one.partitions),
    }


def _pipeline_of(name: str, pipelines: Sequence[PipelineHistory], prefix: str) -> PipelineHistory | None:
    """Return which of the pipelines works under a transactional id."""
    for pipeline in pipelines:
        if not pipeline.runs:
            continue  # pruned, all of them
        owner = pipeline.newest
        its_last = owner.producer.transactional_id
        if name == its_last or keys.belongs_to(name, prefix, pipeline.name, owner.group_id):
            return pipeline
    return None


def _warnings(history: RunHistory) -> list[str]:
    reader = history.reader
    found = []
    if reader.behind:
        found.append("A transaction is open in the ledger: runs behind it are shown when it has ended.")
    if reader.begins_at:
        found.append("The ledger has lost its first records: runs of then are missing here.")
    if reader.ignored:
        found.append(
            f"{len(reader.ignored):,} records of the ledger were written by no run, and are ignored: see who "
            "may write to it."
        )
    if history.unreadable:
        found.append(f"{len(history.unreadable):,} records of the ledger cannot be read, and are left out.")
    return found


# -- small things -----------------------------------------------------------------------------------------


def _task(record: RunRecord) -> dict[str, Any]:
    """Return what names the task; what is none of it is empty: strangers' records are shown, too."""
    named = record.details.get(AIRFLOW)
    found = named if isinstance(named, Mapping) else {}
    index = found.get("map_index")
    return {
        "dag_id": record.dag_id,
        "task_id": str(found.get("task_id", "")),
        "run_id": str(found.get("run_id", "")),
        "map_index": index if type(index) is int else -1,
    }


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _flat(value: Any) -> dict[str, str]:
    """Return names and values as texts; a mapping within becomes an entry for each of its own."""
    if not isinstance(value, Mapping):
        return {}
    texts: dict[str, str] = {}
    for name, part in value.items():
        if isinstance(part, Mapping):
            texts |= {f"{name}, {inner}": text for inner, text in _flat(part).items()}
        else:
            texts[str(name)] = str(part)
    return texts


def _pages(number: int, of: int) -> int:
    return max(1, -(-number // of))


def _moment(text: str) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _is_since(record: RunRecord, moment: dt.datetime) -> bool:
    found = _moment(record.staged_at)
    return found is not None and found >= moment


def _seconds(record: RunRecord) -> float | None:
    began, ended = _moment(record.started_at), _moment(record.staged_at)
    return None if began is None or ended is None else round((ended - began).total_seconds(), 3)


def _ago(text: str, now: dt.datetime) -> str:
    found = _moment(text)
    if found is None:
        return ""
    seconds = max(0, int((now - found).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"
