"""The functions of the commands: each takes a deployment and its options, and returns an outcome."""

from __future__ import annotations

import datetime as dt
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from airflow_eos.cli.definition import DONE, FOUND, NO_CONNECTION
from airflow_eos.cli.outcome import Outcome, Row, WrongUsage
from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.ranges import Cursor, Interval, TopicPartition, in_utc
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import Deployment, RunSpec
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.executors import check_executors, distribution_problems
from airflow_eos.operations.intent_dismissal import dismiss_intent
from airflow_eos.operations.open_transactions import abort_transaction
from airflow_eos.operations.preview import preview
from airflow_eos.operations.queries import (
    LedgerRecord,
    create_ledger,
    ledger_records,
    no_such_pipeline,
    pruned_runs,
    refuse_pruned,
    run_records,
)
from airflow_eos.operations.repair import repair as end_hanging
from airflow_eos.operations.upkeep import (
    dismiss_record,
    index_ledger,
    is_dismissible,
    prune_ledger,
    sign_ledger,
)
from airflow_eos.operations.verification import NOT_MATCHING, verified_counts, verify_output
from airflow_eos.run.work import recorded_interval
from airflow_eos.sinks.opening import table_named
from airflow_eos.wire.client_config import ClientConfig


def init(target: Deployment, options: Namespace) -> Outcome:
    """Create the ledger."""
    settings = replace(
        target.ledger, partitions=options.partitions, replication_factor=options.replication_factor
    )
    created = create_ledger(replace(target, ledger=settings), adopt_new=options.adopt_new)
    ledger = {"topic": settings.topic, "topic_id": created.topic_id, "partitions": created.partitions}
    return Outcome({"ledger": ledger}, {"ledger": [ledger]})


def doctor(target: Deployment, options: Namespace) -> Outcome:
    """Check everything; exit code 3 if a check fails."""
    tables = [_table(name, options) for name in options.table]
    unconnected = [table for table in tables if isinstance(table, Check)]
    checked = DoctorOptions(
        deployment=target,
        group=options.group,
        sources=tuple(options.source),
        sinks=tuple(options.sink),
        tables=[table for table in tables if not isinstance(table, Check)],
        oldest=_whole_interval(options).start if options.interval else None,
        transaction_timeout=dt.timedelta(seconds=options.transaction_timeout),
        delivery_timeout=dt.timedelta(seconds=options.delivery_timeout),
    )
    checks = [*examine(checked), *unconnected, *distribution_problems()]
    if options.spark:
        kafka = ClientConfig.of(target.kafka)
        checks += check_executors(options.spark, kafka, encrypted=options.encrypted_spark)
    rows = [check.to_dict() for check in checks]
    failed = [row["name"] for row in rows if row["status"] == "fail"]
    data = {"healthy": not failed, "failed": failed, "checks": rows}
    return Outcome(data, {"checks": rows}, FOUND if failed else DONE)


def _table(name: str, options: Namespace) -> SinkTable | Check:
    """Return a table with the properties of its connection, or a failed check if it has no valid one."""
    try:
        table = PostgresTable.named(name) or DeltaTable.named(name) or IcebergTable(name, options.catalog)
    except (ConfigurationError, ValueError) as error:
        raise WrongUsage(f"--table {name!r}: {error}") from error
    try:
        connected: SinkTable = _connected(options, table)
    except (ConfigurationError, UnknownTable) as error:
        return Check(f"table {name}", "fail", error_line(error))
    return connected


def _connected(options: Namespace, table: Any) -> Any:
    """Return a table with the properties of its connection; for Delta Lake an option names it."""
    if isinstance(table, DeltaTable) and table.store is not None:
        table = replace(table, connection=None if options.storage == NO_CONNECTION else options.storage)
    return options.connected(table)


