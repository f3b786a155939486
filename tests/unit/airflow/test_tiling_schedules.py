"""Intervals and partitions of Airflow's timetables tile time in every time zone, with any clock change."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby, islice
from types import SimpleNamespace
from typing import Any

import airflow.sdk
import pendulum
import pytest
from airflow.partition_mappers import temporal
from airflow.sdk import DAG, BaseOperator
from airflow.timetables import interval as interval_timetables
from airflow.timetables import trigger as trigger_timetables
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.timetables.simple import PartitionedAssetTimetable
from airflow.timetables.trigger import (
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from dateutil.relativedelta import relativedelta

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Interval
from airflow_eos.operators.schedules import check_schedule
from airflow_eos.operators.task_identity import refuse_another_grid, warn_of_read_before
from tests.support.airflow_partitions import partition_of, ranges_of

UTC = dt.timezone.utc
HOUR, DAY, MS = dt.timedelta(hours=1), dt.timedelta(days=1), dt.timedelta(milliseconds=1)
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=UTC)
PERIODS = ("@daily", "@weekly", "@monthly")
DELTAS = {"@daily": DAY, "@weekly": 7 * DAY, "@monthly": relativedelta(months=1)}
MAPPERS = {"@daily": "StartOfDayMapper", "@weekly": "StartOfWeekMapper", "@monthly": "StartOfMonthMapper"}
BEFORE = {"@daily": 2 * DAY, "@weekly": 8 * DAY, "@monthly": 32 * DAY}

Schedule = Callable[[str, str, dt.datetime], Iterator[Interval]]


@cache
def clocks() -> dict[str, list[dt.datetime]]:
    """Return a year's clock changes, of one time zone for all that show the same time all year.

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
    """Yield what tasks read, run by run, like the scheduler's Dag runs from a start date on."""
    restriction = TimeRestriction(pendulum.instance(start), None, catchup=True)
    last = None
    while True:
        info = scheduler.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        last = info.data_interval
        ends = {"data_interval_start": last.start, "data_interval_end": last.end}
        interval = ranges_of(schedule, timezone=zone, **ends)
        assert isinstance(interval, Interval)
        yield interval


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


def named(mapper: str, zone: str, moments: Iterable[dt.datetime]) -> Iterator[tuple[str, dt.datetime]]:
    """Yield the keys of moments in the order of time, each once, and their dates, as a task gets them."""
    clock, scheduled = zoneinfo.ZoneInfo(zone), getattr(temporal, mapper)(timezone=zone)
    keys = (scheduled.to_downstream(f"{moment.astimezone(clock):%Y-%m-%dT%H:%M:%S}") for moment in moments)
    for key, _ in groupby(keys):
        yield key, scheduled.to_partition_date(key).astimezone(UTC)


def mapped(mapper: str, zone: str, moments: Iterable[dt.datetime]) -> Iterator[Interval]:
    schedule = airflow.sdk.PartitionedAssetTimetable(
        assets=airflow.sdk.Asset("a"),
        default_partition_mapper=getattr(airflow.sdk, mapper)(timezone=zone),
    )
    for key, date in named(mapper, zone, moments):
        yield partition_of(schedule, key, date, timezone=zone).interval


def of_mappers(period: str, zone: str, start: dt.datetime) -> Iterator[Interval]:
    return mapped(MAPPERS[period], zone, (start + number * DAY / 2 for number in range(400)))


def of_durations(period: str, zone: str, start: dt.datetime) -> Iterator[Interval]:
    """Yield the partitions of a Dag without a schedule, by the dates that Airflow derives from keys."""
    for key, date in named(MAPPERS[period], zone, (start + number * DAY / 2 for number in range(400))):
        yield partition_of(None, key, date, DELTAS[period], timezone=zone).interval


def assert_tiled(intervals: Iterable[Interval], around: dt.datetime) -> None:
    """Each begins where the last one ended, and each moment around a change is in exactly one."""
    tiles = list(intervals)
    assert [interval.end for interval in tiles[:-1]] == [interval.start for interval in tiles[1:]]
    moments = [interval.end for interval in tiles[:-1]] + [around + hours * HOUR for hours in (-1, 0, 1)]
    for moment in (at + by for at in moments for by in (-MS, 0 * MS)):
        if tiles[0].start <= moment < tiles[-1].end:
            assert sum(interval.start <= moment < interval.end for interval in tiles) == 1
    assert tiles[0].start <= around < tiles[-1].end


