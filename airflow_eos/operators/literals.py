"""Checks literals when the Dag is parsed; templates and results of other tasks are checked in the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import CronTriggerTimetable, DeltaTriggerTimetable

from airflow_eos import settings
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.names import checked_name
from airflow_eos.model.ranges import INTERVAL_TIMETABLE, Cursor
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operators.offset_ranges import parse_ranges
from airflow_eos.operators.partition_interval import says_its_end
from airflow_eos.operators.rendered import parse_partition, parse_topics
from airflow_eos.operators.task_identity import DATA_INTERVAL, accepting, accepts, as_range_mode

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_eos.operators.partition_interval import PartitionDuration
    from airflow_eos.operators.run_parameters import RunParameters


class ReadsIntervals(Protocol):
    """A task that may want the data interval of its Dag run."""

    task_id: str
    ranges: Any
    partition_duration: PartitionDuration | None


def check_literals(operator: RunParameters) -> None:
    """Check the parameters that a run will be made of, by the rules of the run.

    :raises ConfigurationError: a literal is refused; Airflow shows it as an import error of the Dag.
    """
    topics_known = is_literal(operator.topics)
    topics = parse_topics("topics", operator.topics) if topics_known else ("templated",)
    mode = operator.ranges if operator.ranges == DATA_INTERVAL else as_range_mode(operator.ranges)
    if is_literal(operator.accept_deleted) and accepts(operator.accept_deleted) and mode != DATA_INTERVAL:
        accepting(mode)
    skipped = operator.skip_offsets
    given: dict[str, Any] = {
        name: value
        for name in ("group_id", "pipeline", "prefix", "sink_topic", "dead_letter_topic")
        if is_literal(value := getattr(operator, name)) and value is not None
    }
    # An empty one is the default, also when the task runs.
    given = {name: one for name, one in given.items() if one or name not in ("pipeline", "prefix")}
    if topics_known and skipped and is_literal(skipped):
        given["skip_offsets"] = parse_ranges("skip_offsets", skipped)
    partition = operator.source_partition
    try:
        RunSpec(
            **{
                "kafka": {"bootstrap.servers": "of the connection"},
                "pipeline": "of.the.task",
                "group_id": "templated",
                **given,
            },
            run_id="of the Dag run",
            source_topics=topics,
            ranges=Cursor() if mode == DATA_INTERVAL else mode,
            source_partition=parse_partition("source_partition", partition)
            if is_literal(partition)
            else None,
            on_committed=operator.on_committed,
            mark_output=operator.mark_output,
            transaction_timeout=operator.transaction_timeout,
            delivery_timeout=operator.delivery_timeout,
            max_send_attempts=operator.max_send_attempts,
            max_dead_letters=operator.max_dead_letters,
            allow_loop=operator.allow_loop,
            compression=operator.compression,
            ledger=operator.ledger or LedgerSettings(topic=settings.default_ledger_topic()),
        )
    except (TypeError, ValueError) as error:  # a number that is none, a name that is no text
        raise ConfigurationError(str(error)) from error


def check_topics(topics: Any, *, needed: bool = True) -> None:
    """Check topics that are no template, one or several.

    :param needed: False where none may be given.
    :raises ConfigurationError: they are no names of topics.
    """
    if is_literal(topics) and (needed or topics):
        parse_topics("topics", topics)


def check_name(field: str, value: Any) -> None:
    """Check the name of a group or a pipeline that is no template.

    :raises ConfigurationError: it is none.
    """
    if is_literal(value):
        checked_name(field, value)


def check_least(field: str, value: Any, least: Any) -> None:
    """Check a number or a duration.

    :raises ConfigurationError: it is of another kind than the least that it may be, or smaller.
    """
    if isinstance(value, bool) or not isinstance(value, type(least)) or value < least:
        raise ConfigurationError(
            f"{field} must be {type(least).__name__} and at least {least}, got {value!r}"
        )


def check_choice(field: str, value: Any, choices: Sequence[str]) -> None:
    """Check one of several words.

    :raises ConfigurationError: it is none of them.
    """
    if value not in choices:
        raise ConfigurationError(f"{field} must be {' or '.join(map(repr, choices))}, got {value!r}")


def check_schedule(operator: ReadsIntervals, dag: DAG) -> None:
    """Check that the runs of a Dag have the intervals that its task wants to read.

    :raises ConfigurationError: the Dag's schedule gives all its runs an empty one.
    """
    timetable = dag.timetable
    if (
        operator.ranges == DATA_INTERVAL
        and operator.partition_duration is None
        and not says_its_end(timetable)
        and isinstance(timetable, CronTriggerTimetable | DeltaTriggerTimetable)
        and not timetable.interval
    ):
        raise ConfigurationError(
            f"task {operator.task_id!r} reads ranges={DATA_INTERVAL!r}, and the schedule of Dag "
            f"{dag.dag_id!r} gives empty intervals: cron strings, presets and timedeltas do "
            "in Airflow 3. Schedule the Dag with "
            f'{INTERVAL_TIMETABLE}("@daily", timezone="UTC")'
        )


def is_literal(value: Any) -> bool:
    """Tell whether a value is what the run gets: no template, and nothing that comes from another task."""
    if isinstance(value, str):
        return not ("{{" in value or "{%" in value)
    if isinstance(value, Mapping):
        return all(is_literal(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_literal(one) for one in value)
    return value is None or not hasattr(value, "resolve")