def plan(target: Deployment, options: Namespace) -> Outcome:
    """Show what a run would read."""
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
    previewed = preview(spec)
    data = previewed.to_dict()
    ranges = [
        {"topic": r.topic, "partition": r.partition, "start": r.start, "end": r.end, "at most": r.span}
        for r in previewed.plan.ranges
    ]
    names = ("run_key", "transactional_id", "mode", "group", "records_at_most")
    run = {name: data[name] for name in names}
    run["committed"] = "no record" if previewed.committed is None else previewed.committed.run_id
    notes = [{"note": note} for note in previewed.notes]
    return Outcome(data, {"run": [run], "ranges": ranges, "notes": notes})


def ledger(target: Deployment, options: Namespace) -> Outcome:
    """List records."""
    if None not in (options.key, options.pipeline):
        raise WrongUsage("give --pipeline or --key, not both")
    records = ledger_records(target, pipeline=options.pipeline, key=options.key, latest=options.limit)
    if options.key is not None and not records:
        records = ledger_records(target, key=keys.quoted_key(options.key), latest=options.limit)
    if options.pipeline is not None and not records:
        raise no_such_pipeline(target, options.pipeline)
    if options.key is not None and not records:
        raise ConfigurationError(
            f"the ledger {target.ledger.topic!r} has no record of the key {options.key!r}; "
            "`airflow eos ledger` lists all"
        )
    if options.pipeline:  # all in one partition, so offsets have their order
        records.sort(key=attrgetter("offset"))
    else:
        records.sort(key=lambda record: (_staged_at(record.value), record.key))
    if options.limit:
        records = records[-options.limit :]
    return Outcome(
        {"records": [record.to_dict() for record in records]}, {"records": [*map(record_row, records)]}
    )


def _staged_at(value: Any) -> str:
    return str(value.get("staged_at", "")) if isinstance(value, Mapping) else ""


def record_row(record: LedgerRecord) -> Row:
    """Return the columns of a ledger record of any kind."""
    if keys.is_run_record(record.key):
        try:
            run = RunRecord.from_json(record.value, record.key)
        except LedgerUnreadable as error:
            place = f"partition {record.partition}, offset {record.offset}"
            return {"key": record.key, "at": "", "what": f"unreadable, {place}: {error}"}
        interval = recorded_interval(run)
        of_interval = "" if interval is None else f"[{interval[0]}, {interval[1]}): "
        summary = f"{of_interval}{run.counts} by {run.run_id}, try {run.try_number}"
        return {"key": record.key, "at": run.staged_at, "what": summary}
    text = str(record.value)
    if isinstance(record.value, Mapping):
        text = ", ".join(f"{name}={field}" for name, field in record.value.items() if name != "v")
    limit = 100
    shown = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return {"key": record.key, "at": "", "what": shown}


def verify(target: Deployment, options: Namespace) -> Outcome:
    """Read output again; exit code 3 if something does not match."""
    records, unreadable = run_records(target, options.pipeline)
    if not records and not unreadable:
        raise no_such_pipeline(target, options.pipeline)
    if options.run_key:
        missing = sorted(set(options.run_key) - {item.run_key for item in records})
        if missing:
            refuse_pruned(target, options.pipeline, missing[0])
            raise ConfigurationError(
                f"the ledger has no run {missing[0]!r} of {options.pipeline!r}; "
                "`airflow eos ledger --pipeline NAME` lists them"
            )
        records = [item for item in records if item.run_key in options.run_key]
    if options.last:
        records = records[-options.last :]
    findings = [
        item.to_dict()
        for record in records
        for item in verify_output(target.kafka, record, connected=partial(_connected, options))
    ]
    wrong = [item for item in findings if item["outcome"] in NOT_MATCHING]
    data = {
        "pipeline": options.pipeline,
        "matches": not wrong and not unreadable,
        "runs": len(records),
        "pruned": pruned_runs(target, options.pipeline),
        **verified_counts(findings),
        "findings": findings,
        "unreadable": unreadable,
    }
    summary = {name: data[name] for name in ("pipeline", "matches", "runs", "pruned", "records", "expired")}
    rows = {"unreadable": [{"record": item} for item in unreadable]} if unreadable else {}
    return Outcome(
        data, {"summary": [summary], "findings": findings, **rows}, DONE if data["matches"] else FOUND
    )


