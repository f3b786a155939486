"""The list of pipelines: the ledger's part, and Airflow's last attempt of each.

A user sees a pipeline if a record or an attempt of it belongs to one of the user's Dags; also one that has
never committed.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_eos.coverage.coverage import Coverage
from airflow_eos.run.work import recorded_interval
from airflow_eos.ui.attempt_rows import KINDS, MEANING, by_pipeline, last_row
from airflow_eos.ui.attempts import Attempt, Tasks
from airflow_eos.ui.drawings import bars_of
from airflow_eos.ui.known_runs import KnownRuns, PipelineHistory
from airflow_eos.ui.lag_history import lags_of, seconds_behind
from airflow_eos.ui.moments import age_text, ago, is_since, moment
from airflow_eos.ui.record_parts import task_key
from airflow_eos.ui.viewer import Viewer
from airflow_eos.wording import counted

log = logging.getLogger(__name__)

PIPELINES_SHOWN = 1_000
"""Rows of one page; the most urgent ones are shown."""
RUNS_DRAWN = 20
"""Newest runs of a pipeline whose lag its row draws."""
Order = Literal["urgency", "name", "attempt", "commit", "unread", "lag"]
WRONG = "not whole"
"""The filter for pipelines whose runs do not tile their source, or whose output is not there."""
UNCOMMITTED = "No run of a Dag that you may see is committed"
UNANSWERED = "The ledger cannot be read now"
_WEEK = dt.timedelta(days=7)
_LONG_AGO = ""  # before every moment as a text


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """The ledger's part of the list.

    :param rows: rows of the user's pipelines, sorted by name.
    :param tasks: the last pipeline of each task instance.
    """

    rows: Sequence[Mapping[str, Any]]
    tasks: Tasks
    warnings: Sequence[str]


def ledger_rows(history: KnownRuns, viewer: Viewer, now: dt.datetime) -> LedgerRows:
    """Return all pipelines of a user with a committed run."""
    shown = viewer.pipelines(history)
    covered = zip(shown, history.summaries(shown), strict=True)
    return LedgerRows(
        [_row_or_reason(history, viewer, pipeline, coverage, now) for pipeline, coverage in covered],
        tasks_of(viewer, shown),
        ledger_warnings(history),
    )


def pipelines_view(
    ledger: LedgerRows | None,
    attempts: Sequence[Attempt] | None,
    now: dt.datetime,
    transactions: Sequence[Mapping[str, Any]] = (),
    unseen_transactions: str = "",
    *,
    find: str = "",
    dag: str = "",
    state: str = "",
    order: Order = "urgency",
) -> dict[str, Any]:
    """Return the pipelines of a user, and their number per state.

    :param ledger: None if the ledger cannot be read.
    :param attempts: attempts that the user may see, the newest first; None if they cannot be read.
    :param transactions: open transactions that the user may see.
    :param unseen_transactions: why these are unknown; empty if they are known.
    :param find: part of the name of a pipeline, a Dag or an error, in any case.
    :param dag: id of a Dag that has run or tried the pipelines; empty for all.
    :param state: one of :data:`~airflow_eos.ui.attempt_rows.KINDS`, :data:`WRONG`, or empty for all.
    """
    tried = by_pipeline(attempts or ())
    committed = ledger.rows if ledger is not None else ()
    rows = [_with_attempt(row, tried.pop(row["pipeline"], ()), now) for row in committed]
    sentence = UNCOMMITTED if ledger is not None else UNANSWERED
    rows += [_with_attempt(row_without_record(name, sentence), tries, now) for name, tries in tried.items()]
    oldest = sorted(transactions, key=lambda row: row["age_seconds"] or 0)  # the last row stays
    open_now = {row["pipeline"]: row for row in oldest}
    rows = [{**row, "open_transaction": open_now.pop(row["pipeline"], None)} for row in rows]
    states = Counter(row["kind"] for row in rows)
    wrong = sum(row["whole"] is False for row in rows)
    of_dag = {attempt.pipeline for attempt in attempts or () if attempt.dag_id == dag}
    of_dag |= {row["pipeline"] for row in rows if dag in (row["dag_id"], *row["other_dag_ids"])}
    matching = [
        row
        for row in rows
        if _matches(row, find.casefold(), state) and (not dag or row["pipeline"] in of_dag)
    ]
    matching.sort(key=lambda row: row["pipeline"])
    _sort(matching, order)
    warnings = list(ledger.warnings) if ledger is not None else []
    if attempts is None:
        warnings.insert(
            0,
            "Attempts, errors and pipelines that never committed are not shown: Airflow's metadata database "
            "cannot be read here (the API server's log has the reason), or you may not see them in Airflow.",
        )
    if unseen_transactions:
        warnings.append(f"Which transactions are open is not known: {unseen_transactions}.")
    return {
        "pipelines": matching[:PIPELINES_SHOWN],
        "left_out": max(0, len(matching) - PIPELINES_SHOWN),
        "total": len(rows),
        "states": {kind: states[kind] for kind in KINDS if states[kind]},
        "wrong": wrong,
        "open_elsewhere": list(open_now.values()),
        "meaning": MEANING,
        "find": find,
        "dag": dag,
        "state": state,
        "order": order,
        "attempts_seen": attempts is not None,
        "warnings": warnings,
    }


def _matches(row: Mapping[str, Any], find: str, state: str) -> bool:
    if state and not (row["whole"] is False if state == WRONG else row["kind"] == state):
        return False
    attempt = row["attempt"] or {}
    texts = (row["pipeline"], row["dag_id"], attempt.get("error", ""))
    return any(find in text.casefold() for text in texts)


def _sort(rows: list[dict[str, Any]], order: Order) -> None:
    """Sort rows that are sorted by name; the sort is stable."""
    if order == "name":
        return
    keys: Mapping[str, Any] = {
        "urgency": _attempted,
        "attempt": _attempted,
        "commit": lambda row: row["last_commit"],
        "unread": lambda row: -1 if row["unread"] is None else row["unread"],
        "lag": lambda row: -1 if row["lag_seconds"] is None else row["lag_seconds"],
    }
    rows.sort(key=keys[order], reverse=True)
    if order == "urgency":
        rows.sort(key=_urgency)


def _attempted(row: Mapping[str, Any]) -> str:
    return row["attempt"]["at"] if row["attempt"] else _LONG_AGO


def _urgency(row: Mapping[str, Any]) -> int:
    return 0 if row["whole"] is False else KINDS.index(row["kind"])


def _with_attempt(row: Mapping[str, Any], attempts: Sequence[Attempt], now: dt.datetime) -> dict[str, Any]:
    if not attempts:
        return {**row, "kind": "unknown", "attempt": None}
    last = last_row(attempts, now)
    return {**row, "dag_id": row["dag_id"] or last["dag_id"], "kind": last["kind"], "attempt": last}


def row_without_record(name: str, sentence: str) -> dict[str, Any]:
    """Return the row of a pipeline without a known record."""
    return {**_EMPTY, "pipeline": name, "sentence": sentence}


_EMPTY: Mapping[str, Any] = {
    "pipeline": "",
    "dag_id": "",
    "other_dag_ids": [],
    "mode": "",
    "interval": None,
    "topics": [],
    "last_commit": "",
    "last_commit_ago": "",
    "records_of_7_days": None,
    "all_of_7_days": True,
    "runs": 0,
    "unread": None,
    "lag_seconds": None,
    "lag_drawn": None,
    "unseen": [],
    "whole": None,
    "sentence": "",
}
"""A row without any known value."""


def _row_or_reason(
    history: KnownRuns, viewer: Viewer, pipeline: PipelineHistory, coverage: Coverage, now: dt.datetime
) -> dict[str, Any]:
    """Return the row of a pipeline, or a row with the reason why it cannot be shown."""
    try:
        return pipeline_row(history, viewer, pipeline, coverage, now)
    except Exception:
        log.exception("Pipeline %r cannot be shown", pipeline.name)
        row = row_without_record(pipeline.name, "It cannot be shown; the API server's log has the reason")
        return {**row, "runs": coverage.runs, "whole": False}


def pipeline_row(
    history: KnownRuns, viewer: Viewer, pipeline: PipelineHistory, coverage: Coverage, now: dt.datetime
) -> dict[str, Any]:
    """Return the ledger's part of a pipeline, for a user."""
    newest = viewer.newest(pipeline)
    assert newest is not None
    topics = viewer.topics(pipeline)
    coverage = coverage.of_topics(topics)
    seen = [record for record in pipeline.runs.values() if viewer.may_see(record)]
    modes = (record.mode for record in reversed(seen))
    wrong = sum((pipeline.name, record.run_key) in history.damaged for record in seen)
    recent = [record for record in seen if is_since(record, now - _WEEK)]
    is_partly_forgotten = pipeline.earlier.runs > 0 or pipeline.pruned.runs > 0
    others = sorted({record.dag_id for record in seen} - {newest.dag_id})
    lags = lags_of(seen[-2 * RUNS_DRAWN :])
    drawn = [lags[record.run_key].seconds for record in seen[-RUNS_DRAWN:]]
    return {
        "pipeline": pipeline.name,
        "dag_id": newest.dag_id,
        "other_dag_ids": others,
        "mode": next((mode for mode in modes if mode != "reprocess"), newest.mode),
        "interval": recorded_interval(newest),
        "topics": sorted(topics),
        "last_commit": newest.staged_at,
        "last_commit_ago": ago(moment(newest.staged_at), now),
        "records_of_7_days": sum(record.records_written for record in recent),
        "all_of_7_days": not (
            is_partly_forgotten and is_since(next(iter(pipeline.runs.values())), now - _WEEK)
        ),
        "runs": coverage.runs,
        "unread": None if coverage.unseen else coverage.unread,
        "lag_seconds": seconds_behind(seen, coverage, now),
        "lag_drawn": bars_of(drawn, age_text),
        "unseen": list(coverage.unseen),
        "whole": coverage.is_whole and not wrong,
        "sentence": "; ".join((coverage.sentence, *_notes(wrong, coverage.unseen))),
    }