@pytest.mark.search
@pytest.mark.parametrize("schedule", [of_cron, of_delta, of_partitions, of_mappers, of_durations])
def test_schedules_tile_time_over_each_change_of_each_clock(schedule: Schedule) -> None:
    """Days, weeks and months of every time zone of the machine, over all clock changes of a year."""
    zones = clocks()
    assert sum(len(changes) > 1 for changes in zones.values()) > 10
    for zone, changes in zones.items():
        for change in changes or [NEW_YEAR + 180 * DAY]:
            for period in PERIODS:
                start = change - BEFORE[period]
                assert_tiled(islice(schedule(period, zone, start), 4), change)


@pytest.mark.parametrize(
    ("schedule", "catchup", "tiles"),
    [
        (CronDataIntervalTimetable("@hourly", timezone="UTC"), False, True),
        (DeltaDataIntervalTimetable(HOUR), False, True),
        (CronTriggerTimetable("@hourly", timezone="UTC", interval=HOUR), False, True),
        (DeltaTriggerTimetable(HOUR, interval=HOUR), True, True),
        (DeltaTriggerTimetable(HOUR, interval=HOUR), False, False),
        (
            MultipleCronTriggerTimetable("0 * * * *", "30 * * * *", timezone="UTC", interval=HOUR / 2),
            True,
            True,
        ),
        (
            MultipleCronTriggerTimetable("0 * * * *", "30 * * * *", timezone="UTC", interval=HOUR / 2),
            False,
            False,
        ),
    ],
)
def test_schedules_whose_runs_are_late_by_seconds(
    schedule: Any, catchup: bool, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow recomputes the next run when it parses the Dag; a schedule that does not tile is refused."""
    now, last, meet = pendulum.datetime(2026, 1, 1, 12), None, []
    restriction = TimeRestriction(now, None, catchup=catchup)
    for module in (interval_timetables, trigger_timetables):
        monkeypatch.setattr(module, "utcnow", lambda: now)
    for _ in range(5):
        info = schedule.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        now = info.run_after.add(seconds=3)
        info = schedule.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        if last is not None:
            meet.append(info.data_interval.start == last.end)
        last = info.data_interval
    assert all(meet) is tiles


@pytest.mark.parametrize(
    ("delta", "start", "catchup", "tiles"),
    [
        (HOUR, "2026-01-01T00:30Z", False, False),  # the interval after 01:30 begins at 02:00
        (HOUR, "2026-01-01T00:00Z", False, True),
        (HOUR, "2026-01-01T00:30Z", True, True),
        (7 * DAY, "2026-01-05T00:00Z", False, False),  # a Monday; 1970 began on a Thursday
        (7 * DAY, "2026-01-08T00:00Z", False, True),
        (DAY, None, False, True),
        (relativedelta(months=1), None, False, False),  # counted from now
        (relativedelta(months=1), "2026-01-05T00:00Z", False, True),
    ],
)
def test_periods_whose_runs_are_late(
    delta: Any, start: str | None, catchup: bool, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whole periods are left out, which a backfill can read, or the schedule is refused."""
    begin: Any = None if start is None else pendulum.parse(start)
    schedule: Any = DeltaDataIntervalTimetable(delta)
    restriction, whole = TimeRestriction(begin, None, catchup), []
    for late in (dt.timedelta(seconds=3), HOUR * 3 / 4, 5 * DAY):
        now, last = begin or pendulum.datetime(2026, 1, 5, 12, 30), None
        monkeypatch.setattr(interval_timetables, "utcnow", lambda: now)  # noqa: B023 - called in this iteration
        for number in range(3):
            info = schedule.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
            now = info.run_after + number * late  # the first one is in time
            info = schedule.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
            reached = last and last.end
            while reached and reached < info.data_interval.start:
                reached += delta
            whole.append(reached in (None, info.data_interval.start))
            last = info.data_interval
    assert all(whole) is tiles
    for given in (schedule, airflow.sdk.DeltaDataIntervalTimetable(delta)):
        refused = pytest.raises(ConfigurationError, match="is in no interval")
        with contextlib.nullcontext() if tiles else refused:
            dag = DAG("d", schedule=given, start_date=begin, catchup=catchup)
            check_schedule("data_interval", dag, None, "t")
        if not catchup:  # a Dag may have its start date from its tasks
            with contextlib.nullcontext() if tiles else refused:
                dag = DAG("d", schedule=given)
                BaseOperator(task_id="t", dag=dag, start_date=begin)
                check_schedule("data_interval", dag, None, "t")


@pytest.mark.parametrize("timetable", ["DeltaDataIntervalTimetable", "DeltaTriggerTimetable"])
@pytest.mark.parametrize("delta", [*DELTAS.values(), HOUR, relativedelta(days=1)], ids=str)
def test_a_backfill_beside_the_periods_of_a_schedule_is_refused(timetable: str, delta: Any) -> None:
    """Airflow counts the periods of a backfill from its --from-date."""
    dag = DAG("d", schedule=getattr(airflow.sdk, timetable)(delta), start_date=NEW_YEAR, catchup=True)
    backfill, manual = (
        {"dag": dag, "dag_run": SimpleNamespace(run_id="r", run_type=kind)} for kind in ("backfill", "manual")
    )
    for number in (*range(-130, 130), 9000 if delta == HOUR else 0):
        begin = NEW_YEAR + number * delta
        refuse_another_grid(backfill, Interval(begin, begin + delta))  # type: ignore[arg-type]
        late = Interval(begin + HOUR / 2, begin + HOUR / 2 + delta)
        refuse_another_grid(manual, late)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=rf"twice.*--from-date {re.escape(begin.isoformat())}"):
            refuse_another_grid(backfill, late)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cron", "zone", "key_format", "is_refused"),
    [
        ("0 * * * *", "Europe/Berlin", "%Y-%m-%dT%H:%M:%S", True),
        ("0 * * * *", "Europe/Berlin", "%Y-%m-%dT%H:%M:%S%z", False),
        ("0 * * * *", "Asia/Tokyo", "%Y-%m-%dT%H:%M:%S", False),
        ("0 * * * *", "UTC", "%Y-%m-%d", True),
        ("0 */6 * * *", "UTC", "%Y-%m-%d", True),
        ("0 0 * * 1", "UTC", "%Y-%m", True),
        ("0 0 1 * *", "UTC", "%Y-%m", False),
        ("30 2 * * *", "Europe/Berlin", "%Y-%m-%dT%H:%M:%S", False),
    ],
)
def test_two_ticks_of_one_key_are_refused(cron: str, zone: str, key_format: str, is_refused: bool) -> None:
    """The run of the second one would be refused by the record of the first, and its records stay unread."""
    for timetable in (CronPartitionTimetable, airflow.sdk.CronPartitionTimetable):
        schedule: Any = timetable(cron, timezone=zone, key_format=key_format)
        expected = pytest.raises(ConfigurationError, match="two partitions of Dag 'd' have the key '20")
        with expected if is_refused else contextlib.nullcontext():
            check_schedule("data_interval", DAG("d", schedule=schedule), None, "t")


