"""The doctor's checks of retention and timestamps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_eos.ledger.keys import utc_text
from airflow_eos.model.ranges import TopicPartition, timestamp_of, utc_now
from airflow_eos.operations.checks import Check
from airflow_eos.ports import Cluster
from airflow_eos.run.log_coverage import FUTURE_TOLERANCE
from airflow_eos.run.retention import is_stamped_by_broker, kept
from airflow_eos.wording import moment_text, span_text

_AFTER = "message.timestamp.after.max.ms"


def retention_checks(
    cluster: Cluster,
    sources: Collection[str],
    sinks: Collection[str],
    oldest: dt.datetime | None,
) -> Iterator[Check]:
    """Compare the retention of topics with their oldest records, and with the oldest interval.

    :param oldest: start of the oldest interval to read; None if runs do not read intervals.
    """
    now, begins = utc_now(), [] if oldest is None else [timestamp_of(oldest)]
    for topic in sources:
        partitions = _partitions(cluster, topic)
        if not partitions:
            continue  # another check reports it
        firsts = cluster.offsets_for_time(partitions, 0)
        record = min((first.timestamp for first in firsts.values() if first is not None), default=None)
        begins += [] if record is None else [record]
        settings = cluster.topic_settings([topic]).get(topic)
        yield _source(topic, settings, record, oldest, now)
        if settings is not None:
            yield _timestamps(topic, settings)
    for topic in sinks:
        if _partitions(cluster, topic):
            settings = cluster.topic_settings([topic]).get(topic)
            yield _sink(topic, settings, min(begins, default=None), now)


def _partitions(cluster: Cluster, topic: str) -> Sequence[TopicPartition]:
    """Return the partitions that can be read now; none of a topic that may not be described."""
    described = cluster.describe_topics((), optional=[topic]).get(topic)
    if described is None:
        return ()
    return [tp for tp in described.topic_partitions if tp not in described.without_leader]


def _source(
    topic: str,
    settings: Mapping[str, str] | None,
    record: int | None,
    oldest: dt.datetime | None,
    now: dt.datetime,
) -> Check:
    check, limit = _kept(topic, settings, now)
    if limit is None:
        return check
    advice = "raise retention.ms, or set it to -1 while history is loaded: records deleted unread are lost"
    if record is not None and record < limit:
        finding = f"{check.found}, and holds some of {moment_text(record)}: they are about to go"
        return replace(check, status="warn", found=finding, advice=advice)
    if oldest is not None and timestamp_of(oldest) < limit:
        finding = f"{check.found}, the interval begins at {utc_text(oldest)}"
        return replace(check, status="warn", found=finding, advice=advice)
    return check


def _sink(topic: str, settings: Mapping[str, str] | None, begins: int | None, now: dt.datetime) -> Check:
    check, limit = _kept(topic, settings, now)
    if limit is None or begins is None or begins >= limit or is_stamped_by_broker(settings):
        return check
    advice = "raise retention.ms, or return a timestamp column: output with its input's timestamps is deleted"
    finding = f"{check.found}, the input begins at {moment_text(begins)}"
    return replace(check, status="warn", found=finding, advice=advice)


def _kept(topic: str, settings: Mapping[str, str] | None, now: dt.datetime) -> tuple[Check, int | None]:
    """Return the check of a topic's retention, and the timestamp below which records are deleted, if any."""
    name, keeps = f"topic {topic} retention", kept(settings, now)
    if settings is None:
        advice = f"grant DescribeConfigs on topic {topic!r}"
        return Check(name, "unknown", "settings may not be read", advice), None
    if keeps is None:
        return Check(name, "ok", "keeps records whatever their age"), None
    return Check(name, "ok", f"keeps records for {span_text(keeps)}"), timestamp_of(now - keeps)


def _timestamps(topic: str, settings: Mapping[str, str]) -> Check:
    name = f"topic {topic} timestamps"
    if is_stamped_by_broker(settings):
        return Check(name, "ok", "given by the brokers (LogAppendTime)")
    limit = settings.get(_AFTER)
    stamped = f"given by producers (CreateTime), {_AFTER}={limit}"
    if limit is not None and int(limit) <= FUTURE_TOLERANCE / dt.timedelta(milliseconds=1):
        return Check(name, "ok", stamped)
    advice = (
        f"set {_AFTER}={FUTURE_TOLERANCE // dt.timedelta(milliseconds=1)}, or "
        "message.timestamp.type=LogAppendTime: one record of the far future stops every data interval"
    )
    return Check(name, "warn", stamped, advice)
