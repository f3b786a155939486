"""The effect of retention on a run's input and output: it deletes by timestamp, even new records.

Output has the timestamps of its input unless ``process`` sets others. A topic with a retention of a week
deletes last year's records with the next closed segment, minutes after their commit. Nothing here refuses a
run.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping

from airflow_eos.exceptions import EosError
from airflow_eos.ledger import keys
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Interval, timestamp_of
from airflow_eos.ports import Cluster
from airflow_eos.wording import span_text

log = logging.getLogger(__name__)


def kept(settings: Mapping[str, str] | None, now: dt.datetime) -> dt.timedelta | None:
    """Return how long a topic keeps records by their timestamps; None if for ever, or unknown.

    A retention that reaches back to before 1970 counts as for ever: no timestamp is older.
    """
    if settings is None or "delete" not in settings.get("cleanup.policy", "delete"):
        return None
    milliseconds = int(settings.get("retention.ms", -1))
    return dt.timedelta(milliseconds=milliseconds) if 0 <= milliseconds <= timestamp_of(now) else None


def is_stamped_by_broker(settings: Mapping[str, str] | None) -> bool:
    """Return whether records get the time of their arrival."""
    return settings is not None and settings.get("message.timestamp.type") == "LogAppendTime"


def is_compacted(settings: Mapping[str, str] | None) -> bool:
    """Return whether the log cleaner removes records that a later one with the same key replaces."""
    return settings is not None and "compact" in settings.get("cleanup.policy", "")


def notes(
    cluster: Cluster, plan: RunPlan, sink_topic: str | None, interval: Interval | None, now: dt.datetime
) -> list[str]:
    """Return notes about retention, of an interval's topics too, for the run's record; empty if unknown."""
    try:
        of_sources = [] if interval is None else _of_sources(cluster, plan.topic_ids, interval, now)
        return of_sources if sink_topic is None else [*of_sources, *_of_sink(cluster, plan, sink_topic, now)]
    except EosError as error:
        log.info("cannot check retention: %s", error)
        return []


def _of_sources(cluster: Cluster, topics: Collection[str], interval: Interval, now: dt.datetime) -> list[str]:
    age = now - interval.start
    settings = cluster.topic_settings(topics)
    return [
        f"{topic} keeps records for {span_text(keeps)} (retention.ms), the interval began "
        f"{span_text(age)} ago: what retention deletes before it is read is lost; raise it where "
        "history is loaded"
        for topic in sorted(topics)
        if (keeps := kept(settings.get(topic), now)) is not None and keeps < age
    ]


def _of_sink(cluster: Cluster, plan: RunPlan, sink: str, now: dt.datetime) -> list[str]:
    """Compare the records of the ranges with the oldest timestamp that the sink keeps."""
    ranges = [r for r in plan.ranges if r.span]
    settings = plan.sinks[sink].settings if sink in plan.sinks else {}
    keeps = kept(settings, now)
    if keeps is None or is_stamped_by_broker(settings):
        return []
    oldest = now - keeps
    # A note does not justify reading the log: markers may count.
    kept_from = cluster.offsets_for_time(
        {r.topic_partition for r in ranges}, timestamp_of(oldest), markers=True
    )
    expired = []
    for r in ranges:
        first = kept_from[r.topic_partition]
        end = r.end if first is None else min(r.end, first.offset)
        if end > r.start:
            expired.append(f"{r.topic_partition} [{r.start}, {end})")
    if not expired:
        return []
    note = (
        f"{sink} keeps records for {span_text(keeps)} (retention.ms); these are older, of before "
        f"{keys.utc_text(oldest)}: {', '.join(expired)}. Where process passes their timestamps on, the "
        "brokers delete the output soon after its commit; raise retention.ms, or return a timestamp column"
    )
    return [note]