def abort(target: Deployment, options: Namespace) -> Outcome:
    """Abort a transaction."""
    if bool(options.transactional_id) == bool(options.group):
        raise WrongUsage("give --transactional-id or --group")
    if options.yes and options.epoch is None:
        raise WrongUsage("--yes needs --epoch: the producer epoch that is shown without --yes")
    name = options.transactional_id or keys.cursor_transactional_id(target.prefix, options.group)
    ended = abort_transaction(
        target,
        name,
        epoch=options.epoch,
        foreign=options.foreign,
        execute=options.yes,
    )
    title = "transaction"
    if ended.answer == "dry run":
        title += f"; to end it add --yes --epoch {ended.producer_epoch}"
        title += " --foreign, if you know its owner" if ended.foreign else ""
    data = ended.to_dict()
    return Outcome(data, {title: [data]})


def repair(target: Deployment, options: Namespace) -> Outcome:
    """End hanging transactions."""
    search = end_hanging(
        target, topics=options.topic, assume=options.assume or "unknown", execute=options.yes
    )
    data = search.to_dict()
    unseen: list[Row] = [
        {"topic": topic, "because": error.message} for topic, error in sorted(search.unseen.items())
    ]
    tables = {"hanging": data["hanging"], **({"not looked at": unseen} if unseen else {})}
    left = unseen or any(not transaction.done for transaction in search.transactions)
    return Outcome(data, tables, FOUND if left else DONE)


def dismiss(target: Deployment, options: Namespace) -> Outcome:
    """Dismiss a record or an INTENT, so that its key is unused."""
    is_routed = options.key not in (keys.LEDGER_IDENTITY_KEY, keys.SIGNED_KEY)
    if not options.key or options.routing is None or (is_routed and not options.routing):
        raise WrongUsage("give --key and --routing")
    # An INTENT of a run names the table to check.
    if options.key.startswith(keys.INTENTS) and not is_dismissible(
        target, options.key, routing=options.routing
    ):
        return _dismiss_intent(target, options)
    record = dismiss_record(target, options.key, routing=options.routing, execute=options.yes).to_dict()
    return Outcome(record, {"record": [record]})


def _dismiss_intent(target: Deployment, options: Namespace) -> Outcome:
    def table_of(name: str) -> SinkTable:
        table = table_named(name)
        if table is None:
            raise ConfigurationError(
                f"{name} is a table of a kind that this version does not know: upgrade airflow-eos, or find "
                "out whether the table is gone, then say --table-gone"
            )
        connected: SinkTable = _connected(options, table)
        return connected

    lookup = None if options.table_gone else table_of
    intent = dismiss_intent(
        target, options.key, lookup, routing=options.routing, execute=options.yes
    ).to_dict()
    return Outcome(intent, {"intent": [intent]})


def sign(target: Deployment, options: Namespace) -> Outcome:
    """Record the offsets from which the ledger is signed."""
    signed = sign_ledger(target, execute=options.yes)
    rows: list[Row] = [
        {"partition": partition, "unsigned below": offset}
        for partition, offset in sorted(signed.offsets.items())
    ]
    title = "signed" if options.yes else "would be signed; add --yes"
    return Outcome({"from": dict(signed.offsets), "done": options.yes}, {title: rows})


def index(target: Deployment, options: Namespace) -> Outcome:
    """Update the index of each ledger partition."""
    del options
    titles = ("partition", "indexed up to offset", "keys added or moved", "leaves")
    data = [
        {"partition": partition, "through": index.through, "keys": index.keys, "leaves": index.leaves}
        for partition, index in index_ledger(target).items()
    ]
    rows: list[Row] = [dict(zip(titles, entry.values(), strict=True)) for entry in data]
    return Outcome({"indexed": data}, {"indexed": rows})


