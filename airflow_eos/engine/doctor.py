"""Checks of a cluster, its ledger and this client's permissions, before a first run or after a failure."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_eos.broker.ledger_topic import TOPIC_CONFIG
from airflow_eos.broker.permissions import Permissions, TopicCare
from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.engine.repair import hanging
from airflow_eos.engine.retention_report import findings
from airflow_eos.exceptions import AuthorizationFailed, EosError, LedgerMissing
from airflow_eos.ledger import keys
from airflow_eos.ledger.cursor import CursorRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.spec import DEFAULT_PREFIX, DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT, Deployment
from airflow_eos.run import laws
from airflow_eos.run.grants import OFFSETS_TOPIC

Status = Literal["ok", "warn", "fail", "unknown"]

_DURABLE_REPLICAS = 3
_NOBODY = 2**63 - 1
"""A producer id that no cluster gets to."""
_SHOWN = 5
_SAFE_EXPIRATION = dt.timedelta(days=1)
"""Longer than any run computes before its transaction opens."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    :param name: what was looked at.
    :param status: ``fail`` stops runs; ``warn`` does not, yet; ``unknown`` could not be seen.
    :param found: what was found.
    :param advice: what to do about it; empty where nothing is.
    """

    name: str
    status: Status
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to examine.

    :param group: consumer group of a cursor; None: no group is looked at.
    :param sources: topics that are read.
    :param sinks: topics that are written.
    :param oldest: start of the oldest interval that is to be read, aware; None: no interval is meant.
    """

    deployment: Deployment
    group: str | None = None
    sources: Collection[str] = ()
    sinks: Collection[str] = ()
    oldest: dt.datetime | None = None
    transaction_timeout: dt.timedelta = TRANSACTION_TIMEOUT
    delivery_timeout: dt.timedelta = DELIVERY_TIMEOUT


def examine(options: DoctorOptions) -> list[Check]:
    """Return all findings. Only the transactional id ``<prefix>.doctor`` is initialised; no run has it.

    A cluster that cannot be reached is the only finding then.
    """
    permissions = Permissions(options.deployment.kafka)
    try:
        brokers = permissions.brokers()
    except EosError as error:
        return [Check("brokers", "fail", _said(error), "check addresses and security settings")]
    checks = [Check("brokers", "ok", f"{brokers} reachable"), _prefix(options.deployment.prefix)]
    with ControlPlane(options.deployment) as control:
        checks += _guarded("partition verification", lambda: _verification(control))
        checks += _guarded("time-outs", lambda: _timeouts(control, options))
        checks += _guarded("expiry of ids", lambda: _expiry(control))
        checks += _guarded("transactional id", lambda: _transactional_id(control, options))
        checks += _guarded("ledger", lambda: _ledger(control, options))
        checks += _guarded("ledger records", lambda: _ledger_records(control))
        checks += _guarded("ledger writers", lambda: _ledger_writers(control))
        checks += _guarded("ledger topic", lambda: _ledger_topic(permissions, options, brokers))
        wanted = [*((name, "READ") for name in options.sources), *((name, "WRITE") for name in options.sinks)]
        for name, operation in wanted:
            look = functools.partial(_topic, permissions, name, operation, brokers)
            checks += _guarded(f"topic {name}", look)
        checks += _guarded("hanging transactions", lambda: _hanging(control, options))
        checks += _guarded("retention", lambda: _retention(control, options))
        if options.group is not None:
            checks += _guarded(f"group {options.group}", lambda: _group(control, permissions, options))
    return checks


def _guarded(name: str, look: Callable[[], Iterator[Check]]) -> list[Check]:
    """Turn the error of one check into its finding, so that the other checks are still made."""
    try:
        return list(look())
    except EosError as error:
        return [Check(name, "fail", _said(error))]


def _prefix(prefix: str) -> Check:
    if prefix != DEFAULT_PREFIX:
        return Check("prefix", "ok", prefix)
    advice = "set [eos] prefix and ledger_topic where another environment may use this cluster"
    return Check("prefix", "warn", f"{prefix}, which is everybody's until they choose one", advice)


