"""`airflow eos status`: the state of a deployment, its metrics, and exceeded limits."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_eos.cli.definition import DONE, FOUND
from airflow_eos.cli.outcome import Gauge, Outcome, Row, WrongUsage
from airflow_eos.ledger import keys
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.deployment_status import DeploymentStatus, deployment_status, exceeded, missing


def status(target: Deployment, options: Namespace) -> Outcome:
    """Show ledger, cursors and runs; exit code 3 if a named one does not exist, or a limit is exceeded."""
    runs = [runs_named(text) for text in options.run]
    if (options.group or runs) and (options.max_gaps is not None or options.send_metrics):
        raise WrongUsage("--max-gaps and --send-metrics are for all there is: leave --group and --run out")
    if options.send_metrics and options.send_gauges is None:
        raise WrongUsage("--send-metrics sends by Airflow's own metrics: use `airflow eos status`")
    state = deployment_status(target, groups=options.group, runs=runs)
    absent = missing(target, state)
    passed = exceeded(state, max_lag=options.max_lag, max_open=options.max_open, max_gaps=options.max_gaps)
    limits: list[Row] = [limit.to_dict() for limit in passed]
    data = state.to_dict() | {"missing": [name for name, _ in absent], "exceeded": limits}
    tables = _tables(state, data)
    tables["missing"] = [{"not in the ledger": name, "there": hint} for name, hint in absent]
    tables["limits passed"] = limits
    if options.send_metrics:
        options.send_gauges(gauges(state, target.prefix))
    shown = {title: rows for title, rows in tables.items() if rows}
    return Outcome(data, shown, FOUND if absent or passed else DONE)


def runs_named(text: str) -> list[tuple[str, str]]:
    """Return the possible pairs of pipeline and run id of an option's run.

    A slash in either is ``%2F``, as in run keys; pairs after the first one assume an unquoted slash.

    :raises WrongUsage: the text names no run.
    """
    first, *others = keys.named_runs(text)
    if not all(first):
        raise WrongUsage(f"--run {text!r} must be PIPELINE/RUN_ID, for example demo/2026-11-21T05")
    return [first, *(name for name in others if all(name))]


def run_row(run: Mapping[str, Any]) -> Row:
    """Return the columns of a run's summary."""
    counts = ("records_read", "records_late", "records_written")
    return {name: run.get(name) for name in ("run_key", "state", "mode", "run_id", "try_number", *counts)}


def gauges(state: DeploymentStatus, prefix: str) -> list[Gauge]:
    """Return the state of a whole deployment as metrics: name, value and tags; omits unknown values."""
    sent: list[Gauge] = []
    for group, progress in state.progress.items():
        if (unread := progress.unread) is not None:
            sent.append(("eos.group.lag", unread.offsets, {"group": group}))
            undecided = unread.offsets_to_end - unread.offsets
            sent.append(("eos.group.undecided", undecided, {"group": group}))
        if progress.is_complete:
            open_now = progress.open_transaction
            age = (open_now.age_seconds if open_now else 0) or 0
            sent.append(("eos.group.open_transaction", age, {"group": group}))
    if state.names is not None:
        gaps = Counter(gap.pipeline for gap in state.names.gaps)
        for pipeline in state.names.runs:
            count = gaps[pipeline]
            sent.append(("eos.pipeline.gaps", count, {"pipeline": pipeline}))
    ages = [transaction.age_seconds or 0 for transaction in state.open_transactions]
    sent.append(("eos.open_transaction", max(ages, default=0), {"prefix": prefix}))
    return sent


def _tables(state: DeploymentStatus, data: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the tables of a state, from its JSON form."""
    latest = state.names.runs if state.names else {}
    runs = data["runs"].items()
    return {
        "ledger": [data["ledger"]],
        "cursors": [_cursor_row(group, entry) for group, entry in data["cursors"].items()],
        "behind open transactions": [
            {"group": group, "waits": waiting["text"]}
            for group, entry in data["cursors"].items()
            for waiting in (entry or {}).get("waiting", ())
        ],
        "pipelines, their latest runs": [
            {"pipeline": name, "at": record.staged_at, **run_row(record.summary())}
            for name, record in latest.items()
        ],
        "tables, their latest rows": data.get("tables", []),
        "about to be published in tables": data.get("intents", []),
        "runs": [run_row({"run_key": name, **(entry or {"state": "no record"})}) for name, entry in runs],
        "open transactions": data["open_transactions"],
        "gaps between committed intervals": data.get("gaps", []),
    }


def _cursor_row(group: str, cursor: Mapping[str, Any] | None) -> Row:
    row: dict[str, Any] = {"group": group, **(cursor or {"cursor": "none"})}
    if not row.get("ends"):
        row.pop("ends", None)  # empty for a mapped cursor, whose partitions have their own records
    open_now = row.pop("open_transaction", None)
    if open_now:
        row["open for"] = f"{open_now['age_seconds']} s"
    for name in ("waiting", "lag_to_end"):
        row.pop(name, None)
    if cursor and cursor.get("waiting"):
        row["lag to the end"] = cursor["lag_to_end"]
    return row
