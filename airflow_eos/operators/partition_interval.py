"""The interval of an Airflow partition: from its date to the start of the next partition.

Days, weeks and months of a time zone have no fixed length: a day with a change of the clock takes 23 or 25
hours. The end of a partition is therefore computed by the calendar:

- ``CronPartitionTimetable``: the timetable's next tick;
- ``PartitionedAssetTimetable`` with temporal mappers (``StartOfDayMapper`` and similar): the next hour, day,
  week, month, quarter or year in the mapper's time zone;
- other schedules: ``partition_duration``, by the calendar of the Dag's time zone.

An interval belongs to one key. A key that does not follow from the date (``2026-11-20|eu``) is refused: every
key of that date would read all records of the interval.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pendulum
from dateutil.relativedelta import relativedelta

from airflow_eos.compat import is_kind, timetable_field
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import in_utc

if TYPE_CHECKING:
    from airflow.sdk import DAG

PartitionDuration: TypeAlias = dt.timedelta | relativedelta

_DAY = dt.timedelta(days=1)
_SECOND = dt.timedelta(seconds=1)
_MIDNIGHT = dt.time()
_PERIODS = {
    "StartOfHourMapper": relativedelta(hours=1),
    "StartOfDayMapper": relativedelta(days=1),
    "StartOfWeekMapper": relativedelta(weeks=1),
    "StartOfMonthMapper": relativedelta(months=1),
    "StartOfQuarterMapper": relativedelta(months=3),
    "StartOfYearMapper": relativedelta(years=1),
}
GIVE_RANGES = (
    "set its ranges in the task's pre_execute: context['task'].ranges = PartitionInterval(key, Interval(...))"
)
_COMPOSITE = (
    "Each key of that date would read all of its records. Give each part a Dag with source topics of its "
    f"own, partitioned by date alone, or {GIVE_RANGES}"
)


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one partition.

    :param start: inclusive, UTC.
    :param end: exclusive, UTC: the start of the next partition.
    :param key: the only partition key of this span; None if the schedule does not define it.
    :param schedule: names the source of the end, for errors.
    """

    start: dt.datetime
    end: dt.datetime
    key: str | None
    schedule: str


def partition_span(
    key: str, date: dt.datetime, dag: DAG, duration: PartitionDuration | None
) -> tuple[dt.datetime, dt.datetime]:
    """Return start (inclusive) and end (exclusive) of a partition, in UTC.

    :param date: the partition date of the Dag run, aware.
    :param duration: ``partition_duration``; None if the schedule defines the end.
    :raises ConfigurationError: the end is unknown, the schedule contradicts ``duration``, or other keys have
        the same interval; names what to change.
    """
    refuse_composite(key)
    span = _scheduled(key, date, dag)
    if span is None:
        if duration is None:
            raise ConfigurationError(
                f"the partition {key!r} has a date but no end: schedule the Dag with CronPartitionTimetable("
                "..., run_offset=-1) or a temporal partition mapper, or give partition_duration, for example "
                "relativedelta(months=1) or timedelta(days=1): a day of the Dag's time zone"
            )
        return _added(date, duration, dag.timezone)[0]
    if span.key is not None and key != span.key:
        raise ConfigurationError(
            f"partition key {key!r} does not name its date {date.isoformat()}: {span.schedule} gives "
            f"{span.key!r}. If the form of its keys was changed, run the partition under that key, unless it "
            f"was committed under the old one. {_COMPOSITE}"
        )
    if duration is not None:
        zone = _zone(dag)
        given = _added(date, duration, zone)
        if (span.start, span.end) not in given:
            raise ConfigurationError(
                f"partition_duration {duration!r} gives partition {key!r} the end {given[0][1].isoformat()}, "
                f"and {span.schedule} ends it at {span.end.isoformat()}: records would be in two partitions, "
                "or in none. Leave partition_duration out"
            )
    return span.start, span.end


def check_partition_duration(duration: PartitionDuration | None) -> None:
    """Raise ConfigurationError at parse unless the value is a duration > 0 and <= 100 years."""
    if duration is None:
        return
    some_day = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - any date serves
    try:
        fits = isinstance(duration, PartitionDuration) and (
            some_day < some_day + duration <= some_day.replace(year=2100)
        )
    except (OverflowError, ValueError):  # there is no such date
        fits = False
    if not fits:
        raise ConfigurationError(
            "partition_duration must be a timedelta or relativedelta longer than nothing and of at most 100 "
            f"years, got {duration!r}"
        )


