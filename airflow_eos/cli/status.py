"""`airflow eos status`: the ledger's contents, lag, and exceeded limits."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_eos.cli.definition import DONE, FOUND
from airflow_eos.cli.outcome import Outcome, Row, WrongUsage
from airflow_eos.cli.rows import run_row, runs_named
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.spec import Deployment
from airflow_eos.wording import counted

Gauge = tuple[str, float, Mapping[str, str]]
"""A metric: name, value, tags."""


def status(target: Deployment, options: Namespace) -> Outcome:
    """Show ledger, cursors and runs; 3 if something named does not exist, or a limit is exceeded."""
    from airflow_eos.engine.control_plane import ControlPlane
    from airflow_eos.operations.group_progress import progress_of
    from airflow_eos.operations.open_transactions import open_transactions
    from airflow_eos.operations.queries import ledger_names, ledger_status

    asked_runs = [runs_named(text) for text in options.run]
    everything = not options.group and not asked_runs
    if not everything and (options.max_gaps is not None or options.send_metrics):
        raise WrongUsage("--max-gaps and --send-metrics are for all there is: leave --group and --run out")
    if options.send_metrics and options.send_gauges is None:
        raise WrongUsage("--send-metrics sends by Airflow's own metrics: use `airflow eos status`")
    names = ledger_names(target) if everything else None
    groups = names.groups if names else options.group
    ledger_answer = ledger_status(target, groups=groups, runs=[run for names in asked_runs for run in names])
    answer = ledger_answer.to_dict()
    answer["runs"] = dict(_meant(answer["runs"], names) for names in asked_runs)
    groups_or_all = everything or bool(options.group)
    transactions = open_transactions(target) if groups_or_all else []
    answer["open_transactions"] = [transaction.to_dict() for transaction in transactions]
    if not everything:
        answer["open_transactions"] = _of_groups(answer["open_transactions"], target.prefix, options.group)
    exceeded: list[Row] = []
    with ControlPlane(target) as control:
        for group, cursor in ledger_answer.cursors.items():
            if isinstance(cursor, CursorRecord):
                answer["cursors"][group] |= progress_of(control, target, group, cursor).to_dict()
    for group, cursor in ledger_answer.cursors.items():
        if cursor is not None:
            exceeded += _exceeded(group, answer["cursors"][group], options)
    missing = _missing(target, answer)
    latest = names.runs if names else {}
    if everything:
        answer["pipelines"] = {name: record.summary() for name, record in latest.items()}
        answer["gaps"] = [entry.to_dict() for entry in names.gaps] if names else []
        answer["tables"] = (
            [_table_row(name, record) for name, record in names.in_tables.items()] if names else []
        )
        answer["intents"] = [intent.to_dict() for intent in names.intents] if names else []
        exceeded += _exceeded_gaps(answer, options)
    exceeded += _exceeded_open(answer, options)
    answer |= {"missing": [entry["not in the ledger"] for entry in missing], "exceeded": exceeded}
    tables = {
        "ledger": [answer["ledger"]],
        "cursors": [_cursor_row(group, entry) for group, entry in answer["cursors"].items()],
        "behind open transactions": [
            row for group, entry in answer["cursors"].items() for row in _waiting_rows(group, entry)
        ],
        "pipelines, their latest runs": [
            {"pipeline": name, "at": entry.staged_at, **run_row(entry.summary())}
            for name, entry in latest.items()
        ],
        "tables, their latest rows": answer.get("tables", []),
        "about to be published in tables": answer.get("intents", []),
        "runs": [
            run_row({"run_key": name, **(entry or {"state": "no record"})})
            for name, entry in answer["runs"].items()
        ],
        "open transactions": answer.get("open_transactions", []),
        "gaps between committed intervals": answer.get("gaps", []),
        "missing": missing,
        "limits passed": exceeded,
    }
    shown = {title: rows for title, rows in tables.items() if rows}
    if options.send_metrics:
        options.send_gauges(gauges(answer, target.prefix))
    return Outcome(answer, shown, FOUND if missing or exceeded else DONE)


def _meant(runs: Mapping[str, Any], names: Iterable[tuple[str, str]]) -> tuple[str, Any]:
    """Return the first of these names that is in the ledger, with its run; or else the first."""
    answers = [(name, runs[name]) for name in (keys.run_name(*name) for name in names)]
    return next((answer for answer in answers if answer[1] is not None), answers[0])


def _table_row(pipeline: str, record: RunRecord) -> Row:
    """Return a pipeline's table and its last run with rows."""
    table = record.details[TABLE]
    named = {"pipeline": pipeline, "table": table["sink"], "snapshot": table["snapshot"]}
    return {**named, "rows": table["rows"], "at": record.staged_at, "run_key": record.run_key}


