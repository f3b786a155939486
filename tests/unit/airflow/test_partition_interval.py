"""Each moment belongs to exactly one partition, whatever clock changes a time zone has."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    Asset,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
    ProductMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
)
from airflow.timetables.trigger import CronPartitionTimetable as Scheduled
from airflow.timetables.trigger import CronTriggerTimetable
from dateutil.relativedelta import relativedelta
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Interval
from tests.support.airflow_partitions import partition_of, ranges_of

UTC = dt.timezone.utc
DAY = dt.timedelta(days=1)
ODD_ZONES = (
    "Europe/Berlin",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/Havana",
    "Asia/Beirut",
    "America/Sao_Paulo",
)
zones = st.sampled_from(ODD_ZONES) | st.sampled_from(sorted(zoneinfo.available_timezones() - {"localtime"}))
moments = st.integers(1_100_000_000, 1_900_000_000).map(lambda s: dt.datetime.fromtimestamp(s, UTC))


def partition(schedule: Any, key: str, date: dt.datetime | None, *more: Any, **dag_run: Any) -> Interval:
    """Return the interval of a partition as a task of its Dag run resolves it."""
    return partition_of(schedule, key, date, *more, **dag_run).interval


@pytest.mark.parametrize(
    ("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 7, 1), 24)], ids=str
)
@pytest.mark.parametrize(
    "duration", [None, DAY, relativedelta(days=1)], ids=["tick", "timedelta", "calendar"]
)
def test_a_local_day_ends_where_the_next_one_begins(day: Any, hours: int, duration: Any) -> None:
    """A day with a clock change has 23 or 25 hours."""
    start = pendulum.datetime(*day, tz="Europe/Berlin")
    daily = CronPartitionTimetable("@daily", timezone="Europe/Berlin")
    key = start.strftime("%Y-%m-%dT%H:%M:%S")
    interval = partition(daily, key, start.in_timezone("UTC"), duration)
    assert (interval.start, interval.end) == (start, start.add(days=1))
    assert interval.end - interval.start == dt.timedelta(hours=hours)


@settings(max_examples=60, deadline=None)
@example("America/Havana", dt.datetime(2020, 8, 3, tzinfo=UTC), "@monthly")  # November 1 begins twice there
@example("Antarctica/Casey", dt.datetime(2010, 3, 3, tzinfo=UTC), "@daily")  # 02:00 was followed by 23:00
@given(zones, moments, st.sampled_from(["@hourly", "@daily", "@weekly", "@monthly", "*/30 * * * *"]))
def test_partitions_of_the_scheduler_tile_time(zone: str, moment: dt.datetime, cron: str) -> None:
    """In every zone, from tick to tick; keys and dates are the scheduler's own."""
    schedule = CronPartitionTimetable(cron, timezone=zone)
    infos = Scheduled(cron, timezone=zone).iter_partition_dagrun_infos(
        earliest=moment, latest=moment + 90 * DAY
    )
    end = None
    for _, info in zip(range(4), infos, strict=False):
        interval = partition(schedule, info.partition_key, info.partition_date)
        assert interval.start == info.partition_date
        assert end in (None, interval.start)
        end = interval.end


@settings(max_examples=150, deadline=None)
@given(
    zones,
    moments,
    st.sampled_from(
        [
            StartOfHourMapper,
            StartOfDayMapper,
            StartOfWeekMapper,
            StartOfMonthMapper,
            StartOfQuarterMapper,
            StartOfYearMapper,
        ]
    ),
)
def test_a_moment_lies_in_the_partition_of_its_key(zone: str, moment: dt.datetime, mapper: Any) -> None:
    """A record of that moment has the mapper's key, and only that partition reads it."""
    import airflow.partition_mappers.temporal as core

    scheduled = getattr(core, mapper.__name__)(timezone=zone)
    local = moment.astimezone(zoneinfo.ZoneInfo(zone))
    key = scheduled.to_downstream(local.strftime("%Y-%m-%dT%H:%M:%S"))
    schedule = PartitionedAssetTimetable(assets=Asset("a"), default_partition_mapper=mapper(timezone=zone))
    interval = partition(schedule, key, scheduled.to_partition_date(key))
    assert interval.start <= moment < interval.end


@pytest.mark.parametrize("change", ["2026-03-29", "2026-10-25"])
def test_a_duration_is_counted_by_the_calendar_of_the_dag(change: str) -> None:
    """Days and months, for schedules without an end; hours stay hours."""
    start = pendulum.parse(change, tz="Europe/Berlin")
    assert isinstance(start, pendulum.DateTime)
    for duration, end in [
        (DAY, start.add(days=1)),
        (relativedelta(months=1), start.add(months=1)),
        (dt.timedelta(hours=6), start.in_timezone("UTC").add(hours=6)),
    ]:
        assert partition(None, "k", start, duration, timezone="Europe/Berlin").end == end


DAILY = CronPartitionTimetable("@daily", timezone="Europe/Berlin")
MIDNIGHT = pendulum.datetime(2026, 11, 20, tz="Europe/Berlin")
BY_REGION = ProductMapper(StartOfDayMapper(), StartOfDayMapper())