def refuse_composite(key: str) -> None:
    """Raise ConfigurationError for a key of several parts, which ``ProductMapper`` makes."""
    if "|" in key:
        raise ConfigurationError(
            f"partition key {key!r} has several parts, and an interval is known for its date alone. "
            f"{_COMPOSITE}"
        )


def refuse_other_date(key: str, start: dt.datetime, dag: DAG) -> None:
    """Refuse a key that does not match the start of the data interval by the schedule.

    :param start: start of the data interval of a Dag run with a key.
    :raises ConfigurationError: names both; not raised if the schedule does not define keys.
    """
    timetable, expected = dag.timetable, key
    if is_kind(timetable, "CronPartitionTimetable"):
        expected = start.astimezone(_zone(dag)).strftime(timetable_field(timetable, "key_format"))
    elif is_kind(timetable, "PartitionedAssetTimetable"):
        with contextlib.suppress(ConfigurationError):  # its mappers give no date
            expected = str(_of_mapper(key, start, _mapper(timetable)).key)
    if key != expected:
        raise ConfigurationError(
            f"partition key {key!r} does not name the start {start.isoformat()} of the data interval of its "
            f"Dag run: the schedule gives {expected!r}. Trigger the Dag with the key alone, or {GIVE_RANGES}"
        )


def gives_interval_end(timetable: Any) -> bool:
    """Return whether a schedule defines the ends of its partitions."""
    return is_kind(timetable, "CronPartitionTimetable", "PartitionedAssetTimetable")


def has_partitions(timetable: Any) -> bool:
    """Return whether the runs of a schedule are those of partitions, each named by a key."""
    flags = ("partitioned", "partitioned_at_runtime")  # also of timetables that others wrote
    return gives_interval_end(timetable) or any(getattr(timetable, flag, False) for flag in flags)


def _scheduled(key: str, date: dt.datetime, dag: DAG) -> Span | None:
    timetable = dag.timetable
    if is_kind(timetable, "CronPartitionTimetable"):
        return _of_cron(key, date, timetable)
    if is_kind(timetable, "PartitionedAssetTimetable"):
        return _of_mapper(key, date, _mapper(timetable))
    return None


def _zone(dag: DAG) -> Any:
    timetable = dag.timetable
    if is_kind(timetable, "PartitionedAssetTimetable"):
        return _mapper(timetable)._timezone  # noqa: SLF001 - it has no other name
    return zone_named(timetable_field(timetable, "timezone"))


def _of_cron(key: str, date: dt.datetime, timetable: Any) -> Span:
    """Return the span from a tick to the next, by the scheduler's own calculation."""
    from airflow.timetables.base import DagRunInfo, TimeRestriction
    from airflow.timetables.trigger import CronPartitionTimetable as Scheduled

    cron, zone, key_format = (timetable_field(timetable, n) for n in ("expression", "timezone", "key_format"))
    scheduled = Scheduled(cron, timezone=zone)

    def tick_after(moment: pendulum.DateTime) -> pendulum.DateTime:
        last = DagRunInfo(run_after=moment, data_interval=None, partition_date=None, partition_key=None)
        following = scheduled.next_dagrun_info_v2(
            last_dagrun_info=last, restriction=TimeRestriction(None, None, catchup=True)
        )
        assert following is not None  # there is no latest date
        return following.run_after

    start = pendulum.instance(date).in_timezone("UTC")
    schedule = f"CronPartitionTimetable({cron!r}, timezone={str(zone)!r})"

    def is_tick(before: pendulum.Duration) -> bool:
        tick = start - before
        while tick < start:
            tick = tick_after(tick)
        return tick == start

    # Ticks are whole minutes; a date between two ticks would give the partition a part of another one. In an
    # hour that a clock shows twice, the scheduler's tick is only found from before that hour.
    if not any(is_tick(before) for before in (pendulum.duration(seconds=1), pendulum.duration(days=1))):
        raise ConfigurationError(
            f"the date {start.isoformat()} of partition {key!r} is not a tick of {schedule}: its records "
            "belong to another partition. Trigger the Dag with the key of a tick"
        )
    local = start.in_timezone(zone_named(zone))
    return Span(start, tick_after(start), local.strftime(key_format), schedule)


def zone_named(zone: Any) -> Any:
    """Return a time zone that may be given by its name."""
    return pendulum.timezone(zone) if isinstance(zone, str) else zone


