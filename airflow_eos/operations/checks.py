"""Read-only checks for ``airflow eos doctor`` and the web page.

Without permission, a check yields ``unknown`` or raises the brokers' error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_eos.broker.ledger_log.topic import TOPIC_CONFIG
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, EosError, LedgerMissing, LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import BrokerFeatures, TopicDescription
from airflow_eos.model.versioned import JsonForm
from airflow_eos.run import laws
from airflow_eos.run.undecided import undecided
from airflow_eos.wording import counted, some_of, span_text

Status = Literal["ok", "warn", "fail", "unknown"]
AskFeatures = Callable[[], BrokerFeatures]
"""Returns the brokers' features; only the first call sends requests."""

CHECK_PATIENCE = 10.0
"""Time-out per request in seconds: brokers answer in milliseconds, or not at all while others are down."""
_DURABLE_REPLICAS = 3
_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default; the largest records of a ledger (index, pruned runs, dead letters) are made to fit it."""
_SAFE_EXPIRATION = dt.timedelta(days=1)
"""Longer than a run should compute before its transaction opens."""


@dataclass(frozen=True, slots=True)
class Check(JsonForm):
    """One finding.

    :param status: ``fail`` stops runs; ``warn`` may do so later; ``unknown``: the check was not possible.
    :param advice: what to do about it; empty if nothing.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def guarded(name: str, checks: Iterator[Check]) -> list[Check]:
    """Return the findings of checks; an error becomes a finding, so that other checks still run."""
    try:
        return list(checks)
    except EosError as error:
        return [Check(name, "fail", error_line(error))]


def verification(features: AskFeatures) -> Iterator[Check]:
    """Check that brokers refuse a batch for a partition that is not in its transaction (law 9)."""
    verifies = features().partition_verification
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


def timeouts(features: AskFeatures, delivery: dt.timedelta, transaction: dt.timedelta) -> Iterator[Check]:
    """Check that a run's timeouts are consistent, and that the brokers allow them (law 10)."""
    maximum = features().transaction_max_timeout_ms
    laws.timeouts_fit(delivery, transaction, maximum)
    configured = f"delivery {span_text(delivery)}, transaction {span_text(transaction)}"
    if maximum is None:
        yield Check("time-outs", "unknown", f"{configured}, transaction.max.timeout.ms may not be read")
    else:
        yield Check(
            "time-outs", "ok", f"{configured}, brokers allow {span_text(dt.timedelta(milliseconds=maximum))}"
        )


def expiry(features: AskFeatures) -> Iterator[Check]:
    """Check that brokers remember a transactional id for longer than a run takes."""
    expiration = features().transactional_id_expiration_ms
    if expiration is None:
        yield Check("expiry of ids", "unknown", "transactional.id.expiration.ms may not be read")
        return
    after = span_text(dt.timedelta(milliseconds=expiration))
    finding = f"unused transactional ids are forgotten after {after}"
    if expiration < _SAFE_EXPIRATION.total_seconds() * 1000:
        advice = (
            "raise transactional.id.expiration.ms (7 days by default): a run that reads and computes for "
            "longer finds its id forgotten, and each of its tries ends as RunFenced"
        )
        yield Check("expiry of ids", "warn", finding, advice)
    else:
        yield Check("expiry of ids", "ok", finding)


def brokers_answer(control: ControlPlane, brokers: int) -> Check:
    """Check that every broker answers."""
    silent = control.cluster.silent_brokers()
    if not silent:
        return Check("brokers", "ok", f"{brokers} reachable")
    finding = f"of {brokers}, these do not answer: {', '.join(map(str, silent))}"
    advice = "start them, or correct their advertised.listeners: a client must reach each broker"
    return Check("brokers", "fail", finding, advice)


def visible_topic(control: ControlPlane, name: str) -> TopicDescription | None:
    """Return a topic as brokers describe it; None if it does not exist, or may not be described."""
    return control.cluster.describe_topics((), optional=[name]).get(name)


def undecided_offsets(
    control: ControlPlane, name: str, effect: str = "runs read up to them only"
) -> Iterator[Check]:
    """Check whether open transactions hold back readers of a topic; ignores a missing topic."""
    topic = visible_topic(control, name)
    if topic is None:
        return
    subject = f"end of topic {name}"
    if topic.without_leader:
        without = some_of(f"partition {tp.partition} has no leader" for tp in topic.without_leader)
        yield Check(subject, "fail", without, "runs cannot read it: start the brokers that are away")
        return
    bounds = control.cluster.log_bounds(topic.topic_partitions)
    waiting = undecided(control.cluster, bounds.ends, bounds.stable)
    if not waiting:
        yield Check(subject, "ok", "all of its offsets can be read: no transaction is open")
        return
    prefix = control.deployment.prefix
    are_of_runs = all(keys.is_id_of(item.transactional_id or "", prefix) for item in waiting)
    # Kafka's tool does not ask the coordinator: after its proof, a live run would lose output.
    tool = "" if are_of_runs else " --foreign`, or, if no coordinator knows it, `kafka-transactions.sh"
    advice = f"{effect}; where the producer is gone for good, end its transaction: `airflow eos abort{tool}`"
    yield Check(subject, "warn", "; ".join(map(str, waiting)), advice)


