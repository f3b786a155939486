"""Checks that the schedule of a Dag gives its runs the intervals that a task reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_eos.compat import (
    INTERVAL_TIMETABLES,
    TRIGGER_TIMETABLES,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
    timetable_field,
)
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import utc_now
from airflow_eos.operators.partition_interval import PartitionDuration, gives_interval_end, zone_named
from airflow_eos.operators.task_identity import DATA_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk import DAG

_SOME_DAY = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)
_WEEK = dt.timedelta(weeks=1)


def check_schedule(
    ranges: Any, dag: DAG, duration: PartitionDuration | None, task_id: str, run_key: str | None = None
) -> None:
    """Check that the runs of a Dag have the intervals that its task reads, one after the other.

    :param run_key: names the run instead of an interval.
    :raises ConfigurationError: assets trigger its runs; or the Dag's schedule gives all its runs an empty
        one, or intervals that overlap or leave gaps.
    """
    timetable = dag.timetable
    if ranges != DATA_INTERVAL or run_key or duration is not None or gives_interval_end(timetable):
        return
    if timetable.asset_condition:
        raise ConfigurationError(
            f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and runs of Dag {dag.dag_id!r} that assets "
            f"trigger have no data interval. Schedule the Dag by time alone ({INTERVAL_TIMETABLES}."
            "CronDataIntervalTimetable) or by partitions, or use ranges=Cursor()"
        )
    if not isinstance(timetable, TRIGGER_TIMETABLES):
        return
    if isinstance(timetable, DeltaTriggerTimetable):
        delta, interval = (timetable_field(timetable, name) for name in ("delta", "interval"))
        period = _length(delta)
        with_intervals = f"DeltaDataIntervalTimetable({delta!r})"
    else:
        several = isinstance(timetable, MultipleCronTriggerTimetable)
        crons = timetable_field(timetable, "timetables") if several else [timetable]
        expressions = [timetable_field(cron, "expression") for cron in crons]
        zone, interval = (timetable_field(crons[0], name) for name in ("timezone", "interval"))
        period = _period(expressions, zone_named(zone))
        expression = "with one expression for all times, " if several else f"{expressions[0]!r}, "
        with_intervals = f"CronDataIntervalTimetable({expression}timezone={str(zone)!r})"
    # Of a run that it is late for by a moment, Airflow leaves a part or all of the period out.
    if_late = "" if dag.catchup or isinstance(timetable, CronTriggerTimetable) else " where a run is late"
    if interval and period and _length(interval) == period and not if_late:
        return
    if interval:
        problem = (
            f"gives each run the interval of {interval!r} before it: they overlap or leave gaps{if_late}, so "
            "that records are read twice or never"
        )
    else:
        problem = "gives empty intervals: cron strings, presets and timedeltas do in Airflow 3"
    raise ConfigurationError(
        f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and the schedule of Dag "
        f"{dag.dag_id!r} {problem}. Schedule the Dag with {INTERVAL_TIMETABLES}.{with_intervals}"
    )


def _length(delta: PartitionDuration) -> dt.timedelta | None:
    """Return the length of a delta; None if it depends on the date."""
    lengths = {day + delta - day for day in (_SOME_DAY, _SOME_DAY.replace(year=2001, month=2))}
    return lengths.pop() if len(lengths) == 1 else None


def _period(expressions: list[str], zone: dt.tzinfo) -> dt.timedelta | None:
    """Return the time between any two ticks of cron expressions; None if it varies."""
    from croniter import croniter  # type: ignore[import-untyped]  # Airflow's own

    week: set[dt.timedelta] = set()
    every_hour = True
    for cron in map(croniter, expressions):
        minutes, hours, days, months, weekdays, *seconds = cron.expanded
        if [days, months] != [["*"], ["*"]] or seconds or cron.nth_weekday_of_month:
            return None
        every_hour = every_hour and hours == ["*"]
        week |= {
            dt.timedelta(days=day, hours=hour, minutes=minute)
            for day in _numbers(weekdays, 7)
            for hour in _numbers(hours, 24)
            for minute in _numbers(minutes, 60)
        }
    ticks = sorted(week)
    periods = {after - tick for tick, after in zip(ticks, [*ticks[1:], ticks[0] + _WEEK], strict=True)}
    period = max(periods)
    # Backfills reach back to when more zones changed their clocks.
    weeks = (_SOME_DAY + number * _WEEK for number in range((utc_now() - _SOME_DAY) // _WEEK + 104))
    offsets = {moment.astimezone(zone).replace(tzinfo=dt.timezone.utc) - moment for moment in weeks}
    # Over a change by whole periods, ticks of every hour stay as far apart; others keep their local time.
    changes = {offset - min(offsets) for offset in offsets}
    regular = len(periods) == 1 and not any(change % period if every_hour else change for change in changes)
    return period if regular else None


def _numbers(field: list[Any], count: int) -> Iterable[int]:
    return range(count) if field == ["*"] else field
