"""What the commands do: each takes a target and its options, and returns an outcome."""

from __future__ import annotations

import datetime as dt
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_eos.cli.definition import DONE, FOUND
from airflow_eos.cli.outcome import Outcome, Row
from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Interval, TopicPartition
from airflow_eos.model.record import RunRecord
from airflow_eos.model.spec import Deployment, RunSpec
from airflow_eos.wire.client_config import ClientConfig

Gauge = tuple[str, float, Mapping[str, str]]
"""A metric: name, value, tags."""


class WrongUsage(Exception):
    """The options do not fit together; exit code 2."""


def init(target: Deployment, options: Namespace) -> Outcome:
    """Create the ledger."""
    from airflow_eos.engine.queries import create_ledger

    settings = replace(
        target.ledger, partitions=options.partitions, replication_factor=options.replication_factor
    )
    made = create_ledger(target.kafka, settings, target.prefix, adopt_new=options.adopt_new)
    ledger = {"topic": settings.topic, "topic_id": made.topic_id, "partitions": made.partitions}
    return Outcome({"ledger": ledger}, {"ledger": [ledger]})


def doctor(target: Deployment, options: Namespace) -> Outcome:
    """Check everything; 3 when a check fails."""
    from airflow_eos.engine.doctor import DoctorOptions, examine

    checked = DoctorOptions(
        deployment=target,
        group=options.group,
        sources=tuple(options.source),
        sinks=tuple(options.sink),
        oldest=_interval(options)[0] if options.interval else None,
        transaction_timeout=dt.timedelta(seconds=options.transaction_timeout),
        delivery_timeout=dt.timedelta(seconds=options.delivery_timeout),
    )
    checks = examine(checked)
    if options.spark:
        from airflow_eos.engine.executors import check_executors

        kafka = ClientConfig.of(target.kafka)
        checks += check_executors(options.spark, kafka, encrypted=options.encrypted_spark)
    rows = [check.to_dict() for check in checks]
    failed = [row["name"] for row in rows if row["status"] == "fail"]
    data = {"healthy": not failed, "failed": failed, "checks": rows}
    return Outcome(data, {"checks": rows}, FOUND if failed else DONE)


def plan(target: Deployment, options: Namespace) -> Outcome:
    """Show what a run would read."""
    from airflow_eos.engine.preview import preview

    try:
        spec = RunSpec(
            kafka=target.kafka,
            pipeline=options.pipeline,
            run_id=options.run_id,
            source_topics=tuple(options.topic),
            group_id=options.group,
            ranges=_ranges(options),
            prefix=target.prefix,
            source_partition=options.source_partition,
            ledger=target.ledger,
        )
    except (ConfigurationError, ValueError) as error:
        raise WrongUsage(str(error)) from error
    found = preview(spec)
    ranges = [
        {"topic": topic, "partition": partition, "start": start, "end": end, "at most": end - start}
        for topic, partition, start, end in found["ranges"]
    ]
    names = ("run_key", "transactional_id", "mode", "group", "records_at_most")
    run = {name: found[name] for name in names}
    run["committed"] = "no record" if found["committed"] is None else found["committed"]["run_id"]
    notes = [{"note": note} for note in found["notes"]]
    return Outcome(found, {"run": [run], "ranges": ranges, "notes": notes})