def _verification(control: ControlPlane) -> Iterator[Check]:
    verifies = control.cluster.partition_verification()
    if verifies is None:
        yield Check(
            "partition verification",
            "unknown",
            "brokers are 3.6 or later; their settings may not be read",
            "grant DescribeConfigs on the cluster, or see that the brokers have "
            "transaction.partition.verification.enable=true",
        )
    else:
        laws.broker_verifies(verifies)
        yield Check("partition verification", "ok", "on; brokers are 3.6 or later")


def _timeouts(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    maximum = control.cluster.transaction_max_timeout_ms()
    laws.timeouts_fit(options.delivery_timeout, options.transaction_timeout, maximum)
    found = f"delivery {options.delivery_timeout}, transaction {options.transaction_timeout}"
    if maximum is None:
        yield Check("time-outs", "unknown", f"{found}, transaction.max.timeout.ms may not be read")
    else:
        yield Check("time-outs", "ok", f"{found}, brokers allow {dt.timedelta(milliseconds=maximum)}")


def _expiry(control: ControlPlane) -> Iterator[Check]:
    expiration = control.cluster.transactional_id_expiration_ms()
    if expiration is None:
        yield Check("expiry of ids", "unknown", "transactional.id.expiration.ms may not be read")
        return
    found = f"unused transactional ids are forgotten after {dt.timedelta(milliseconds=expiration)}"
    if expiration < _SAFE_EXPIRATION.total_seconds() * 1000:
        advice = (
            "raise transactional.id.expiration.ms (7 days by default): a run that reads and computes for "
            "longer finds its id forgotten, and each of its tries ends as RunFenced"
        )
        yield Check("expiry of ids", "warn", found, advice)
    else:
        yield Check("expiry of ids", "ok", found)


def _transactional_id(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    """Look at the id that runs of the group use, where one is named, and at ids of the prefix."""
    what, prefix = "transactional id", options.deployment.prefix
    pattern = keys.ids_prefix(prefix)
    every = f"transactional ids {pattern!r}, with pattern type PREFIXED"
    probe = keys.doctor_transactional_id(prefix)
    needed = [probe]
    if options.group is not None:
        needed.insert(0, keys.cursor_transactional_id(prefix, options.group))
    refused = {name: error for name in needed if (error := _refusal(control, name, initialise=name == probe))}
    if needed[0] in refused:
        literal = "" if options.group is None else f"transactional id {needed[0]!r}, or on "
        advice = f"grant Write and Describe on {literal}{every}"
        yield Check(what, "fail", _said(refused[needed[0]]), advice)
    elif refused:
        advice = f"data intervals, keys and mapped tasks have ids of their own: grant the same on {every}"
        yield Check(what, "warn", f"{needed[0]} may be used, others of the prefix may not", advice)
    else:
        yield Check(what, "ok", f"{' and '.join(needed)} may be used")


def _refusal(control: ControlPlane, name: str, *, initialise: bool) -> AuthorizationFailed | None:
    """Return why an id may not be used, None when it may.

    :param initialise: take an epoch of it; else only the right is examined. Brokers look at Write first,
        and no producer has the number that is named: what may be at work under the id is not touched.
    """
    try:
        if initialise:
            control.transactions.fence(name).close()
        else:
            control.transactions.abort(ProducerIdentity(name, _NOBODY, 0))
    except AuthorizationFailed as error:
        return error
    return None


def _ledger(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    try:
        ledger = control.verify_ledger()
    except LedgerMissing as error:
        remembered = control.testimony().of_a_ledger
        if remembered:
            advice = "restore it; `airflow eos init --adopt-new` makes one that knows nothing of earlier runs"
            yield Check("ledger", "fail", f"it is lost: {remembered}", advice)
        else:
            advice = "run `airflow eos init`, or leave it to the first run ([eos] create_ledger)"
            yield Check("ledger", "warn", _said(error).partition(";")[0], advice)
        return
    yield Check(
        "ledger",
        "ok",
        f"{options.deployment.ledger.topic}, id {ledger.topic_id}, {ledger.partitions} partitions",
    )


def _ledger_records(control: ControlPlane) -> Iterator[Check]:
    try:
        topic = control.ledger.describe(wait=False)
    except (LedgerMissing, AuthorizationFailed):
        return  # said above
    partitions = topic.topic_partitions
    starts = control.cluster.log_starts(partitions)
    cut = [f"partition {tp.partition} starts at {start}" for tp, start in sorted(starts.items()) if start]
    if not cut:
        yield Check("ledger records", "ok", "all partitions start at 0: nothing was deleted")
        return
    advice = "restore the ledger: new runs of pipelines in these partitions are refused (LedgerTruncated)"
    yield Check("ledger records", "fail", ", ".join(cut), advice)


def _ledger_writers(control: ControlPlane) -> Iterator[Check]:
    """Look for records that no run wrote; reads the whole ledger."""
    try:
        partitions = control.ledger.describe(wait=False).partitions
    except (LedgerMissing, AuthorizationFailed):
        return  # said above
    views = [control.ledger.view(partition, (), keys.RECORD_KINDS) for partition in range(partitions)]
    foreign = [
        f"partition {partition}, offset {offset}: {key}{' (not signed)' if key in view.unsigned else ''}"
        for partition, view in enumerate(views)
        for key, offset in sorted(view.no_evidence.items())
    ]
    signed = "records are signed" if control.ledger.key else "records are not signed ([eos] ledger_key)"
    if not foreign:
        yield Check("ledger writers", "ok", f"runs only; {signed}")
        return
    more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
    advice = (
        "take the right to write to the ledger from whoever did: these records do not count, and compaction "
        "removes ours for them; where that happened, see `airflow eos dismiss`"
    )
    if any(view.unsigned for view in views):
        advice += "; records from before the ledger had a key: `airflow eos sign`"
    found = f"{len(foreign)} records that no run wrote: {'; '.join(foreign[:_SHOWN])}{more}"
    yield Check("ledger writers", "fail", found, advice)


def _ledger_topic(permissions: Permissions, options: DoctorOptions, brokers: int) -> Iterator[Check]:
    name = options.deployment.ledger.topic
    care = permissions.topics([name])[name]
    if care is None:
        return  # said above
    yield _allowed("ledger topic", care, {"READ", "WRITE", "DESCRIBE"})
    yield from _durability("ledger topic", care, brokers)
    if care.settings is None:
        yield Check(
            "ledger settings", "unknown", "may not be read", f"grant DescribeConfigs on topic {name!r}"
        )
        return
    settings = care.settings
    wrong = [
        f"{key}={settings.get(key)} (not {value})"
        for key, value in TOPIC_CONFIG.items()
        if settings.get(key) != value
    ]
    deletes = "delete" in settings.get("cleanup.policy", "")
    if wrong:
        advice = "set them back: a ledger that deletes records forgets runs" if deletes else "set them back"
        yield Check("ledger settings", "fail" if deletes else "warn", ", ".join(wrong), advice)
    else:
        yield Check("ledger settings", "ok", "compacted, LogAppendTime, kept for ever")


def _hanging(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    name = "hanging transactions"
    try:
        partitions = control.verify_ledger().partitions
    except EosError:
        return  # said above
    topics = {options.deployment.ledger.topic, *options.sinks}
    found = hanging(control, options.deployment.prefix, topics, partitions)
    if found:
        places = ", ".join(f"{one.partition} from {one.start_offset} ({one.decision})" for one in found)
        yield Check(name, "fail", places, "readers do not get past them: run `airflow eos repair`")
    else:
        yield Check(name, "ok", f"none in {', '.join(sorted(topics))}")


def _topic(permissions: Permissions, name: str, operation: str, brokers: int) -> Iterator[Check]:
    care = permissions.topics([name])[name]
    what = f"topic {name}"
    if care is None:
        yield Check(what, "fail", "does not exist, or may not be described", "create it, or grant Describe")
        return
    yield _allowed(what, care, {operation, "DESCRIBE"})
    # DescribeProducers, the proof before a commit, needs Read on what is written.
    if operation == "WRITE" and "READ" not in care.operations:
        yield Check(what, "fail", "Read is not granted", "grant Read: the proof before a commit needs it")
    if operation == "WRITE":
        yield from _durability(what, care, brokers)


def _retention(control: ControlPlane, options: DoctorOptions) -> Iterator[Check]:
    for finding in findings(control.cluster, options.sources, options.sinks, options.oldest, utc_now()):
        yield Check(*finding)


def _allowed(what: str, care: TopicCare, wanted: set[str]) -> Check:
    missing = sorted(wanted - care.operations)
    if missing and "ALL" not in care.operations:
        named = ", ".join(one.capitalize() for one in missing)
        return Check(what, "fail", f"not granted: {named}", f"grant {named} on topic {care.topic!r}")
    return Check(what, "ok", f"{care.partitions} partitions, permissions are there")


def _durability(what: str, care: TopicCare, brokers: int) -> Iterator[Check]:
    name = f"{what} replicas"
    minimum = int((care.settings or {}).get("min.insync.replicas", 0))
    found = f"{care.replicas} replicas" + (f", min.insync.replicas={minimum}" if minimum else "")
    if minimum > care.replicas:
        advice = "lower min.insync.replicas: no write can be acknowledged"
        yield Check(name, "fail", found, advice)
    elif brokers >= _DURABLE_REPLICAS and (care.replicas < _DURABLE_REPLICAS or 0 < minimum < 2):  # noqa: PLR2004
        advice = "3 replicas and min.insync.replicas=2: else losing one broker can lose committed records"
        yield Check(name, "warn", found, advice)
    elif minimum == care.replicas > 1:
        yield Check(name, "warn", found, "one broker down stops every write; one more replica would not")
    else:
        yield Check(name, "ok", found)


def _beside_the_group(control: ControlPlane, group: str) -> Iterator[Check]:
    """Look at what offsets need beside the group: their topic, and the group of runs without a cursor."""
    topic = OFFSETS_TOPIC
    of_topic = control.cluster.topic_operations([topic]).get(topic)
    if of_topic is not None and "DESCRIBE" not in of_topic:
        advice = f"grant Describe on topic {topic!r}: the proof before a commit needs it"
        yield Check(f"topic {topic}", "fail", "not granted: Describe", advice)
    runs = f"{group}.runs"
    of_runs = control.cluster.group_operations(runs)
    if of_runs is not None and "READ" not in of_runs:
        advice = f"grant Read on group {runs!r} where runs read intervals, partitions or given ranges"
        yield Check(f"group {runs}", "warn", "not granted: Read", advice)


def _group(control: ControlPlane, permissions: Permissions, options: DoctorOptions) -> Iterator[Check]:
    group = options.group or ""
    what = f"group {group}"
    operations = permissions.group(group)
    missing = sorted({"READ", "DESCRIBE"} - operations)
    if missing and "ALL" not in operations:
        named = ", ".join(one.capitalize() for one in missing)
        yield Check(what, "fail", f"not granted: {named}", f"grant {named} on group {group!r}")
        return
    yield from _beside_the_group(control, group)
    laws.group_is_empty(group, control.cluster.group_members(group))
    control.cluster.group_offsets_partition(group)  # the proof before a commit asks for it
    key = keys.cursor_key(group)
    try:
        value = control.authority.peek([key], routing=group).get(key)
    except LedgerMissing:
        value = None
    if value is None:
        yield Check(what, "ok", "no members; no cursor yet")
        return
    cursor = CursorRecord.from_json(value, key)
    committed = control.cluster.committed(group, list(cursor.ends), stable=False)
    moved = [
        f"{tp}: committed {committed[tp].offset}, cursor {end}"
        for tp, end in sorted(cursor.ends.items())
        if tp in committed and committed[tp].offset != end
    ]
    if moved:
        advice = f"choose one: `airflow eos reset-offsets --group {group} --to cursor|committed`"
        yield Check(what, "fail", "; ".join(moved), advice)
    else:
        yield Check(
            what, "ok", f"no members; cursor of {cursor.pipeline}, {cursor.layout}, and offsets agree"
        )


def _said(error: EosError) -> str:
    return f"{type(error).__name__}: {error}"
