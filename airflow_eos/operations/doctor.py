"""Checks a cluster, its ledger and this client's permissions, before a first run or after a failure."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, EosError, LedgerMissing
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ProducerIdentity,
    without_leader,
)
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import DEFAULT_PREFIX, DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT, Deployment
from airflow_eos.operations import checks
from airflow_eos.operations.checks import Check, error_line, granted, guarded, not_granted
from airflow_eos.operations.cursor_agreement import (
    MovedPosition,
    check_ledger,
    moved_positions,
    offsets_without_leader,
    topics_read,
)
from airflow_eos.operations.repair import hanging
from airflow_eos.operations.retention_report import retention_checks
from airflow_eos.operations.table_checks import run_keys_by_digest, table_checks
from airflow_eos.run import laws
from airflow_eos.run.cursor_position import cursor_lost
from airflow_eos.run.topics import described_group
from airflow_eos.run.undecided import undecided
from airflow_eos.wording import some_of, span_text

_NOBODY = 2**63 - 1
"""A producer id that no cluster will ever assign."""
_OPEN_IN_LEDGER = "a run whose own record is among them waits for the end, and look-ups read more and more"


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The scope of the doctor's checks.

    :param group: consumer group of a cursor; None to check no group.
    :param tables: tables that runs write, with the properties of their connections.
    :param oldest: start of the oldest interval to read, aware; None if runs do not read intervals.
    """

    deployment: Deployment
    group: str | None = None
    sources: Collection[str] = ()
    sinks: Collection[str] = ()
    tables: Collection[SinkTable] = ()
    oldest: dt.datetime | None = None
    transaction_timeout: dt.timedelta = TRANSACTION_TIMEOUT
    delivery_timeout: dt.timedelta = DELIVERY_TIMEOUT


def examine(options: DoctorOptions) -> list[Check]:
    """Return all findings; initialises only the transactional id ``<prefix>.doctor``, which no run uses.

    If the cluster is unreachable, that is the only finding.
    """
    with ControlPlane(options.deployment) as control:
        try:
            control.cluster.limit_patience(checks.CHECK_PATIENCE)
            brokers = len(control.cluster.brokers())
        except EosError as error:
            return [Check("brokers", "fail", error_line(error), "check addresses and security settings")]
        findings = [checks.brokers_answer(control, brokers), _prefix(options.deployment.prefix)]
        features = functools.cache(control.cluster.features)
        findings += guarded("partition verification", checks.verification(features))
        timeouts = checks.timeouts(features, options.delivery_timeout, options.transaction_timeout)
        findings += guarded("time-outs", timeouts)
        findings += guarded("expiry of ids", checks.expiry(features))
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            findings += guarded(f"topic {name}", _internal_topic(control, name, brokers))
        findings += guarded("transactional id", _transactional_id(control, options))
        unreadable = _unreadable_ledger(control)

        def in_ledger(subject: str, looks: Iterator[Check]) -> list[Check]:
            """Guard checks that read the ledger: each would wait for a leader."""
            if unreadable:
                return [Check(subject, "unknown", f"the ledger cannot be read: {unreadable}")]
            return guarded(subject, looks)

        findings += in_ledger("ledger", checks.ledger_identity(control))
        findings += in_ledger("ledger records", checks.ledger_records(control))
        findings += in_ledger("ledger writers", _ledger_writers(control))
        looks = checks.ledger_topic(control, brokers, ("READ", "WRITE", "DESCRIBE"))
        findings += guarded("ledger topic", looks)
        end_of_ledger = checks.undecided_offsets(control, control.ledger.topic, _OPEN_IN_LEDGER)
        findings += in_ledger("end of the ledger", end_of_ledger)
        wanted = [*((name, "READ") for name in options.sources), *((name, "WRITE") for name in options.sinks)]
        for name, operation in wanted:
            findings += guarded(f"topic {name}", _topic(control, name, operation, brokers))
        in_group = () if unreadable else _topics_of(control, options.group)
        for name in sorted({*options.sources, *in_group}):
            findings += guarded(f"end of topic {name}", checks.undecided_offsets(control, name))
        for table in options.tables:
            run_keys = functools.partial(run_keys_by_digest, control)
            findings += guarded(f"table {table}", table_checks(table, run_keys))
        findings += in_ledger("hanging transactions", _hanging(control, options.sinks))
        retention = retention_checks(control.cluster, options.sources, options.sinks, options.oldest)
        findings += guarded("retention", retention)
        if options.group is not None:
            findings += in_ledger(f"group {options.group}", _group(control, options, options.group))
    return findings