def _notes(damaged: int, unseen: Sequence[str]) -> Iterator[str]:
    if damaged:
        yield f"and the output of {counted(damaged, 'run')} is not there as it was written"
    if unseen:
        more = f" and {counted(len(unseen) - 1, 'other topic')}" if len(unseen) > 1 else ""
        yield (
            "the number of unread offsets is unknown: the page's principal may not Describe "
            f"{unseen[0]}{more}, or a partition has no leader"
        )


def tasks_of(viewer: Viewer, pipelines: Iterable[PipelineHistory]) -> Tasks:
    """Return the last pipeline of each task instance."""
    newest = ((viewer.newest(pipeline), pipeline.name) for pipeline in pipelines)
    return {task_key(record): name for record, name in newest if record is not None}


def ledger_warnings(history: KnownRuns) -> list[str]:
    """Return warnings about the ledger."""
    reader = history.reader
    warnings = []
    if reader.behind:
        warnings.append("A transaction is open in the ledger: runs behind it are shown when it has ended.")
    if reader.begins_at:
        warnings.append("The ledger has lost its first records: runs of then are missing here.")
    if reader.ignored:
        were = (
            "was written by no run, and is" if len(reader.ignored) == 1 else "were written by no run, and are"
        )
        warnings.append(
            f"{counted(len(reader.ignored), 'record')} of the ledger {were} ignored: see who may write to it."
        )
    if history.unreadable:
        count = counted(len(history.unreadable), "record")
        warnings.append(f"{count} of the ledger cannot be read: left out.")
    return warnings
