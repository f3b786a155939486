"""The lag of a pipeline at each run and now, from its run records without the brokers.

In offsets, the lag of a cursor's run is the number that it read or left. In time, values are upper bounds:
no record that a run read was readable when the last run that left nothing began. The lag of a data interval's
run is the time since the end of the interval.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_eos.coverage.coverage import Coverage
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.work import recorded_interval
from airflow_eos.ui.moments import moment

RUNS_LOOKED_AT = 100
"""Number of newest runs of a pipeline from which its current lag is derived."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a run when its record was written.

    :param offsets: number of offsets that the run read or left; None if unknown.
    :param seconds: upper bound of the age of the oldest of them; None if unknown.
    """

    offsets: int | None = None
    seconds: float | None = None


def lags_of(records: Iterable[RunRecord]) -> dict[str, Lag]:
    """Return the lag of each run by run key; the records are those of one pipeline in commit order."""
    lags: dict[str, Lag] = {}
    caught_up: dict[str, dt.datetime] = {}  # when the newest run began that left nothing, by transactional id
    for record in records:
        lags[record.run_key] = _lag_of(record, caught_up)
    return lags


def _lag_of(record: RunRecord, caught_up: dict[str, dt.datetime]) -> Lag:
    staged = moment(record.staged_at)
    if record.mode == "interval":
        return Lag(None, _seconds(_end_of_interval(record), staged))
    if record.mode != "cursor":
        return Lag()
    offsets, left = sum(range_.span for range_ in record.ranges), record.details.get("lag")
    name, began = record.producer.transactional_id, moment(record.started_at)
    seconds = _seconds(caught_up.get(name), staged) if offsets else 0.0
    if left == 0 and began is not None:
        caught_up[name] = began
    return Lag(None if left is None else offsets + left, seconds)


def seconds_behind(records: Sequence[RunRecord], coverage: Coverage, now: dt.datetime) -> float | None:
    """Return an upper bound of the age of the oldest unread offset; None if unknown.

    :param records: records of one pipeline, in commit order.
    :param coverage: their coverage of the current source logs.
    """
    if coverage.unseen:
        return None
    waiting = {lane.topic_partition for lane in coverage.lanes if lane.unread}
    if not waiting:
        return 0.0
    newest = records[-RUNS_LOOKED_AT:]
    ends = [end for record in newest if (end := _end_of_interval(record)) is not None]
    if ends:
        return _seconds(max(ends), now)
    since = _caught_up_in(newest, waiting)
    return None if since is None else _seconds(since, now)


def _caught_up_in(records: Sequence[RunRecord], waiting: set[TopicPartition]) -> dt.datetime | None:
    """Return when all of these partitions were last read to their end; None if one never was."""
    since: list[dt.datetime] = []
    for record in reversed(records):
        began = moment(record.started_at)
        read = {range_.topic_partition for range_ in record.ranges} & waiting
        if record.mode == "cursor" and read and began is not None and record.details.get("lag") == 0:
            since.append(began)
            waiting = waiting - read
        if not waiting:
            return min(since)
    return None


def _end_of_interval(record: RunRecord) -> dt.datetime | None:
    interval = recorded_interval(record) if record.mode == "interval" else None
    return None if interval is None else moment(interval[1])


def _seconds(since: dt.datetime | None, until: dt.datetime | None) -> float | None:
    if since is None or until is None:
        return None
    return round(max(0.0, (until - since).total_seconds()), 3)
