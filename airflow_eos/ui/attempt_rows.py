"""Rows of attempts: the state of a pipeline, its cause, and the next step."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args
from urllib.parse import quote, urlencode

from airflow_eos.ui.attempts import LOOKED_BACK, Attempt
from airflow_eos.ui.moments import ago

Kind = Literal["failed", "retrying", "running", "waiting", "never ran", "succeeded", "unknown"]
"""The outcome of a pipeline's last attempt, the most urgent first."""
ATTEMPTS_SHOWN = 50
"""Attempts of one pipeline on its page."""
KINDS: tuple[Kind, ...] = get_args(Kind)
MEANING: Mapping[Kind, str] = {
    "failed": "The last attempt failed, and Airflow does not try again by itself. When the cause is gone, "
    "clear the task: a run that is committed succeeds from the ledger, any other one runs.",
    "retrying": "The last attempt failed, and Airflow tries again by itself.",
    "running": "A task is queued, runs, or waits in the triggerer.",
    "waiting": "The task was tried, and cleared since: it waits to run again.",
    "never ran": "There is a Dag run, and no attempt of the task yet.",
    "succeeded": "The last task succeeded, or was skipped or removed.",
    "unknown": f"Airflow has no attempt in its {LOOKED_BACK.days} days before now, or may not be read here.",
}
_OF_STATE: Mapping[str, Kind] = {
    "failed": "failed",
    "upstream_failed": "failed",
    "up_for_retry": "retrying",
    "success": "succeeded",
    "skipped": "succeeded",
    "removed": "succeeded",
}
_NO_REASON = (
    "The try left no error here: its process ended before it could, Airflow or a user ended it, or an XCom "
    "backend keeps errors elsewhere. See its log."
)
_UPSTREAM = "A task before it failed, so this one did not start."


def kind_of(attempt: Attempt) -> Kind:
    """Return the outcome of an attempt; any other state of Airflow counts as running."""
    if not attempt.state:
        return "waiting" if attempt.try_number > 0 else "never ran"
    return _OF_STATE.get(attempt.state, "running")


def by_pipeline(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Return attempts by their pipeline, in the same order."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.pipeline, []).append(attempt)
    return grouped


def last_row(attempts: Sequence[Attempt], now: dt.datetime) -> dict[str, Any]:
    """Return the last attempt of a pipeline: the task of its newest Dag run that needs attention most.

    ``tasks`` and ``tasks_failed`` count the pipeline's task instances in that Dag run; ``runs`` the Dag runs
    that tried the pipeline, and ``runs_failed`` those whose latest try failed.

    :param attempts: of one pipeline, at least one, the newest first. A Dag run without a try of the task
        counts only if there is no other.
    """
    runs: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        runs.setdefault((attempt.dag_id, attempt.run_id), []).append(attempt)
    tried = [run for run in runs.values() if any(kind_of(attempt) != "never ran" for attempt in run)]
    newest = (tried or list(runs.values()))[0]
    worst = min(newest, key=lambda attempt: KINDS.index(kind_of(attempt)))
    return {
        **attempt_row(worst, now),
        "tasks": len(newest),
        "tasks_failed": _failed(newest),
        "runs": len(tried),
        "runs_failed": sum(_failed(run) > 0 for run in tried),
    }


def _failed(attempts: Iterable[Attempt]) -> int:
    return sum(kind_of(attempt) == "failed" for attempt in attempts)


def attempt_row(attempt: Attempt, now: dt.datetime) -> dict[str, Any]:
    """Return one attempt with Airflow's paths of its Dag run and log; its sentence is untrusted text."""
    kind = kind_of(attempt)
    run_path = f"/dags/{quote(attempt.dag_id, safe='')}/runs/{quote(attempt.run_id, safe='')}"
    mapped = f"/mapped/{attempt.map_index}" if attempt.map_index >= 0 else ""
    tries = f"?{urlencode({'try_number': attempt.try_number})}" if attempt.try_number > 0 else ""
    failure = attempt.failure if kind in ("failed", "retrying") else None
    sentence = "" if failure is None else failure.sentence
    if failure is None and kind in ("failed", "retrying"):
        sentence = _UPSTREAM if attempt.state == "upstream_failed" else _NO_REASON
    return {
        "kind": kind,
        "meaning": MEANING[kind],
        "state": attempt.state,
        "dag_id": attempt.dag_id,
        "task_id": attempt.task_id,
        "run_id": attempt.run_id,
        "map_index": attempt.map_index,
        "try_number": attempt.try_number,
        "tries": max(attempt.try_number, attempt.max_tries + 1),
        "at": attempt.at.astimezone(dt.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "at_ago": ago(attempt.at, now),
        "error": "" if failure is None else failure.error,
        "sentence": sentence,
        "run_path": run_path,
        "log_path": f"{run_path}/tasks/{quote(attempt.task_id, safe='')}{mapped}{tries}",
    }


def attempts_view(attempts: Sequence[Attempt] | None, now: dt.datetime) -> dict[str, Any]:
    """Return a pipeline's attempts in Airflow.

    :param attempts: of the pipeline, the newest first; None if they cannot be read.
    """
    last = last_row(attempts, now) if attempts else None
    return {
        "kind": last["kind"] if last else "unknown",
        "attempt": last,
        "attempts": [attempt_row(attempt, now) for attempt in (attempts or ())[:ATTEMPTS_SHOWN]],
        "attempts_left_out": max(0, len(attempts or ()) - ATTEMPTS_SHOWN),
        "attempts_seen": attempts is not None,
        "meaning": MEANING,
    }
