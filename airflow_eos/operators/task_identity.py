"""The identity and the ranges of a run, from the context of an Airflow task."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos.compat import (
    TRIGGER_TIMETABLES,
    is_kind,
    partition_date,
    partition_key,
    timetable_field,
)
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.model.ranges import (
    INTERVAL_TIMETABLE,
    Cursor,
    Explicit,
    Interval,
    PartitionInterval,
    RangeMode,
    in_utc,
)
from airflow_eos.operators.partition_interval import (
    GIVE_RANGES,
    PartitionDuration,
    has_partitions,
    partition_span,
    refuse_composite,
    refuse_other_date,
)

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

log = logging.getLogger(__name__)

DATA_INTERVAL: Literal["data_interval"] = "data_interval"
Ranges = RangeMode | Literal["data_interval"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def refuse_loop(context: Context) -> None:
    """Refuse a task in a loop (``.loop()`` of a task group, Airflow 3.4), which runs often in a Dag run.

    A run is identified by pipeline and Dag run, or by its interval: every later iteration would find the
    first one's commit, succeed, and write nothing. A task in a loop has the context variable ``loop``; its
    task group bounds the iterations.

    :raises ConfigurationError: it is in a loop.
    """
    names, loop = [], context.get("loop")
    if loop is not None:
        names.append(f"iteration {getattr(loop, 'index', loop)}")
    group = getattr(context["task"], "task_group", None)
    while group is not None:
        if isinstance(getattr(group, "max_iterations", None), int):
            names.append(f"task group {group.group_id!r}")
        group = getattr(group, "parent_group", None)
    if names:
        raise ConfigurationError(
            f"this task runs several times in Dag run {context['run_id']!r}, in a loop ({', '.join(names)}), "
            "and its iterations cannot be told apart: the later ones would write nothing. Move it out of the "
            "loop; ranges=Cursor(max_records=..., until_caught_up=True) reads in rounds until nothing is left"
        )


def clear_number(context: Context) -> int:
    """Return the number of this life of the task instance: 0 until it is cleared, then another one per clear.

    It is the number of tries before the latest clear. ``DagRun.clear_number`` is unsuitable: it counts the
    clears of *any* task of the run, so a retry after a neighbour's clear would look like a clear of this
    task, and ``on_committed="reprocess"`` would write a committed run again. Only a clear of this task
    instance sets ``max_tries`` to the tries so far plus ``retries`` (Airflow 3.1 to 3.3:
    ``clear_task_instances``, and the scheduler for a task that was cleared while it ran and that Airflow
    ended; one that ended by itself in that moment is retried, and so is a retry here).
    """
    if not context["dag_run"].clear_number:
        return 0
    instance, task = context["ti"], context["task"]
    return max(0, instance.max_tries - (task.retries or 0))


def task_of(context: Context, dag_id: str, task_id: str) -> dict[str, Any]:
    """Return the task instance's key and start for the run's record: users who may see the Dag may see it.

    ``max_tries`` tells a clear from a retry where :func:`clear_number` cannot: a clear computes it from the
    scheduler's ``retries``, which may differ from this process's if the file was just edited. If both are
    equal, ``dag_run_start`` decides: a clear restarts a Dag run that has ended.
    """
    index = context["ti"].map_index
    started = getattr(context["dag_run"], "start_date", None)
    return {
        "dag_id": dag_id,
        "task_id": task_id,
        "map_index": -1 if index is None else index,
        "run_id": context["run_id"],
        "max_tries": context["ti"].max_tries,
        "dag_run_start": started and str(started),
    }


def accepts(value: bool | str, field: str = "accept_deleted") -> bool:
    """Return ``accept_deleted``, which a template may have rendered.

    :param field: name of the parameter, for the message.
    :raises ConfigurationError: it is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{field} must be true or false, got {value!r}")
    return text == "true"


def accepting(ranges: RangeMode) -> RangeMode:
    """Return an interval with the acceptance of deleted records; raises ConfigurationError for others."""
    match ranges:
        case Interval():
            return replace(ranges, accept_deleted=True)
        case PartitionInterval():
            return replace(ranges, interval=replace(ranges.interval, accept_deleted=True))
        case Cursor() | Explicit():
            raise ConfigurationError(
                "accept_deleted is for intervals and partitions: a cursor is moved by `airflow eos "
                "reset-offsets`, given ranges begin where they say"
            )