def status(target: Deployment, options: Namespace) -> Outcome:
    """Show ledger, cursors and runs; 3 when something named is not there, or a limit is passed."""
    from airflow_eos.engine.admin import open_transactions
    from airflow_eos.engine.queries import ledger_names, ledger_status

    asked_runs = [_run(text) for text in options.run]
    everything = not options.group and not asked_runs
    if not everything and (options.max_gaps is not None or options.send_metrics):
        raise WrongUsage("--max-gaps and --send-metrics are for all there is: leave --group and --run out")
    if options.send_metrics and options.send_gauges is None:
        raise WrongUsage("--send-metrics sends by Airflow's own metrics: use `airflow eos status`")
    names = ledger_names(target.kafka, target.ledger, prefix=target.prefix) if everything else None
    groups = names.groups if names else options.group
    found = ledger_status(target.kafka, target.ledger, groups=groups, runs=asked_runs, prefix=target.prefix)
    exceeded: list[Row] = []
    for group, cursor in found["cursors"].items():
        if cursor is not None:
            _add_progress(target, group, cursor)
            exceeded += _exceeded(group, cursor, options)
    missing = _missing(target, found)
    latest = names.runs if names else {}
    if everything:
        found["pipelines"] = {name: record.summary() for name, record in latest.items()}
        found["open_transactions"] = open_transactions(target.kafka, target.prefix)
        found["gaps"] = [one.to_dict() for one in names.gaps] if names else []
        exceeded += _exceeded_by_all(found, options)
    found |= {"missing": [one["not in the ledger"] for one in missing], "exceeded": exceeded}
    tables = {
        "ledger": [found["ledger"]],
        "cursors": [_cursor_row(group, one) for group, one in found["cursors"].items()],
        "pipelines, their latest runs": [
            {"pipeline": name, "at": one.staged_at, **_run_row(one.summary())} for name, one in latest.items()
        ],
        "runs": [
            _run_row({"run_key": name, **(one or {"state": "no record"})})
            for name, one in found["runs"].items()
        ],
        "open transactions": found.get("open_transactions", []),
        "gaps between committed intervals": found.get("gaps", []),
        "missing": missing,
        "limits passed": exceeded,
    }
    shown = {title: rows for title, rows in tables.items() if rows}
    if options.send_metrics:
        options.send_gauges(gauges(found, target.prefix))
    return Outcome(found, shown, FOUND if missing or exceeded else DONE)


def gauges(found: Mapping[str, Any], prefix: str) -> list[Gauge]:
    """Return what `status` found as metrics: name, value and tags; what cannot be known is left out."""
    sent: list[Gauge] = []
    for group, cursor in found["cursors"].items():
        if (cursor or {}).get("lag") is not None:
            sent.append(("eos.group.lag", cursor["lag"], {"group": group}))
        if "open_transaction" in (cursor or {}):
            open_now = cursor["open_transaction"]
            age = open_now["age_seconds"] if open_now else 0
            sent.append(("eos.group.open_transaction", age, {"group": group}))
    for pipeline in found["pipelines"]:
        count = sum(one["pipeline"] == pipeline for one in found["gaps"])
        sent.append(("eos.pipeline.gaps", count, {"pipeline": pipeline}))
    oldest = next(iter(found["open_transactions"]), None)
    sent.append(("eos.open_transaction", oldest["age_seconds"] if oldest else 0, {"prefix": prefix}))
    return sent


def _exceeded_by_all(found: Mapping[str, Any], options: Namespace) -> list[Row]:
    """Return the limits that pipelines, and transactions that are no cursor's, have passed."""
    open_now = [(cursor or {}).get("open_transaction") for cursor in found["cursors"].values()]
    cursors = {one["transactional_id"] for one in open_now if one}
    rows: list[Row] = [
        {
            "transactional_id": one["transactional_id"],
            "limit": "max-open",
            "allowed": options.max_open,
            "found": one["age_seconds"],
        }
        for one in found["open_transactions"]
        if options.max_open is not None
        and one["age_seconds"] > options.max_open
        and one["transactional_id"] not in cursors
    ]
    for pipeline, count in sorted(Counter(one["pipeline"] for one in found["gaps"]).items()):
        if options.max_gaps is not None and count > options.max_gaps:
            limit = {"limit": "max-gaps", "allowed": options.max_gaps, "found": count}
            rows.append({"pipeline": pipeline, **limit})
    return rows