@pytest.mark.parametrize(
    ("schedule", "key", "date", "duration", "says"),
    [
        (DAILY, "2026-11-20T00:00:00", MIDNIGHT, DAY / 2, "Leave partition_duration out"),
        (DAILY, "2026-11-20T05:00:00", MIDNIGHT.add(hours=5), None, "is not a tick"),
        (DAILY, "2026-11-20T0:0:0", MIDNIGHT, None, "gives .2026-11-20T00:00:00.. If the form"),
        (DAILY, "2026-11-20|eu", MIDNIGHT, DAY, "several parts"),
        (None, "2026-11-20|us", MIDNIGHT, DAY, "several parts"),
        (None, "k", MIDNIGHT, None, "partition_duration"),
        (PartitionedAssetTimetable(assets=Asset("a")), "k", MIDNIGHT, DAY, "StartOfDayMapper"),
        (
            PartitionedAssetTimetable(assets=Asset("a"), default_partition_mapper=BY_REGION),
            "2026-11-20, eu",
            MIDNIGHT,
            DAY,
            "ProductMapper do not say",
        ),
    ],
)
def test_what_would_read_a_record_twice_or_never_is_refused(
    schedule: Any, key: str, date: dt.datetime, duration: Any, says: str
) -> None:
    """Ends that differ from the schedule's, keys that share an interval, and dates without a time zone."""
    with pytest.raises(ConfigurationError, match=says):
        partition(schedule, key, date, duration)


def test_a_key_of_several_parts_is_refused_with_a_data_interval_too() -> None:
    """Each of its keys would read the whole interval."""
    with pytest.raises(ConfigurationError, match="several parts"):
        partition(None, "d|eu", None, data_interval_start=MIDNIGHT, data_interval_end=MIDNIGHT + DAY)


@pytest.mark.parametrize(
    "schedule",
    [
        CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"),
        PartitionedAssetTimetable(
            assets=Asset("a"), default_partition_mapper=StartOfDayMapper(timezone="UTC")
        ),
    ],
    ids=["cron", "mapper"],
)
def test_a_key_of_another_date_is_refused_with_a_data_interval_too(schedule: Any) -> None:
    """Two keys triggered with one interval would each read all of it; a part of its day is allowed."""
    day, part = pendulum.datetime(2026, 11, 20), dt.timedelta(hours=6)
    given = {"data_interval_start": day + part, "data_interval_end": day + 2 * part}
    interval = partition(schedule, "2026-11-20", day, **given)
    assert (interval.start, interval.end) == (day + part, day + 2 * part)
    with pytest.raises(ConfigurationError, match=r"'2026-11-21' does not name .*gives '2026-11-20'"):
        partition(schedule, "2026-11-21", day + DAY, **given)


@pytest.mark.parametrize("schedule", [None, PartitionedAssetTimetable(assets=Asset("a"))])
def test_a_data_interval_counts_where_the_schedule_gives_keys_no_date(schedule: Any) -> None:
    """The interval of the Dag run is used."""
    assert partition(schedule, "k", None, data_interval_start=MIDNIGHT, data_interval_end=MIDNIGHT + DAY)


class QuarterHours(CronTriggerTimetable):
    """A timetable of a plugin: its runs have keys and data intervals."""

    partitioned = True


@pytest.mark.parametrize(
    ("schedule", "duration"),
    [
        (DAILY, None),
        (
            PartitionedAssetTimetable(
                assets=Asset("a"), default_partition_mapper=StartOfDayMapper(timezone="UTC")
            ),
            None,
        ),
        (PartitionedAtRuntime(), None),
        (QuarterHours("*/15 * * * *", timezone="UTC", interval=dt.timedelta(minutes=15)), None),
        (None, DAY),
    ],
    ids=["cron", "mapper", "at-runtime", "of somebody", "duration"],
)
@pytest.mark.parametrize("end", [MIDNIGHT, MIDNIGHT + DAY], ids=["empty", "interval"])
def test_a_run_whose_key_is_gone_is_refused(schedule: Any, duration: Any, end: dt.datetime) -> None:
    """clearPartitions removes it: the partition was read under another name than the interval's."""
    with pytest.raises(ConfigurationError, match=r"has no partition key.*clearPartitions"):
        ranges_of(schedule, duration, data_interval_start=MIDNIGHT, data_interval_end=end)


def test_interval_ends_are_moments() -> None:
    """The repeated hour at the end of summer time is not empty; a reversed interval is refused."""
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    first, second = (dt.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    hour = Interval(first, second)
    assert hour.end - hour.start == dt.timedelta(hours=1)
    assert hour.end + hour.allowed_lateness - hour.start == dt.timedelta(hours=1, minutes=5)
    with pytest.raises(ValueError, match="is empty"):
        Interval(second.replace(minute=15), first.replace(minute=45))


def test_interval_beyond_the_calendar_is_a_value_error() -> None:
    """Like other impossible intervals: Berlin's first midnight is before the first year in UTC."""
    first = dt.datetime.min.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    with pytest.raises(ValueError, match=r"start 0001-01-01T00:00:00.* is not in the years 1 to 9999 of UTC"):
        Interval(first, MIDNIGHT)