def test_a_backfill_begins_where_the_scheduler_does_after_a_month_that_is_shorter() -> None:
    """From the 31st of January, the scheduler's months begin on the 28th of February, March and so on."""
    delta, first = relativedelta(months=1), pendulum.datetime(2026, 1, 31)
    dag = DAG("d", schedule=airflow.sdk.DeltaDataIntervalTimetable(delta), start_date=first, catchup=True)
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(run_id="r", run_type="backfill")}
    scheduled, last = DeltaDataIntervalTimetable(delta), None
    for day in (31, 28, 28, 28):
        info = scheduled.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(first, None, catchup=True)
        )
        last = info.data_interval
        assert last.start.day == day
        refuse_another_grid(context, Interval(last.start, last.end))
    late = pendulum.datetime(2026, 3, 31)
    with pytest.raises(ConfigurationError, match="--from-date 2026-03-28"):
        refuse_another_grid(context, Interval(late, late + delta))


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Africa/Cairo", "2026-04-23T22:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("Pacific/Chatham", "2026-09-26T14:00:00Z"),
    ],
)
def test_hours_tile_time_where_a_clock_is_put_forward(zone: str, change: str) -> None:
    """At midnight, by half an hour, and from 02:45: each moment is in the partition of its own hour."""
    around = pendulum.parse(change)
    assert isinstance(around, pendulum.DateTime)
    moments = [around + minutes * dt.timedelta(minutes=5) for minutes in range(-40, 40)]
    assert_tiled(mapped("StartOfHourMapper", zone, moments), around)
    for moment in moments:
        (hour,) = mapped("StartOfHourMapper", zone, [moment])
        assert hour.start <= moment < hour.end


