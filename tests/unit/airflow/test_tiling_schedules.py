"""Intervals and partitions of Airflow's timetables tile time in every time zone, whatever its clock does."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import airflow.sdk
import pendulum
import pytest
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.timetables.trigger import CronPartitionTimetable
from dateutil.relativedelta import relativedelta

from airflow_eos.model.ranges import Interval
from tests.support.airflow_partitions import partition_of, ranges_of

UTC = dt.timezone.utc
HOUR, DAY, MS = dt.timedelta(hours=1), dt.timedelta(days=1), dt.timedelta(milliseconds=1)
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=UTC)
PERIODS = ("@daily", "@weekly", "@monthly")
DELTAS = {"@daily": DAY, "@weekly": 7 * DAY, "@monthly": relativedelta(months=1)}
BEFORE = {"@daily": 2 * DAY, "@weekly": 8 * DAY, "@monthly": 32 * DAY}

Schedule = Callable[[str, str, dt.datetime], Iterator[Interval]]


def clocks() -> dict[str, list[dt.datetime]]:
    """Return the changes of the clock in a year, of a time zone for all that show the same time all year.

    :returns: by time zone, each change as the first moment with the new offset, to the second.
    """
    alike: dict[Any, str] = {}
    days = [NEW_YEAR + number * DAY for number in range(366)]
    for zone in sorted(zoneinfo.available_timezones() - {"localtime"}):
        clock = zoneinfo.ZoneInfo(zone)
        offsets = [day.astimezone(clock).utcoffset() for day in days]
        changes = [
            (_change(clock, day), new)
            for day, old, new in zip(days, offsets, offsets[1:], strict=False)
            if old != new
        ]
        alike.setdefault((offsets[0], *changes), zone)
    return {zone: [change for change, _ in key[1:]] for key, zone in alike.items()}


def _change(clock: dt.tzinfo, day: dt.datetime) -> dt.datetime:
    low, high, old = 0, 86400, day.astimezone(clock).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        is_old = (day + dt.timedelta(seconds=middle)).astimezone(clock).utcoffset() == old
        low, high = (middle, high) if is_old else (low, middle)
    return day + dt.timedelta(seconds=high)


def data_intervals(schedule: Any, scheduler: Any, zone: str, start: dt.datetime) -> Iterator[Interval]:
    """Yield what tasks read, run by run, as the scheduler makes Dag runs from a start date on."""
    restriction = TimeRestriction(pendulum.instance(start), None, catchup=True)
    last = None
    while True:
        info = scheduler.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        last = info.data_interval
        ends = {"data_interval_start": last.start, "data_interval_end": last.end}
        found = ranges_of(schedule, timezone=zone, **ends)
        assert isinstance(found, Interval)
        yield found


def of_cron(period: str, zone: str, start: dt.datetime) -> Iterator[Interval]:
    schedule = airflow.sdk.CronDataIntervalTimetable(period, timezone=zone)
    return data_intervals(schedule, CronDataIntervalTimetable(period, timezone=zone), zone, start)


def of_delta(period: str, zone: str, start: dt.datetime) -> Iterator[Interval]:
    schedule = airflow.sdk.DeltaDataIntervalTimetable(DELTAS[period])
    local = start.astimezone(zoneinfo.ZoneInfo(zone))
    return data_intervals(schedule, DeltaDataIntervalTimetable(DELTAS[period]), zone, local)


def of_partitions(period: str, zone: str, start: dt.datetime) -> Iterator[Interval]:
    schedule = airflow.sdk.CronPartitionTimetable(period, timezone=zone)
    ticks = CronPartitionTimetable(period, timezone=zone).iter_partition_dagrun_infos(
        earliest=start, latest=start + 200 * DAY
    )
    for tick in ticks:
        yield partition_of(schedule, tick.partition_key, tick.partition_date, timezone=zone).interval


def assert_tiled(intervals: Iterable[Interval], around: dt.datetime) -> None:
    """Each begins where the last one ended, and each moment around a change is in exactly one."""
    known = list(intervals)
    assert [one.end for one in known[:-1]] == [one.start for one in known[1:]]
    moments = [one.end for one in known[:-1]] + [around + hours * HOUR for hours in (-1, 0, 1)]
    for moment in (at + by for at in moments for by in (-MS, 0 * MS)):
        if known[0].start <= moment < known[-1].end:
            assert sum(one.start <= moment < one.end for one in known) == 1
    assert known[0].start <= around < known[-1].end


@pytest.mark.parametrize("schedule", [of_cron, of_delta, of_partitions])
def test_schedules_tile_time_over_each_change_of_each_clock(schedule: Schedule) -> None:
    """Days, weeks and months of every time zone of the machine, over all changes of a year."""
    zones = clocks()
    assert sum(len(changes) > 1 for changes in zones.values()) > 10
    for zone, changes in zones.items():
        for change in changes or [NEW_YEAR + 180 * DAY]:
            for period in PERIODS:
                start = change - BEFORE[period]
                assert_tiled(islice(schedule(period, zone, start), 4), change)
