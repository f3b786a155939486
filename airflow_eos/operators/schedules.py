"""Checks that the schedule of a Dag gives its runs the intervals that a task reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.compat import (
    INTERVAL_TIMETABLES,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    timetable_field,
)
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.partition_interval import PartitionDuration, says_its_end
from airflow_eos.operators.task_identity import DATA_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk import DAG


def check_schedule(
    ranges: Any, dag: DAG, duration: PartitionDuration | None, task_id: str, run_key: str | None = None
) -> None:
    """Check that the runs of a Dag have the intervals that its task reads.

    :param run_key: names the run instead of an interval.
    :raises ConfigurationError: the Dag's schedule gives all its runs an empty one.
    """
    timetable = dag.timetable
    if (
        ranges == DATA_INTERVAL
        and not run_key
        and duration is None
        and not says_its_end(timetable)
        and isinstance(timetable, CronTriggerTimetable | DeltaTriggerTimetable)
        and not timetable_field(timetable, "interval")
    ):
        if isinstance(timetable, DeltaTriggerTimetable):
            with_intervals = f"DeltaDataIntervalTimetable({timetable_field(timetable, 'delta')!r})"
        else:
            expression, zone = (timetable_field(timetable, name) for name in ("expression", "timezone"))
            with_intervals = f"CronDataIntervalTimetable({expression!r}, timezone={str(zone)!r})"
        raise ConfigurationError(
            f"task {task_id!r} reads ranges={DATA_INTERVAL!r}, and the schedule of Dag "
            f"{dag.dag_id!r} gives empty intervals: cron strings, presets and timedeltas do "
            f"in Airflow 3. Schedule the Dag with {INTERVAL_TIMETABLES}.{with_intervals}"
        )