def as_range_mode(ranges: Any) -> RangeMode:
    """Return ranges if they are a range mode; raise ConfigurationError otherwise."""
    if isinstance(ranges, RangeMode):
        return ranges
    raise ConfigurationError(
        f"ranges {ranges!r} is not supported: give Cursor(), Interval(...), PartitionInterval(...), "
        f"Explicit(...) or {DATA_INTERVAL!r}{did_you_mean(ranges, (DATA_INTERVAL,))}"
    )


def resolve_ranges(
    ranges: Ranges,
    context: Context,
    *,
    allowed_lateness: dt.timedelta,
    partition_duration: PartitionDuration | None,
) -> RangeMode:
    """Replace ``"data_interval"`` by the interval, or the partition, of the Dag run.

    :raises ConfigurationError: the Dag run has no such interval; names the run and what to change.
    """
    if ranges != DATA_INTERVAL:
        return as_range_mode(ranges)
    dag_run = context["dag_run"]
    key = partition_key(dag_run)
    if key:
        ends = _partition_ends(key, dag_run, context["dag"], partition_duration)
        return PartitionInterval(key, Interval(*ends, allowed_lateness))
    timetable = context["dag"].timetable
    if partition_duration is not None or has_partitions(timetable):
        raise ConfigurationError(
            f"Dag run {dag_run.run_id!r} has no partition key, and runs of this Dag read partitions: trigger "
            "one with a key. Where clearPartitions has taken the key away, a new Dag run with that key finds "
            "what is committed"
        )
    start, end = _data_interval(dag_run)
    if start is None or end is None:
        raise ConfigurationError(
            f"Dag run {dag_run.run_id!r} has no data interval, which ranges={DATA_INTERVAL!r} needs: trigger "
            f"it with the present as its logical date, from which {INTERVAL_TIMETABLE} gives it the last "
            "whole one, or by REST with data_interval_start, data_interval_end and that start as "
            "logical_date; or use ranges=Cursor()"
        )
    if start == end:
        advice = (
            "cron strings, presets such as '@hourly' and schedule=None give none in Airflow 3; schedule the "
            f"Dag with {INTERVAL_TIMETABLE}, or give data_interval_start and data_interval_end by REST"
        )
        if is_kind(timetable, "CronDataIntervalTimetable"):
            advice = (
                "the clock of the schedule's time zone skips a time of it, and Airflow gives a run that is "
                "triggered then no other; backfill, or give data_interval_start and data_interval_end by REST"
            )
        raise ConfigurationError(
            f"Dag run {dag_run.run_id!r} has the empty data interval [{start.isoformat()}, "
            f"{end.isoformat()}): {advice}"
        )
    if start > end:
        raise ConfigurationError(
            f"Dag run {dag_run.run_id!r} has the data interval [{start.isoformat()}, {end.isoformat()}), "
            "which ends before it starts: trigger it with data_interval_start before data_interval_end"
        )
    if _overlaps_the_schedule(dag_run, timetable):
        log.warning(
            "Dag run %r was triggered and reads [%s, %s), the last period before now: scheduled runs of "
            "%s have other intervals, and records in both are read twice. Triggered "
            "runs of CronDataIntervalTimetable have the interval of a scheduled run",
            dag_run.run_id,
            start.isoformat(),
            end.isoformat(),
            type(timetable).__name__,
        )
    else:
        _check_date(dag_run, start, end)
    return Interval(start, end, allowed_lateness)


def _check_date(dag_run: Any, start: dt.datetime, end: dt.datetime) -> None:
    """Warn if a Dag run's logical date is far from the interval that is read, or that of another run.

    Schedules and backfills give a run the start of its interval as its date. ``airflow dags trigger
    --logical-date`` gives it the last whole interval before *now* with any date; the UI, the last one before
    that date. A Dag has one run of a date: if the date is the interval's end, it is that of the next one.

    :raises ConfigurationError: it was triggered, and a backfill of its date has cleared it.
    """
    named = getattr(dag_run, "logical_date", None)
    if named is None or start <= named < end:
        return
    # An irregular schedule has no date between the interval and the trigger, as from Friday to Sunday.
    triggered = getattr(dag_run, "run_after", None) or end
    if end < named and (named < end + (end - start) or named <= triggered):
        return
    reads = (
        f"Dag run {dag_run.run_id!r} has the logical date {named.isoformat()} and reads its data interval "
        f"[{start.isoformat()}, {end.isoformat()}): a logical date does not choose the interval of a run "
        "that is triggered, and keeps Airflow from creating another run of that date"
    )
    if getattr(dag_run, "run_type", None) == "backfill":
        raise ConfigurationError(f"{reads}. Delete this Dag run, and create the backfill again")
    log.warning(
        "%s. If that is a date of the schedule that had no run, the schedule leaves out the interval that "
        "begins then, and with catchup=True stops there: delete this Dag run, and read the interval by the "
        "schedule, or airflow backfill create --from-date and --to-date with its start",
        reads,
    )