@pytest.mark.parametrize(
    ("schedule", "key"),
    [
        (airflow.sdk.CronPartitionTimetable("@daily", timezone="America/Havana"), "2026-03-08T01:00:00"),
        (
            airflow.sdk.PartitionedAssetTimetable(
                assets=airflow.sdk.Asset("a"),
                default_partition_mapper=airflow.sdk.StartOfDayMapper(timezone="America/Havana"),
            ),
            "2026-03-08",
        ),
        (CronPartitionTimetable("@daily", timezone="America/Havana"), "2026-03-08T01:00:00"),
        (
            PartitionedAssetTimetable(
                assets=airflow.sdk.Asset("a"),  # type: ignore[arg-type]  # Airflow accepts it in Dag files
                default_partition_mapper=temporal.StartOfDayMapper(timezone="America/Havana"),
            ),
            "2026-03-08",
        ),
    ],
    ids=["tick", "mapper", "the scheduler's tick", "the scheduler's mapper"],
)
def test_a_duration_that_agrees_is_accepted_on_a_day_without_midnight(schedule: Any, key: str) -> None:
    """Havana's clock jumps from 23:59 to 01:00: the day begins then, and ends at midnight."""
    date = dt.datetime(2026, 3, 8, 5, tzinfo=UTC)
    day = partition_of(schedule, key, date, DAY).interval
    assert day == Interval(date, date + 23 * HOUR, dt.timedelta())


def test_the_key_of_an_hour_that_the_clock_skips_is_refused() -> None:
    """No record can have it."""
    schedule = airflow.sdk.PartitionedAssetTimetable(
        assets=airflow.sdk.Asset("a"),
        default_partition_mapper=airflow.sdk.StartOfHourMapper(timezone="America/Havana"),
    )
    with pytest.raises(ConfigurationError, match="gives '2026-03-08T01'"):
        partition_of(schedule, "2026-03-08T00", dt.datetime(2026, 3, 8, 5, tzinfo=UTC))


@pytest.mark.parametrize(
    ("cron", "zone", "start_date", "warned"),
    [
        ("@daily", "UTC", "2026-01-01", False),
        ("@hourly", "UTC", "2026-01-01", False),
        ("0 6 * * *", "UTC", "2026-01-01", True),
        ("@daily", "Europe/Berlin", "2026-01-01", True),
        ("@daily", "Europe/Berlin", "2026-06-11T00:00Z", False),
    ],
)
def test_a_schedule_that_reads_again_after_its_change_is_a_warning(
    cron: str, zone: str, start_date: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After days in UTC, the scheduler's next interval overlaps; a start date is the remedy."""
    before = DataInterval(pendulum.datetime(2026, 6, 10), pendulum.datetime(2026, 6, 11))
    restriction = TimeRestriction(pendulum.parse(start_date), None, catchup=True)  # type: ignore[arg-type]
    scheduler = CronDataIntervalTimetable(cron, timezone=zone)
    info = scheduler.next_dagrun_info(last_automated_data_interval=before, restriction=restriction)
    assert info is not None
    interval = Interval(info.data_interval.start, info.data_interval.end)
    context: Any = {
        "run_id": "r",
        "prev_data_interval_start_success": before.start,
        "prev_data_interval_end_success": before.end,
    }
    warn_of_read_before(context, interval)
    assert (interval.start < before.end) is warned
    assert ("records in both are read twice" in caplog.text) is warned
    warn_of_read_before({**context, "prev_data_interval_end_success": None}, interval)


def test_an_interval_is_read_while_the_api_server_does_not_tell_of_the_run_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Airflow requests it lazily."""

    class Away:
        def __bool__(self) -> bool:
            raise ConnectionError("503")

    context: Any = {"run_id": "r", "prev_data_interval_start_success": Away()}
    with caplog.at_level("INFO"):
        warn_of_read_before(context, Interval(NEW_YEAR, NEW_YEAR + DAY))
    assert "It is not known what the Dag run before has read: 503" in caplog.text


def test_a_run_that_is_triggered_after_a_skipped_time_is_told_what_to_do() -> None:
    """On the last Sunday of March, Berlin's clock skips 02:30."""
    sunday = pendulum.datetime(2026, 3, 29, 12)
    scheduler = CronDataIntervalTimetable("30 2 * * *", timezone="Europe/Berlin")
    empty = scheduler.infer_manual_data_interval(run_after=sunday)
    assert empty.start == empty.end
    schedule = airflow.sdk.CronDataIntervalTimetable("30 2 * * *", timezone="Europe/Berlin")
    with pytest.raises(
        ConfigurationError, match=r"skips a time of it.*backfill, or give data_interval_start"
    ):
        ranges_of(schedule, data_interval_start=empty.start, data_interval_end=empty.end)
