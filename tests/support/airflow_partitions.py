"""The interval that a task reads in a Dag run of Airflow, without a scheduler."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pendulum
from airflow.sdk import DAG

from airflow_eos.model.ranges import PartitionInterval, RangeMode
from airflow_eos.operators.task_identity import resolve_ranges


def ranges_of(
    schedule: Any, duration: Any = None, *, timezone: str = "UTC", key: str | None = None, **dag_run: Any
) -> RangeMode:
    """Return the ranges that a task resolves from ``"data_interval"`` in a Dag run.

    :param timezone: time zone of the Dag.
    :param key: the partition key; None: the run has a data interval.
    :param dag_run: its other fields, such as ``partition_date``, aware, or ``data_interval_start``.
    """
    dag = DAG("d", schedule=schedule, start_date=pendulum.datetime(2000, 1, 1, tz=timezone))
    fields = {
        "run_id": "r",
        "run_type": "scheduled",
        "partition_date": None,
        "data_interval_start": None,
        "data_interval_end": None,
        **dag_run,
    }
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(partition_key=key, **fields)}
    return resolve_ranges(
        "data_interval", context, allowed_lateness=dt.timedelta(), partition_duration=duration
    )


def partition_of(schedule: Any, key: str, date: dt.datetime | None, *more: Any, **dag_run: Any) -> Any:
    """Return the partition of a Dag run that has a partition key; see :func:`ranges_of`."""
    partition = ranges_of(schedule, *more, key=key, partition_date=date, **dag_run)
    assert isinstance(partition, PartitionInterval)
    return partition