def _overlaps_the_schedule(dag_run: Any, timetable: Any) -> bool:
    """Return whether a run was triggered, and its interval overlaps those of the schedule."""
    is_counted = is_kind(timetable, "DeltaDataIntervalTimetable", *TRIGGER_TIMETABLES)
    return is_counted and dag_run.run_type == "manual"


def refuse_another_grid(context: Context, interval: Interval) -> None:
    """Refuse a backfill's interval that begins within an interval of the schedule.

    Airflow counts the intervals of a delta from the first date of the backfill.

    :raises ConfigurationError: scheduled runs read the same records; names the date to begin at.
    """
    dag, dag_run = context["dag"], context["dag_run"]
    counted = is_kind(dag.timetable, "DeltaDataIntervalTimetable", "DeltaTriggerTimetable")
    if not counted or dag_run.run_type != "backfill":
        return
    delta, first = timetable_field(dag.timetable, "delta"), in_utc(dag.start_date or _EPOCH)
    length, begin = _EPOCH + delta - _EPOCH, first
    if not (getattr(delta, "months", 0) or getattr(delta, "years", 0)):
        begin += (interval.start - first) // length * length
    # As Airflow, month by month: one after the 31st of January begins on the 28th of February and of March.
    while begin > interval.start:
        begin -= delta
    while begin + delta <= interval.start:
        begin += delta
    if begin != interval.start:
        raise ConfigurationError(
            f"Dag run {dag_run.run_id!r} of a backfill begins at {interval.start.isoformat()}, within an "
            "interval of the schedule: records would be read twice. Begin the backfill where one begins, as "
            f"with --from-date {begin.isoformat()}"
        )


def warn_of_read_before(context: Context, interval: Interval) -> None:
    """Warn if the previous Dag run, by logical date, has read a part of a Dag run's interval.

    After a change of the schedule or its time zone, an interval may begin before the end of the previous one.
    """
    try:
        start, end = (context.get(f"prev_data_interval_{name}_success") for name in ("start", "end"))
        # Airflow requests these on first access, and returns None for a first run.
        before = (in_utc(start), in_utc(end)) if start and end else None
    except Exception as error:  # noqa: BLE001 - of Airflow's API server: the run goes on without it
        log.info("It is not known what the Dag run before has read: %s", error)
        return
    if before is None or before == (interval.start, interval.end):
        return
    if before[0] < interval.end and interval.start < before[1]:
        log.warning(
            "Dag run %r reads [%s, %s), and the successful Dag run before it had [%s, %s): records in both "
            "are read twice. Was the schedule or its time zone changed? "
            "docs/range-modes.md#which-interval-a-dag-run-has says how to do that",
            context["run_id"],
            interval.start.isoformat(),
            interval.end.isoformat(),
            *(moment.isoformat() for moment in before),
        )


def _data_interval(dag_run: Any) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return the data interval in UTC: datetimes of one time zone would be compared by wall-clock time."""
    start, end = (
        None if moment is None else in_utc(moment)
        for moment in (dag_run.data_interval_start, dag_run.data_interval_end)
    )
    return start, end


def _partition_ends(
    key: str, dag_run: Any, dag: DAG, duration: PartitionDuration | None
) -> tuple[dt.datetime, dt.datetime]:
    start, end = _data_interval(dag_run)
    if start is not None and end is not None and start < end:
        refuse_composite(key)
        refuse_other_date(key, start, dag)
        return start, end
    date = partition_date(dag_run)
    if date is None:
        raise ConfigurationError(
            f"the partition {key!r} of Dag run {dag_run.run_id!r} has no date: its schedule, or an Airflow "
            f"before 3.3, gives none: {GIVE_RANGES}"
        )
    return partition_span(key, date, dag, duration)