def ledger_identity(control: ControlPlane) -> Iterator[Check]:
    """Check that the ledger exists, and is the one that was used before."""
    try:
        ledger = control.verify_ledger()
    except LedgerReplaced as error:
        advice = (
            "restore it; where it is lost for good, delete what is left of it, and `airflow eos init "
            "--adopt-new` makes one that knows nothing of earlier runs"
        )
        yield Check("ledger", "fail", error_line(error), advice)
        return
    except LedgerMissing as error:
        advice = "run `airflow eos init`, or leave it to the first run ([eos] create_ledger)"
        yield Check("ledger", "warn", error_line(error).partition(";")[0], advice)
        return
    if ledger.is_signed and not control.ledger.key:
        topic = control.ledger.topic
        finding = f"{topic} is signed, and this environment has no [eos] ledger_key: its runs are refused"
        yield Check("ledger", "fail", finding, "set the key that the ledger's other users have")
        return
    partitions = counted(ledger.partitions, "partition")
    yield Check("ledger", "ok", f"{control.ledger.topic}, id {ledger.topic_id}, {partitions}")


def ledger_records(control: ControlPlane) -> Iterator[Check]:
    """Check that all partitions of the ledger begin at offset 0."""
    try:
        topic = control.ledger.describe(wait=False)
    except (LedgerMissing, AuthorizationFailed):
        return  # another check reports it
    partitions = topic.topic_partitions
    starts = control.cluster.log_starts(partitions)
    cut = [f"partition {tp.partition} starts at {start}" for tp, start in sorted(starts.items()) if start]
    if not cut:
        yield Check("ledger records", "ok", "all partitions start at 0: nothing was deleted")
        return
    advice = "restore the ledger: new runs of pipelines in these partitions are refused (LedgerTruncated)"
    yield Check("ledger records", "fail", ", ".join(cut), advice)


def ledger_topic(control: ControlPlane, brokers: int, wanted: Collection[str] = ()) -> Iterator[Check]:
    """Check that the ledger topic is durable, keeps all records, and has broker timestamps.

    :param wanted: operations that must be granted, if any.
    """
    topic = visible_topic(control, control.ledger.topic)
    if topic is None:
        return  # another check reports it
    if wanted:
        yield granted("ledger topic", topic, wanted)
    settings = control.cluster.topic_settings([topic.topic]).get(topic.topic)
    yield from _replicas("ledger topic", topic, settings, brokers)
    if settings is None:
        yield Check(
            "ledger settings", "unknown", "may not be read", f"grant DescribeConfigs on topic {topic.topic!r}"
        )
        return
    wrong = [
        f"{key}={settings.get(key)} (not {value})"
        for key, value in TOPIC_CONFIG.items()
        if settings.get(key) != value
    ]
    limit = int(settings.get("max.message.bytes", _MAX_MESSAGE_BYTES))
    if limit < _MAX_MESSAGE_BYTES:
        wrong.append(f"max.message.bytes={limit} (not {_MAX_MESSAGE_BYTES} or more)")
    deletes = "delete" in settings.get("cleanup.policy", "")
    loses = deletes or settings.get("unclean.leader.election.enable") == "true"
    if wrong:
        advice = "set them back: a ledger that loses records forgets runs" if loses else "set them back"
        yield Check("ledger settings", "fail" if deletes else "warn", ", ".join(wrong), advice)
    else:
        yield Check("ledger settings", "ok", "compacted, LogAppendTime, kept for ever")


def granted(subject: str, topic: TopicDescription, wanted: Collection[str]) -> Check:
    """Check that operations on a topic are granted."""
    if missing := not_granted(topic.operations, wanted):
        return Check(subject, "fail", f"not granted: {missing}", f"grant {missing} on topic {topic.topic!r}")
    return Check(subject, "ok", f"{topic.partitions} partitions, permissions are there")


def not_granted(operations: frozenset[str] | None, wanted: Collection[str]) -> str:
    """Return the operations that are not granted, as one text."""
    return ", ".join(name.capitalize() for name in sorted({*wanted} - (operations or frozenset())))


def durability(control: ControlPlane, topic: TopicDescription, brokers: int) -> Iterator[Check]:
    """Check that a topic can be written now, and survives the loss of a broker."""
    settings = control.cluster.topic_settings([topic.topic]).get(topic.topic)
    yield from _replicas(f"topic {topic.topic}", topic, settings, brokers)


def _replicas(
    subject: str, topic: TopicDescription, settings: Mapping[str, str] | None, brokers: int
) -> Iterator[Check]:
    name, replicas = f"{subject} replicas", topic.replicas
    minimum = int((settings or {}).get("min.insync.replicas", 0))
    replication = counted(replicas, "replica") + (f", min.insync.replicas={minimum}" if minimum else "")
    without = {tp.partition: "has no leader" for tp in topic.without_leader}
    few = {
        partition: f"has {count} in sync"
        for partition, count in topic.in_sync.items()
        if count < min(minimum, replicas)
    }
    if unavailable := few | without:
        places = some_of(f"partition {partition} {why}" for partition, why in sorted(unavailable.items()))
        advice = "no write is acknowledged there: start the brokers that are away, or wait until they follow"
        yield Check(name, "fail", f"{replication}; {places}", advice)
    elif minimum > replicas:
        advice = "lower min.insync.replicas: brokers of 3.6 acknowledge no write, those of 3.9 and later do"
        yield Check(name, "warn", replication, advice)
    elif brokers >= _DURABLE_REPLICAS and (replicas < _DURABLE_REPLICAS or 0 < minimum < 2):  # noqa: PLR2004
        advice = "3 replicas and min.insync.replicas=2: else losing one broker can lose committed records"
        yield Check(name, "warn", replication, advice)
    elif minimum == replicas > 1:
        yield Check(
            name, "warn", replication, "one broker down stops every write; one more replica would not"
        )
    else:
        yield Check(name, "ok", replication)


def error_line(error: EosError) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}"