def prune(target: Deployment, options: Namespace) -> Outcome:
    """Remove old run records."""
    if options.pipeline is not None and not ledger_records(target, pipeline=options.pipeline):
        raise no_such_pipeline(target, options.pipeline)
    before = _moment("--before", options.before, "UTC")
    pruned = prune_ledger(target, before, pipeline=options.pipeline, execute=options.yes)
    data = pruned.to_dict()
    rows: list[Row] = [{"pipeline": name, **counts} for name, counts in data["pipelines"].items()]
    title = "pruned" if pruned.done else "would be pruned; add --yes"
    return Outcome(data, {title: rows})


def reset_offsets(target: Deployment, options: Namespace) -> Outcome:
    """Move a cursor."""
    offsets = [_offset(text) for text in options.offset]
    if twice := sorted(tp for tp, count in Counter(tp for tp, _ in offsets).items() if count > 1):
        raise WrongUsage(f"--offset names {twice[0]} more than once")
    try:
        reset = Reset(
            group=options.group,
            to=options.to,
            offsets=dict(offsets),
            topics=tuple(options.topic),
            pipeline=options.pipeline,
            mapped=options.mapped,
        )
    except ConfigurationError as error:
        raise WrongUsage(str(error)) from error
    moved = reset_cursor(target, reset, execute=options.yes)
    title = "moved" if moved.done else "would be moved; add --yes"
    data = moved.to_dict()
    return Outcome(data, {title: data["offsets"]})


def _offset(text: str) -> tuple[TopicPartition, int]:
    match = re.fullmatch(r"([A-Za-z0-9._\-]+):([0-9]+)=([0-9]+)", text)
    if match is None:
        raise WrongUsage(f"--offset {text!r} must be TOPIC:PARTITION=OFFSET, for example orders:0=1200")
    return TopicPartition(match[1], int(match[2])), int(match[3])


def _ranges(options: Namespace) -> Cursor | Interval:
    if options.interval:
        interval = replace(_whole_interval(options), accept_deleted=options.accept_deleted)
        if options.allowed_lateness is None:
            return interval
        return replace(interval, allowed_lateness=dt.timedelta(seconds=options.allowed_lateness))
    if options.allowed_lateness is not None or options.accept_deleted:
        raise WrongUsage("--allowed-lateness and --accept-deleted are of an --interval")
    return Cursor(options.max_records, options.start)


def _whole_interval(options: Namespace) -> Interval:
    """Return the interval in UTC; ends without a time zone are in that of ``--timezone``."""
    start, end = (_moment("--interval", text, options.timezone) for text in options.interval)
    try:
        return Interval(start, end)
    except ValueError as error:
        raise WrongUsage(f"--interval: {error}") from error


def _moment(option: str, text: str, timezone: str | None) -> dt.datetime:
    """Return an ISO day or time in UTC; without a time zone it is in ``timezone``."""
    import pendulum

    try:
        # "now" and times of day depend on this machine's clock: the same command would mean another time.
        moment = None if text == "now" else pendulum.parse(text, exact=True, tz=None)
    except ValueError as error:
        raise WrongUsage(f"{option} {text!r} is not an ISO time: {error}") from error
    if not isinstance(moment, pendulum.Date):
        raise WrongUsage(f"{option} {text!r} is not a day or time, for example 2026-11-21T05:00Z")
    if not isinstance(moment, pendulum.DateTime):
        moment = pendulum.naive(moment.year, moment.month, moment.day)
    if moment.tzinfo is None and timezone is None:
        shown = moment.isoformat().removesuffix(":00")
        raise WrongUsage(f"{option} {text!r} has no zone: write {shown}Z, or give --timezone UTC")
    try:
        return in_utc(moment if moment.tzinfo is not None else moment.set(tz=timezone))
    except OverflowError as error:
        raise WrongUsage(f"{option} {text!r} is before year 1 or after 9999 in UTC") from error
    except (OSError, ValueError) as error:
        raise WrongUsage(f"--timezone {timezone!r} is unknown, for example Europe/Berlin") from error