def _missing(target: Deployment, found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return which of the groups and runs that were named are not in the ledger, with what is there."""
    from airflow_eos.engine.queries import ledger_names, near

    groups = [name for name, one in found["cursors"].items() if one is None]
    runs = [name for name, one in found["runs"].items() if one is None]
    if not groups and not runs:
        return []
    known = ledger_names(target.kafka, target.ledger, prefix=target.prefix)
    rows = [{"not in the ledger": name, "there": near(name, known.groups)} for name in groups]
    for name in runs:
        pipeline = name.partition("/")[0]
        latest = known.runs.get(pipeline)
        there = f"the latest run is {latest.run_id!r}" if latest else near(pipeline, tuple(known.runs))
        rows.append({"not in the ledger": name, "there": there})
    return list(rows)


def _add_progress(target: Deployment, group: str, cursor: dict[str, Any]) -> None:
    """Add to what the ledger says of a group what it has to read, and the transaction it has open."""
    from airflow_eos.engine.admin import oldest_open_transaction
    from airflow_eos.engine.lag import unread

    topics = cursor.pop("topics", None)
    if topics is None:
        return  # it cannot be read
    ids = [keys.cursor_transactional_id(target.prefix, group)]
    try:
        left = unread(target.kafka, group, topics, ledger=target.ledger, prefix=target.prefix)
    except UnknownTopic as error:
        cursor |= {"lag": None, "unknown": error.message}
    else:
        cursor["lag"] = left.offsets
        if cursor["layout"] == "mapped":
            ids = [
                keys.cursor_transactional_id(target.prefix, group, one.topic_partition) for one in left.ranges
            ]
    cursor["open_transaction"] = oldest_open_transaction(target.kafka, ids)


def _exceeded(group: str, cursor: Mapping[str, Any], options: Namespace) -> list[Row]:
    """Return the limits that a group has passed; what cannot be known is not within one."""
    open_now = cursor.get("open_transaction")
    facts = {
        "max-lag": (options.max_lag, cursor.get("lag")),
        "max-open": (options.max_open, open_now["age_seconds"] if open_now else 0),
    }
    return [
        {"group": group, "limit": name, "allowed": allowed, "found": found}
        for name, (allowed, found) in facts.items()
        if allowed is not None and (found is None or found > allowed or "unreadable" in cursor)
    ]


def _cursor_row(group: str, cursor: Mapping[str, Any] | None) -> Row:
    row: dict[str, Any] = {"group": group, **(cursor or {"cursor": "none"})}
    open_now = row.pop("open_transaction", None)
    return {**row, "open for": f"{open_now['age_seconds']} s"} if open_now else row


def ledger(target: Deployment, options: Namespace) -> Outcome:
    """List records."""
    from airflow_eos.engine.queries import ledger_records, no_such_pipeline

    if options.key and options.pipeline:
        raise WrongUsage("give --pipeline or --key, not both")
    found = ledger_records(
        target.kafka,
        target.ledger,
        pipeline=options.pipeline,
        key=options.key,
        latest=options.limit,
        prefix=target.prefix,
    )
    if options.pipeline and not found:
        raise no_such_pipeline(target.kafka, target.ledger, options.pipeline, prefix=target.prefix)
    if options.key and not found:
        raise ConfigurationError(
            f"the ledger {target.ledger.topic!r} has no record of the key {options.key!r}; "
            "`airflow eos ledger` lists all"
        )
    found.sort(key=lambda one: (_staged_at(one["value"]), one["key"]))
    if options.limit:
        found = found[-options.limit :]
    return Outcome({"records": found}, {"records": [_record_row(one) for one in found]})


def _staged_at(value: Any) -> str:
    return str(value.get("staged_at", "")) if isinstance(value, Mapping) else ""


def verify(target: Deployment, options: Namespace) -> Outcome:
    """Read output again; 3 when something does not match."""
    from airflow_eos.engine.queries import no_such_pipeline, pruned_runs, refuse_pruned, run_records
    from airflow_eos.engine.verification import verify_output

    records, unreadable = run_records(
        target.kafka, target.ledger, pipeline=options.pipeline, prefix=target.prefix
    )
    if not records and not unreadable:
        raise no_such_pipeline(target.kafka, target.ledger, options.pipeline, prefix=target.prefix)
    if options.run_key:
        missing = sorted(set(options.run_key) - {one.run_key for one in records})
        if missing:
            refuse_pruned(target.kafka, target.ledger, options.pipeline, missing[0], prefix=target.prefix)
            raise ConfigurationError(
                f"the ledger has no run {missing[0]!r} of {options.pipeline!r}; "
                "`airflow eos ledger --pipeline NAME` lists them"
            )
        records = [one for one in records if one.run_key in options.run_key]
    if options.last:
        records = records[-options.last :]
    findings = [one.to_dict() for record in records for one in verify_output(target.kafka, record)]
    wrong = [one for one in findings if one["outcome"] == "mismatch"]
    data = {
        "pipeline": options.pipeline,
        "matches": not wrong and not unreadable,
        "runs": len(records),
        "pruned": pruned_runs(target.kafka, target.ledger, options.pipeline, prefix=target.prefix),
        "records": sum(one["found"] for one in findings),
        "expired": sum(one["recorded"] for one in findings if one["outcome"] == "expired"),
        "findings": findings,
        "unreadable": unreadable,
    }
    summary = {name: data[name] for name in ("pipeline", "matches", "runs", "pruned", "records", "expired")}
    rows = {"unreadable": [{"record": one} for one in unreadable]} if unreadable else {}
    return Outcome(
        data, {"summary": [summary], "findings": findings, **rows}, DONE if data["matches"] else FOUND
    )


def abort(target: Deployment, options: Namespace) -> Outcome:
    """End a transaction."""
    from airflow_eos.engine.admin import abort_transaction

    if bool(options.transactional_id) == bool(options.group):
        raise WrongUsage("give --transactional-id or --group")
    if options.yes and options.epoch is None:
        raise WrongUsage("--yes needs --epoch: the producer epoch that is shown without --yes")
    name = options.transactional_id or keys.cursor_transactional_id(target.prefix, options.group)
    found = abort_transaction(
        target.kafka,
        name,
        prefix=target.prefix,
        epoch=options.epoch,
        foreign=options.foreign,
        execute=options.yes,
    )
    title = "transaction"
    if found["answer"] == "dry run":
        title += f"; to end it add --yes --epoch {found['producer_epoch']}"
        title += " --foreign, if you know its owner" if found["foreign"] else ""
    return Outcome(found, {title: [found]})


def repair(target: Deployment, options: Namespace) -> Outcome:
    """End what brokers forgot to end."""
    from airflow_eos.engine.repair import repair as end_hanging

    found = end_hanging(
        target.kafka,
        target.ledger,
        target.prefix,
        topics=options.topic,
        assume=options.assume or "unknown",
        execute=options.yes,
    )
    rows: list[Row] = [one.to_dict() for one in found]
    left = any(not one.done for one in found)
    return Outcome({"hanging": rows}, {"hanging": rows}, FOUND if left else DONE)


def dismiss(target: Deployment, options: Namespace) -> Outcome:
    """Make a key unused."""
    from airflow_eos.engine.admin import dismiss_record

    if not options.key or options.routing is None:
        raise WrongUsage("give --key and --routing")
    found = dismiss_record(
        target.kafka,
        target.ledger,
        options.key,
        routing=options.routing,
        prefix=target.prefix,
        execute=options.yes,
    )
    return Outcome(found, {"record": [found]})


def sign(target: Deployment, options: Namespace) -> Outcome:
    """Say from where on records are signed."""
    from airflow_eos.engine.admin import sign_ledger

    found = sign_ledger(target.kafka, target.ledger, prefix=target.prefix, execute=options.yes)
    rows: list[Row] = [
        {"partition": partition, "signed from offset": offset} for partition, offset in found["from"].items()
    ]
    title = "signed" if found["done"] else "would be signed; add --yes"
    return Outcome(found, {title: rows})


def index(target: Deployment, options: Namespace) -> Outcome:
    """Say what the index of each partition speaks for now."""
    from airflow_eos.engine.admin import index_ledger

    del options
    done = index_ledger(target.kafka, target.ledger, prefix=target.prefix)
    rows: list[Row] = [
        {
            "partition": one["partition"],
            "indexed up to offset": one["through"],
            "keys added or moved": one["keys"],
            "leaves": one["leaves"],
        }
        for one in done
    ]
    return Outcome({"indexed": done}, {"indexed": rows})


def prune(target: Deployment, options: Namespace) -> Outcome:
    """Remove old run records."""
    from airflow_eos.engine.admin import prune_ledger

    found = prune_ledger(
        target.kafka,
        target.ledger,
        _utc(options.before),
        pipeline=options.pipeline,
        prefix=target.prefix,
        execute=options.yes,
    )
    rows: list[Row] = [{"pipeline": name, **counts} for name, counts in found["pipelines"].items()]
    title = "pruned" if found["done"] else "would be pruned; add --yes"
    return Outcome(found, {title: rows})


def _utc(text: str) -> dt.datetime:
    """Read a date or a moment; UTC where it names no time zone."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is no date: {error}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def reset_offsets(target: Deployment, options: Namespace) -> Outcome:
    """Move a cursor."""
    from airflow_eos.engine.admin import Reset, reset_cursor

    try:
        reset = Reset(
            group=options.group,
            to=options.to,
            offsets=dict(_offset(text) for text in options.offset),
            topics=tuple(options.topic),
            pipeline=options.pipeline,
        )
    except ConfigurationError as error:
        raise WrongUsage(str(error)) from error
    found = reset_cursor(target.kafka, target.ledger, target.prefix, reset, execute=options.yes)
    title = "moved" if found["done"] else "would be moved; add --yes"
    return Outcome(found, {title: found["offsets"]})


def _run(text: str) -> tuple[str, str]:
    pipeline, slash, run_id = text.partition("/")
    if not (pipeline and slash and run_id):
        raise WrongUsage(f"--run {text!r} must be PIPELINE/RUN_ID, for example demo/2026-11-21T05")
    return pipeline, run_id


def _offset(text: str) -> tuple[TopicPartition, int]:
    found = re.fullmatch(r"([A-Za-z0-9._\-]+):(\d+)=(\d+)", text)
    if found is None:
        raise WrongUsage(f"--offset {text!r} must be TOPIC:PARTITION=OFFSET, for example orders:0=1200")
    return TopicPartition(found[1], int(found[2])), int(found[3])


def _ranges(options: Namespace) -> Cursor | Interval:
    if options.interval:
        return Interval(*_interval(options))
    return Cursor(options.max_records, options.start)


def _interval(options: Namespace) -> tuple[dt.datetime, dt.datetime]:
    """Return both ends, aware; days and times without a zone are those of ``--timezone``."""
    start, end = (_moment(text, options.timezone) for text in options.interval)
    return start, end


def _moment(text: str, timezone: str | None) -> dt.datetime:
    import pendulum
    from pendulum.tz.exceptions import InvalidTimezone

    try:
        moment = pendulum.parse(text, tz=None)
        if not isinstance(moment, pendulum.DateTime):
            raise WrongUsage(f"--interval {text!r} is no day or time, for example 2026-11-21T05:00Z")
        if moment.tzinfo is not None:
            return moment
        if timezone is None:
            raise WrongUsage(
                f"--interval {text!r} names no zone: write {moment:%Y-%m-%dT%H:%MZ}, or give --timezone UTC"
            )
        return moment.set(tz=timezone)
    except InvalidTimezone as error:
        raise WrongUsage(f"--timezone {timezone!r} is unknown, for example Europe/Berlin") from error
    except ValueError as error:
        raise WrongUsage(f"--interval {text!r} is no ISO time: {error}") from error


def _run_row(run: Mapping[str, Any]) -> Row:
    counts = ("records_read", "records_late", "records_written")
    return {name: run.get(name) for name in ("run_key", "state", "mode", "run_id", "try_number", *counts)}


def _record_row(record: Mapping[str, Any]) -> Row:
    value = record["value"]
    if keys.is_run_record(record["key"]):
        try:
            run = RunRecord.from_json(value, record["key"])
        except LedgerUnreadable as error:
            place = f"partition {record['partition']}, offset {record['offset']}"
            return {"key": record["key"], "at": "", "what": f"unreadable, {place}: {error}"}
        what = f"{run.counts} by {run.run_id}, try {run.try_number}"
        return {"key": record["key"], "at": run.staged_at, "what": what}
    return {"key": record["key"], "at": "", "what": _short(value)}


def _short(value: Any) -> str:
    text = str(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={one}" for name, one in value.items() if name != "v")
    limit = 100
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def warm_spark(_target: None, options: Namespace) -> Outcome:
    """Write Spark's class-data archive."""
    from airflow_eos.spark import jvm

    folder = options.folder or options.class_data_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no [eos] class_data_folder: give --folder")
    archive = jvm.write_archive(Path(folder), jvm.java())
    data = {"archive": str(archive), "bytes": archive.stat().st_size}
    return Outcome(data, {"class data": [data]})


def spark_start(_target: None, options: Namespace) -> Outcome:
    """Start a Spark Connect server."""
    from airflow_eos.spark.server import control
    from airflow_eos.spark.server.folder import CONN_ID

    folder = _server_folder(options)
    archives = options.class_data_folder
    found, started = control.start(
        folder,
        control.Settings(
            port=options.port,
            memory=options.memory,
            master=options.master,
            idle_minutes=options.idle_minutes,
            class_data_folder=None if archives is None else Path(archives),
        ),
    )
    connection = {"conn_id": CONN_ID, "made by": control.import_command(folder)}
    title = "Spark Connect server, started" if started else "Spark Connect server, which ran before"
    data = {"started": started, **found, "connection": connection}
    return Outcome(data, {title: [_told(found)], "Airflow connection": [connection]})


def spark_status(_target: None, options: Namespace) -> Outcome:
    """Show the Spark Connect server; 3 when it takes no connections."""
    from airflow_eos.spark.server import control

    found = control.status(_server_folder(options))
    return Outcome(found, {"Spark Connect server": [_told(found)]}, DONE if found["running"] else FOUND)


def spark_stop(_target: None, options: Namespace) -> Outcome:
    """Stop the Spark Connect server."""
    from airflow_eos.spark.server import control

    folder = _server_folder(options)
    data = {"stopped": control.stop(folder), "folder": str(folder)}
    return Outcome(data, {"Spark Connect server": [data]})


def _server_folder(options: Namespace) -> Path:
    folder = options.folder or options.spark_server_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no AIRFLOW_HOME: give --folder")
    return Path(folder)


def _told(found: Mapping[str, Any]) -> Row:
    """Return what a person asks for."""
    names = ("running", "phase", "reason", "address", "connections", "pid", "since", "restarts", "log")
    return {name: found[name] for name in names if found[name] not in (None, "")}


def call(name: str, target: Deployment | None, options: Namespace) -> Outcome:
    """Run a command by the name of its function."""
    functions: Sequence[Any] = (
        init,
        doctor,
        plan,
        status,
        ledger,
        verify,
        repair,
        abort,
        dismiss,
        sign,
        index,
        prune,
        reset_offsets,
        warm_spark,
        spark_start,
        spark_status,
        spark_stop,
    )
    return next(one for one in functions if one.__name__ == name)(target, options)