def gauges(answer: Mapping[str, Any], prefix: str) -> list[Gauge]:
    """Return the results of `status` as metrics: name, value and tags; omits unknown values."""
    sent: list[Gauge] = []
    for group, cursor in answer["cursors"].items():
        if (cursor or {}).get("lag") is not None:
            sent.append(("eos.group.lag", cursor["lag"], {"group": group}))
            undecided = sum(item["end"] - item["start"] for item in cursor["waiting"])
            sent.append(("eos.group.undecided", undecided, {"group": group}))
        if "open_transaction" in (cursor or {}):
            open_now = cursor["open_transaction"]
            age = open_now["age_seconds"] if open_now else 0
            sent.append(("eos.group.open_transaction", age, {"group": group}))
    for pipeline in answer["pipelines"]:
        count = sum(item["pipeline"] == pipeline for item in answer["gaps"])
        sent.append(("eos.pipeline.gaps", count, {"pipeline": pipeline}))
    oldest = next(iter(answer["open_transactions"]), None)
    sent.append(("eos.open_transaction", oldest["age_seconds"] if oldest else 0, {"prefix": prefix}))
    return sent


def _of_groups(transactions: Iterable[Row], prefix: str, groups: Sequence[str]) -> list[Row]:
    """Return the open transactions of the groups' cursors, also before their first commit."""
    return [
        transaction
        for transaction in transactions
        if any(keys.belongs_to(transaction["transactional_id"], prefix, "", group) for group in groups)
    ]


def _exceeded_open(answer: Mapping[str, Any], options: Namespace) -> list[Row]:
    """Return the limits exceeded by transactions without a cursor in the ledger."""
    open_now = [(cursor or {}).get("open_transaction") for cursor in answer["cursors"].values()]
    cursors = {transaction["transactional_id"] for transaction in open_now if transaction}
    return [
        {
            "transactional_id": transaction["transactional_id"],
            "limit": "max-open",
            "allowed": options.max_open,
            "found": transaction["age_seconds"],
        }
        for transaction in answer["open_transactions"]
        if options.max_open is not None
        and transaction["age_seconds"] > options.max_open
        and transaction["transactional_id"] not in cursors
    ]


def _exceeded_gaps(answer: Mapping[str, Any], options: Namespace) -> list[Row]:
    """Return the limits that pipelines exceed."""
    rows: list[Row] = []
    for pipeline, count in sorted(Counter(gap["pipeline"] for gap in answer["gaps"]).items()):
        if options.max_gaps is not None and count > options.max_gaps:
            limit = {"limit": "max-gaps", "allowed": options.max_gaps, "found": count}
            rows.append({"pipeline": pipeline, **limit})
    return rows


def _missing(target: Deployment, answer: Mapping[str, Any]) -> list[Row]:
    """Return the named groups and runs that are not in the ledger, with similar names."""
    from airflow_eos.operations.queries import ledger_names, near, pruned_runs

    groups = [name for name, entry in answer["cursors"].items() if entry is None]
    runs = [name for name, entry in answer["runs"].items() if entry is None]
    if not groups and not runs:
        return []
    names = ledger_names(target)
    rows = []
    for name in groups:
        begun = _of_groups(answer["open_transactions"], target.prefix, [name])
        hint = near(name, names.groups)
        if begun:
            age = begun[0]["age_seconds"]
            hint = f"a first run has its transaction open for {age} s: it is at work, or was killed"
        rows.append({"not in the ledger": name, "there": hint})
    for name in runs:
        pipeline, _ = keys.named_runs(name)[0]
        latest = names.runs.get(pipeline)
        hint = f"the latest run is {latest.run_id!r}" if latest else near(pipeline, tuple(names.runs))
        if latest and (pruned := pruned_runs(target, pipeline)):
            are = "is" if pruned == 1 else "are"
            hint = f"it may be pruned, as {counted(pruned, 'run')} of the pipeline {are}; {hint}"
        rows.append({"not in the ledger": name, "there": hint})
    return list(rows)


def _exceeded(group: str, cursor: Mapping[str, Any], options: Namespace) -> list[Row]:
    """Return the limits that a group exceeds; an unknown value exceeds its limit."""
    own = [cursor["open_transaction"]] if cursor.get("open_transaction") else []
    ages = [transaction["age_seconds"] for transaction in (*own, *cursor.get("waiting", ()))]
    all_known = "open_transaction" in cursor and None not in ages
    facts = {
        "max-lag": (options.max_lag, cursor.get("lag_to_end")),
        "max-open": (options.max_open, max(ages, default=0) if all_known else None),
    }
    return [
        {"group": group, "limit": name, "allowed": allowed, "found": value}
        for name, (allowed, value) in facts.items()
        if allowed is not None and (value is None or value > allowed or "unreadable" in cursor)
    ]


def _cursor_row(group: str, cursor: Mapping[str, Any] | None) -> Row:
    row: dict[str, Any] = {"group": group, **(cursor or {"cursor": "none"})}
    if not row.get("ends"):
        row.pop("ends", None)  # of a mapped cursor, whose partitions have records of their own
    open_now = row.pop("open_transaction", None)
    if open_now:
        row["open for"] = f"{open_now['age_seconds']} s"
    for name in ("waiting", "lag_to_end"):
        row.pop(name, None)
    if cursor and cursor.get("waiting"):
        row["lag to the end"] = cursor["lag_to_end"]
    return row


def _waiting_rows(group: str, cursor: Mapping[str, Any] | None) -> list[Row]:
    return [{"group": group, "waits": waiting["text"]} for waiting in (cursor or {}).get("waiting", ())]