def _mapper(timetable: Any) -> Any:
    """Return the temporal mapper of a Dag's partition dates; raises unless there is exactly one."""
    mappers = [*timetable.partition_mapper_config.values()] or [timetable.default_partition_mapper]
    dated = [_innermost(mapper) for mapper in mappers]
    forms = {
        (type(mapper), str(getattr(mapper, "_timezone", None)), getattr(mapper, "output_format", None))
        for mapper in dated
    }
    if len(forms) != 1 or not is_kind(dated[0], *_PERIODS):
        names = ", ".join(sorted({type(mapper).__name__ for mapper in dated}))
        raise ConfigurationError(
            f"the partition mappers {names} do not say in which time zone a partition begins, nor when it "
            "ends. Schedule the Dag with one temporal mapper for all assets, for example "
            "PartitionedAssetTimetable(assets=..., "
            f'default_partition_mapper=StartOfDayMapper(timezone="Europe/Berlin")), or {GIVE_RANGES}'
        )
    return dated[0]


def _innermost(mapper: Any) -> Any:
    """Return the mapper that writes the key of a Dag run."""
    while True:
        if is_kind(mapper, "RollupMapper"):
            mapper = mapper.upstream_mapper
        elif is_kind(mapper, "FanOutMapper"):
            mapper = mapper.downstream_mapper
        else:
            return mapper


def _of_mapper(key: str, date: dt.datetime, mapper: Any) -> Span:
    """Return the span that a mapper gives a key; if the key does not match, the span of the date itself."""
    zone, period = mapper._timezone, _PERIODS[type(mapper).__name__]  # noqa: SLF001 - it has no other name
    spans = [
        Span(
            _first_from(wall, zone),
            _first_from(wall + period, zone),
            wall.strftime(mapper.output_format.replace("{quarter}", str((wall.month - 1) // 3 + 1))),
            f"{type(mapper).__name__}(timezone={str(zone)!r})",
        )
        for wall in _wall_times(date, zone)
    ]
    # A period that the clock skips entirely has no records: its key belongs to the period after it.
    named = [span for span in spans if span.key == key and span.start < span.end]
    return min(named, key=lambda span: span.end, default=spans[0])


def _added(
    date: dt.datetime, duration: PartitionDuration, zone: Any
) -> list[tuple[dt.datetime, dt.datetime]]:
    """Return date and date plus duration, in UTC; whole days, months and years by the zone's calendar.

    Both ends are the first moment at which the zone's clock shows their time; a time that the clock skips is
    moved by as much as the clock is put forward. Adjacent intervals therefore meet.

    :returns: two intervals if the date may also mean a skipped time; that of a skipped midnight first.
    """
    if isinstance(duration, dt.timedelta) and duration % _DAY:
        start = in_utc(date)
        return [(start, start + duration)]
    walls = sorted(_wall_times(date, zone), key=lambda wall: wall.time() != _MIDNIGHT)
    return [(_moment(wall, zone), _moment(wall + duration, zone)) for wall in walls]


def _wall_times(date: dt.datetime, zone: Any) -> list[dt.datetime]:
    """Return the time that a zone's clock shows at a date, and the skipped one that Airflow moves there."""
    utc, clock = in_utc(date), zone_named(zone)
    shown = utc.astimezone(clock).replace(tzinfo=None, fold=0)
    # No clock is put forward by more than a day, so the day before has the offset before any such change.
    offset = (utc - _DAY).astimezone(clock).replace(tzinfo=dt.timezone.utc) - (utc - _DAY)
    skipped = (utc + offset).replace(tzinfo=None)
    return [shown, skipped] if skipped < shown and _moment(skipped, zone) == utc else [shown]


def _moment(wall: dt.datetime, zone: Any, fold: int = 0) -> dt.datetime:
    return wall.replace(tzinfo=zone_named(zone), fold=fold).astimezone(dt.timezone.utc)


def _first_from(wall: dt.datetime, zone: Any) -> dt.datetime:
    """Return the first moment at which a zone's clock shows a time, or the change that skips it."""
    first, moment, clock = _moment(wall, zone, fold=1), _moment(wall, zone), zone_named(zone)
    skips = first < moment  # then the change lies between the two
    while skips and first.astimezone(clock).replace(tzinfo=None) < wall:
        first += _SECOND
    return first if skips else moment
