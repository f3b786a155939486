"""Checks that the schedule of a Dag gives its runs intervals that a task can read."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pendulum

from airflow_eos.compat import INTERVAL_TIMETABLES, TRIGGER_TIMETABLES, is_kind, timetable_field
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import timestamp_of, utc_now
from airflow_eos.operators.partition_interval import PartitionDuration, gives_interval_end, zone_named
from airflow_eos.operators.task_identity import DATA_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk import DAG

_SOME_DAY = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)
_WEEK = dt.timedelta(weeks=1)
_HOUR = dt.timedelta(hours=1)
_MS = dt.timedelta(milliseconds=1)
_TICKS = 25
"""At least as many ticks have different keys: a key may name their day, month or year alone."""


def check_schedule(
    ranges: Any, dag: DAG, duration: PartitionDuration | None, task_id: str, run_key: str | None = None
) -> None:
    """Check that the runs of a Dag have the intervals or partitions that its task reads, one after the other.

    :param run_key: names the run instead of an interval.
    :raises ConfigurationError: assets trigger its runs; or the Dag's schedule gives all its runs an empty
        one, or intervals that overlap or leave gaps, or two partitions one key.
    """
    timetable = dag.timetable
    if ranges != DATA_INTERVAL or run_key or _reads_partitions(dag, duration, task_id):
        return
    if timetable.asset_condition:
        raise ConfigurationError(
            f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and runs of Dag {dag.dag_id!r} that assets "
            f"trigger have no data interval. Schedule the Dag by time alone ({INTERVAL_TIMETABLES}."
            "CronDataIntervalTimetable) or by partitions, or use ranges=Cursor()"
        )
    if is_kind(timetable, "CronDataIntervalTimetable"):
        expression, zone = (timetable_field(timetable, name) for name in ("expression", "timezone"))
        if moment := _do_not_meet(expression, zone_named(zone)):
            raise ConfigurationError(
                f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and the intervals of Dag {dag.dag_id!r} "
                f"do not meet at {moment.isoformat()}, when the clock of {zone} is put forward: "
                f"{expression!r} has several ticks in a skipped hour, and Airflow leaves records out, or "
                "makes no more runs. Schedule the Dag with timezone='UTC', or with * for the hours"
            )
    _check_late(dag, task_id)
    if not is_kind(timetable, *TRIGGER_TIMETABLES):
        return
    late = ""
    if is_kind(timetable, "DeltaTriggerTimetable"):
        delta, interval = (timetable_field(timetable, name) for name in ("delta", "interval"))
        period = _length(delta)
        with_intervals = f"DeltaDataIntervalTimetable({delta!r})"
        if not dag.catchup:
            # Each parse of the Dag computes the next run again, backwards from the present.
            period, late = None, " where a run is late"
    else:
        several = is_kind(timetable, "MultipleCronTriggerTimetable")
        cron = timetable_field(timetable, "timetables")[0] if several else timetable
        expression, zone, interval = (
            timetable_field(cron, name) for name in ("expression", "timezone", "interval")
        )
        # With several expressions Airflow omits periods if a run is late or a clock is put back.
        period = None if several else _period(expression, zone_named(zone))
        written = "with one expression for all times, " if several else f"{expression!r}, "
        with_intervals = f"CronDataIntervalTimetable({written}timezone={str(zone)!r})"
    if interval and period and _length(interval) == period:
        return
    if interval:
        problem = (
            f"gives each run the interval of {interval!r} before it: they overlap or leave gaps{late}, so "
            "that records are read twice or never"
        )
    else:
        problem = "gives empty intervals: cron strings, presets and timedeltas do in Airflow 3"
    raise ConfigurationError(
        f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and the schedule of Dag "
        f"{dag.dag_id!r} {problem}. Schedule the Dag with {INTERVAL_TIMETABLES}.{with_intervals}"
    )


def _reads_partitions(dag: DAG, duration: PartitionDuration | None, task_id: str) -> bool:
    """Return whether a task reads partitions; raise ConfigurationError if two of them have one key."""
    fields = ("expression", "timezone", "key_format")
    if is_kind(dag.timetable, "CronPartitionTimetable") and (
        key := _repeated_key(*(timetable_field(dag.timetable, field) for field in fields))
    ):
        raise ConfigurationError(
            f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and two partitions of Dag {dag.dag_id!r} have "
            f"the key {key!r}, as where a clock is put back: the second one would stay unread. Schedule the "
            "Dag with timezone='UTC', and a key_format that names each tick"
        )
    return duration is not None or gives_interval_end(dag.timetable)


def _check_late(dag: DAG, task_id: str) -> None:
    """Refuse a delta whose intervals shift if the scheduler is late, or was down."""
    if dag.catchup or not is_kind(dag.timetable, "DeltaDataIntervalTimetable"):
        return
    delta = timetable_field(dag.timetable, "delta")
    first = dag.start_date or min((task.start_date for task in dag.tasks if task.start_date), default=None)
    period = _length(delta)
    if period is None:  # months are counted from the start date, or from the present
        begins_elsewhere = first is None
    else:
        begins_elsewhere = first is not None and timestamp_of(first) % (period // _MS) != 0
    if begins_elsewhere:
        raise ConfigurationError(
            f"task {task_id!r} reads ranges={DATA_INTERVAL!r}. Where a run of Dag {dag.dag_id!r} is late, "
            f"Airflow begins at a multiple of {delta!r} since 1970 (months: since start_date), and the time "
            "from the end of the last interval to there is in no interval. Set catchup=True, or a start_date "
            f"at such a multiple, or schedule the Dag with {INTERVAL_TIMETABLES}.CronDataIntervalTimetable"
        )


def _do_not_meet(expression: str, zone: dt.tzinfo) -> dt.datetime | None:
    """Return the first moment in the next two years where a cron expression's intervals do not meet.

    If the clock is put forward, Airflow moves a tick in the skipped hour by as much. None if all meet.
    """
    from croniter import croniter  # type: ignore[import-untyped]  # Airflow's own

    minutes, hours, *_ = croniter(expression).expanded
    if hours == ["*"] or len(_numbers(minutes, 60)) == 1:
        return None  # every hour: counted in real time; one tick an hour: as far apart as a clock change
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable as Scheduled

    scheduled = Scheduled(expression, timezone=zone)
    for before in _clock_changes(zone, forward=True):
        last, restriction = None, TimeRestriction(pendulum.instance(before - _HOUR), None, catchup=True)
        while last is None or last.end < before + 3 * _HOUR:
            try:
                info = scheduled.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
            except ValueError:  # the scheduler finds no other interval
                return last and last.end
            assert info is not None  # there is no latest date
            if last is not None and info.data_interval.start != last.end:
                return last.end
            last = info.data_interval
    return None


@functools.cache  # a Dag may have many tasks
def _repeated_key(cron: str, zone: Any, key_format: str) -> str | None:
    """Return a key that two ticks have, now or where a clock is put back in the next two years."""
    from airflow.timetables.base import DagRunInfo, TimeRestriction
    from airflow.timetables.trigger import CronPartitionTimetable as Scheduled

    scheduled = Scheduled(cron, timezone=zone, key_format=key_format)
    always = TimeRestriction(None, None, catchup=True)
    for before in (utc_now(), *_clock_changes(zone_named(zone), forward=False)):
        keys, tick = set[str | None](), pendulum.instance(before - 2 * _HOUR)
        while tick < before + 3 * _HOUR or len(keys) < _TICKS:
            last = DagRunInfo(run_after=tick, data_interval=None, partition_date=None, partition_key=None)
            info = scheduled.next_dagrun_info_v2(last_dagrun_info=last, restriction=always)
            assert info is not None  # there is no latest date
            if info.partition_key in keys:
                return info.partition_key
            keys.add(info.partition_key)
            tick = info.run_after
    return None


def _clock_changes(zone: dt.tzinfo, *, forward: bool) -> Iterator[dt.datetime]:
    """Yield the last of the next two years' hours before each change of a zone's clock in one direction."""
    now = utc_now()
    offsets = [(hour, hour.astimezone(zone).utcoffset()) for hour in (now + n * _HOUR for n in range(17_520))]
    for (before, offset), (_, later_offset) in pairwise(offsets):
        if offset != later_offset and (offset < later_offset) is forward:  # type: ignore[operator]
            yield before


def _length(delta: PartitionDuration) -> dt.timedelta | None:
    """Return the length of a delta; None if it depends on the date."""
    lengths = {day + delta - day for day in (_SOME_DAY, _SOME_DAY.replace(year=2001, month=2))}
    return lengths.pop() if len(lengths) == 1 else None


def _period(expression: str, zone: dt.tzinfo) -> dt.timedelta | None:
    """Return the time between any two ticks of a cron expression; None if it varies."""
    from croniter import croniter

    cron = croniter(expression)
    minutes, hours, days, months, weekdays, *seconds = cron.expanded
    if [days, months] != [["*"], ["*"]] or seconds or cron.nth_weekday_of_month:
        return None
    ticks = sorted(
        dt.timedelta(days=day, hours=hour, minutes=minute)
        for day in _numbers(weekdays, 7)
        for hour in _numbers(hours, 24)
        for minute in _numbers(minutes, 60)
    )
    periods = {after - tick for tick, after in zip(ticks, [*ticks[1:], ticks[0] + _WEEK], strict=True)}
    period = max(periods)
    # Since 2000: backfills reach back to a time when more zones changed their clocks.
    weeks = (_SOME_DAY + number * _WEEK for number in range((utc_now() - _SOME_DAY) // _WEEK + 104))
    offsets = {moment.astimezone(zone).replace(tzinfo=dt.timezone.utc) - moment for moment in weeks}
    # If clocks change by whole periods, the distance between ticks stays the same.
    regular = len(periods) == 1 and not any((offset - min(offsets)) % period for offset in offsets)
    return period if regular else None


def _numbers(field: list[Any], count: int) -> Sequence[int]:
    return range(count) if field == ["*"] else field