def _internal_topic(control: ControlPlane, name: str, brokers: int) -> Iterator[Check]:
    """Check that an internal topic accepts writes; no finding if it does, or may not be described."""
    topic = checks.visible_topic(control, name)
    if topic is not None:
        yield from (check for check in checks.durability(control, topic, brokers) if check.status == "fail")


def _unreadable_ledger(control: ControlPlane) -> str:
    """Return why the ledger cannot be read now; empty if it can, or if each check reports why."""
    try:
        topic = checks.visible_topic(control, control.ledger.topic)
        if topic is None:
            return ""
        if without := without_leader(topic):
            return without
        control.cluster.log_bounds(topic.topic_partitions)
    except BrokersUnavailable as error:
        return str(error)
    except EosError:
        return ""
    return ""


def _prefix(prefix: str) -> Check:
    if prefix != DEFAULT_PREFIX:
        return Check("prefix", "ok", prefix)
    advice = "set [eos] prefix and ledger_topic where another environment may use this cluster"
    return Check("prefix", "warn", f"{prefix}, which is everybody's until they choose one", advice)


def _transactional_id(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    """Check permissions on the group's transactional id, if a group is given, and on ids of the prefix."""
    subject, prefix = "transactional id", options.deployment.prefix
    pattern = keys.ids_prefix(prefix)
    every = f"transactional ids {pattern!r}, with pattern type PREFIXED"
    probe = keys.doctor_transactional_id(prefix)
    allowed = options.transaction_timeout
    transactions = replace(
        control.transactions,
        transaction_timeout=allowed,
        delivery_timeout=allowed / 2,
        fence_timeout=dt.timedelta(seconds=checks.CHECK_PATIENCE),
    )
    needed = [probe]
    if options.group is not None:
        needed.insert(0, keys.cursor_transactional_id(prefix, options.group))
    refused = {}
    for name in needed:
        try:
            if name == probe:
                with contextlib.closing(transactions.fence(name, announced=False)) as session:
                    allowed = session.transaction_timeout
            else:
                # EndTxn of a nonexistent producer: brokers check Write first, and end no transaction.
                transactions.abort(ProducerIdentity(name, _NOBODY, 0), timeout=checks.CHECK_PATIENCE)
        except AuthorizationFailed as error:  # noqa: PERF203 - two at most
            refused[name] = error
    if needed[0] in refused:
        literal = "" if options.group is None else f"transactional id {needed[0]!r}, or on "
        advice = f"grant Write and Describe on {literal}{every}"
        yield Check(subject, "fail", error_line(refused[needed[0]]), advice)
    elif refused:
        advice = f"data intervals, keys and mapped tasks have ids of their own: grant the same on {every}"
        yield Check(subject, "warn", f"{needed[0]} may be used, others of the prefix may not", advice)
    else:
        yield Check(subject, "ok", f"{' and '.join(needed)} may be used")
    if allowed < options.transaction_timeout:
        finding = f"brokers refuse {span_text(options.transaction_timeout)}, and take {span_text(allowed)}"
        advice = "lower transaction_timeout and delivery_timeout, or raise transaction.max.timeout.ms"
        yield Check("transaction time-out", "fail", finding, advice)


def _ledger_writers(control: ControlPlane) -> Iterator[Check]:
    """Check the ledger for records that no run wrote; reads all of it."""
    try:
        partitions = control.ledger.describe(wait=False).partitions
    except (LedgerMissing, AuthorizationFailed):
        return  # another check reports it
    views = [control.ledger.view(partition, (), keys.RECORD_KINDS) for partition in range(partitions)]
    foreign = [
        f"partition {partition}, offset {offset}: {key}{' (not signed)' if key in view.unsigned else ''}"
        for partition, view in enumerate(views)
        for key, offset in sorted(view.no_evidence.items())
    ]
    signed = "signatures are checked" if control.ledger.key else "no signatures ([eos] ledger_key)"
    if not foreign:
        yield Check("ledger writers", "ok", f"runs only; {signed}")
        return
    advice = (
        "take the right to write to the ledger from whoever did: these records do not count, and compaction "
        "removes ours for them; where that happened, see `airflow eos dismiss`"
    )
    if any(view.unsigned for view in views):
        advice += "; records from before the ledger had a key: `airflow eos sign`"
    finding = f"{len(foreign)} records that no run wrote: {some_of(foreign)}"
    yield Check("ledger writers", "fail", finding, advice)


def _hanging(control: ControlPlane, sinks: Collection[str]) -> Iterator[Check]:
    name = "hanging transactions"
    try:
        partitions = control.verify_ledger().partitions
    except EosError:
        return  # another check reports it
    topics = {control.ledger.topic, *sinks}
    search = hanging(control, topics, partitions)
    if search.transactions:
        places = ", ".join(
            f"{transaction.partition} from {transaction.start_offset} ({transaction.decision})"
            for transaction in search.transactions
        )
        yield Check(name, "fail", places, "readers do not get past them: run `airflow eos repair`")
    elif search.unseen:
        finding = (
            "none is seen, but these do not exist, may not be read, or lack a leader: "
            f"{', '.join(sorted(search.unseen))}"
        )
        yield Check(name, "unknown", finding, "grant Read on what pipelines write, and on the ledger")
    else:
        yield Check(name, "ok", f"none in {', '.join(sorted(topics))}")


def _topic(control: ControlPlane, name: str, operation: str, brokers: int) -> Iterator[Check]:
    topic, subject = checks.visible_topic(control, name), f"topic {name}"
    if topic is None:
        yield Check(
            subject, "fail", "does not exist, or may not be described", "create it, or grant Describe"
        )
        return
    yield granted(subject, topic, {operation, "DESCRIBE"})
    # A run proves its output by DescribeProducers before the commit, which needs Read on the sink.
    if operation == "WRITE" and "READ" not in (topic.operations or ()):
        yield Check(subject, "fail", "Read is not granted", "grant Read: the proof before a commit needs it")
    if operation == "WRITE":
        yield from checks.durability(control, topic, brokers)


def _topics_of(control: ControlPlane, group: str | None) -> Collection[str]:
    """Return the topics that a group's runs read; empty if there is no cursor, or it is unreadable."""
    if group is None:
        return ()
    try:
        cursor = control.authority.record(CursorRecord, keys.cursor_key(group), routing=group)
        return () if cursor is None else topics_read(control, cursor)
    except EosError:
        return ()  # the check of the group reports it


def _related_permissions(control: ControlPlane, group: str) -> Iterator[Check]:
    """Check permissions on the offsets topic, and on the group of runs without a cursor."""
    topic = OFFSETS_TOPIC
    of_topic = control.cluster.topic_operations([topic]).get(topic)
    if of_topic is not None and "DESCRIBE" not in of_topic:
        advice = f"grant Describe on topic {topic!r}: the proof before a commit needs it"
        yield Check(f"topic {topic}", "fail", "not granted: Describe", advice)
    runs = f"{group}.runs"
    of_runs = described_group(control.cluster, runs).operations
    if of_runs is not None and "READ" not in of_runs:
        advice = f"grant Read on group {runs!r} where runs read intervals, partitions or given ranges"
        yield Check(f"group {runs}", "warn", "not granted: Read", advice)


def _group(control: ControlPlane, options: DoctorOptions, group: str) -> Iterator[Check]:
    subject = f"group {group}"
    if without := offsets_without_leader(control, group, f"{group}.runs"):
        yield Check(subject, "fail", without, "nobody can read its offsets: start the brokers that are away")
        return
    described = described_group(control.cluster, group)
    if missing := not_granted(described.operations, {"READ", "DESCRIBE"}):
        yield Check(subject, "fail", f"not granted: {missing}", f"grant {missing} on group {group!r}")
        return
    yield from _related_permissions(control, group)
    laws.group_is_empty(group, described.members)
    control.cluster.group_offsets_partition(group)  # for a marker that a broker forgets
    try:
        ledger_id = control.ledger.describe(wait=False).topic_id
        cursor = control.authority.record(CursorRecord, keys.cursor_key(group), routing=group)
    except LedgerMissing:
        ledger_id, cursor = "", None
    if cursor is None:
        _refuse_offsets(control, options, group, ledger_id)
        yield Check(subject, "ok", "no members; no cursor yet")
        return
    laws.group_is_ours(group, "prefix", cursor.prefix, options.deployment.prefix)
    topics = cursor.topic_ids.keys() & set(options.sources) or topics_read(control, cursor)
    described_topics = control.cluster.describe_topics(topics)
    if without := without_leader(*described_topics.values()):
        yield Check(subject, "fail", without, "runs cannot read it: start the brokers that are away")
    elif (moved := moved_positions(control, cursor, described_topics)) and (
        open_there := _undecided(control, group, moved)
    ):
        advice = "the run that committed them may be among these and waits: start the brokers that are away"
        yield Check(subject, "unknown", "; ".join([*(item.text for item in moved), open_there]), advice)
    elif moved:
        yield Check(subject, "fail", "; ".join(item.text for item in moved), _reset(options, group, moved))
    else:
        yield Check(
            subject, "ok", f"no members; cursor of {cursor.pipeline}, {cursor.layout}, and offsets agree"
        )


def _refuse_offsets(control: ControlPlane, options: DoctorOptions, group: str, ledger_id: str) -> None:
    """Refuse offsets committed with another ledger, or by a cursor that the ledger has lost."""
    for name in (group, f"{group}.runs"):
        with contextlib.suppress(AuthorizationFailed):  # missing grants are a check of their own
            committed = control.cluster.committed(name, None, stable=False)
            read = {tp: at for tp, at in committed.items() if tp.topic in options.sources}
            check_ledger(name, read, control.ledger.topic, ledger_id)
            for tp, offset in sorted(read.items()):
                if name == group and keys.metadata_ledger(offset.metadata) == ledger_id:
                    raise cursor_lost(group, tp, offset, control.ledger.topic)


def _undecided(control: ControlPlane, group: str, moved: Sequence[MovedPosition]) -> str:
    """Return the open transactions in a group's ledger partition that may hide the cursor; else empty."""
    if any(item.offset is not None for item in moved):
        return ""  # the log has lost records: no cursor changes that
    bounds = control.cluster.log_bounds([control.authority.place(group)])
    return "; ".join(map(str, undecided(control.cluster, bounds.ends, bounds.stable)))


def _reset(options: DoctorOptions, group: str, moved: Sequence[MovedPosition]) -> str:
    """Return the advice for refused positions; one that is not in the log comes first."""
    command = functools.partial(options.deployment.command_line.command, "reset-offsets")
    for item in moved:
        if item.offset is not None:
            place = f"{item.tp.topic}:{item.tp.partition}={item.offset}"
            way = command({"--group": group, "--offset": place})
            return f"look at the topic, then go on where its log does: `{way}`"
    ways = (command({"--group": group, "--to": position}) for position in ("cursor", "committed"))
    return f"choose one: {' or '.join(f'`{way}`' for way in ways)}"
