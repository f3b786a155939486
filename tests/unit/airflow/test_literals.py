"""A schedule without intervals is an import error; rendered templates are checked before Spark starts."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import re
from typing import Any

import airflow.sdk
import attrs
import pytest
from airflow.sdk import DAG, Asset
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import (
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from dateutil.relativedelta import relativedelta

from airflow_eos.compat import INTERVAL_TIMETABLES, AirflowFailException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Interval
from airflow_eos.operators.literals import check_rendered
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.sensors.kafka_data_interval import KafkaDataIntervalSensor
from airflow_eos.sensors.kafka_lag import KafkaLagSensor
from airflow_eos.sensors.run_committed import RunCommittedSensor
from tests.unit.airflow.fakes import FakeRun, make_context, upstream

DAY = dt.timedelta(days=1)
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_SDK = "airflow.sdk"
AssetOrTimeSchedule = importlib.import_module(
    _SDK if INTERVAL_TIMETABLES == _SDK else "airflow.timetables.assets"
).AssetOrTimeSchedule


def copy(df: Any) -> Any:
    return df


def make(dag: DAG, **changes: Any) -> ReadProcessWriteOperator:
    fields = {"process": copy, "topics": ["src"], "sink_topic": "out", "group_id": "g", **changes}
    return ReadProcessWriteOperator(task_id="copy", dag=dag, **fields)


def test_a_loop_is_accepted_where_it_is_asked_for(dag: DAG) -> None:
    """The run may then write to its own source."""
    assert make(dag, sink_topic="src", allow_loop=True).allow_loop


def both(schedule: Any) -> list[Any]:
    """Return a timetable of the scheduler, and that of ``airflow.sdk``, if any: a Dag may have either."""
    kind: Any = getattr(airflow.sdk, type(schedule).__name__, None)
    if kind is None:
        return [schedule]
    twin = kind.__new__(kind)
    for field in attrs.fields(kind):
        object.__setattr__(twin, field.name, getattr(schedule, f"_{field.name}"))
    return [schedule, twin]


@pytest.mark.parametrize(
    ("schedule", "advice"),
    [
        ("@daily", r"CronDataIntervalTimetable\('(@daily|0 0 \* \* \*)', timezone='UTC'\)"),
        ("@hourly", r"CronDataIntervalTimetable\('(@hourly|0 \* \* \* \*)', timezone='UTC'\)"),
        ("5 * * * *", r"CronDataIntervalTimetable\('5 \* \* \* \*'"),
        (DAY, rf"{INTERVAL_TIMETABLES}.DeltaDataIntervalTimetable\(datetime.timedelta\(days=1\)\)"),
        (CronTriggerTimetable("@daily", timezone="Europe/Berlin"), "timezone='Europe/Berlin'"),
        (
            MultipleCronTriggerTimetable("0 6 * * *", "0 9 * * *", timezone="UTC"),
            r"CronDataIntervalTimetable\(with one expression for all times",
        ),
    ],
)
def test_schedule_without_intervals_is_refused(schedule: Any, advice: str) -> None:
    """Every scheduled run would fail; the error names the same schedule with intervals."""
    for form in both(schedule):
        with pytest.raises(ConfigurationError, match=advice):
            make(DAG("d", schedule=form), ranges="data_interval")
    with DAG("e", schedule=schedule), pytest.raises(ConfigurationError, match="gives empty intervals"):
        ReadProcessWriteOperator(
            task_id="t", process=copy, topics="src", group_id="g", ranges="data_interval"
        )
    make(DAG("f", schedule=schedule))  # a cursor does not need intervals


@pytest.mark.parametrize(
    "schedule",
    [
        [Asset("a")],
        AssetOrTimeSchedule(
            timetable=CronTriggerTimetable("@daily", timezone="Europe/Berlin", interval=DAY),
            assets=[Asset("a")],
        ),
        AssetOrTimeSchedule(
            timetable=CronDataIntervalTimetable("@daily", timezone="UTC"), assets=[Asset("a")]
        ),
    ],
    ids=["assets", "or days that overlap", "or days"],
)
def test_runs_that_assets_trigger_have_no_interval(schedule: Any) -> None:
    """Each of them would fail; and the times of their asset events may overlap."""
    with pytest.raises(ConfigurationError, match="that assets trigger have no data interval"):
        make(DAG("d", schedule=schedule), ranges="data_interval")
    make(DAG("e", schedule=schedule))


@pytest.mark.parametrize(
    "schedule",
    [
        None,  # whoever triggers it gives an interval
        CronDataIntervalTimetable("@daily", timezone="UTC"),
        CronTriggerTimetable("@daily", timezone="UTC", interval=DAY),
        CronTriggerTimetable("0 6 * * 1", timezone="Asia/Kolkata", interval=7 * DAY),
        CronTriggerTimetable("15 * * * *", timezone="Europe/Berlin", interval=DAY / 24),
        CronTriggerTimetable("*/30 * * * *", timezone="Australia/Lord_Howe", interval=DAY / 48),
        CronTriggerTimetable("@daily", timezone="UTC", interval=relativedelta(days=1)),
        CronTriggerTimetable("@daily", timezone="Asia/Tokyo", interval=DAY),
    ],
)
def test_schedule_that_may_give_intervals_is_not(schedule: Any) -> None:
    """Also no schedule at all, and partitions with a duration."""
    for form in both(schedule):
        make(DAG("d", schedule=form), ranges="data_interval")
    make(DAG("e", schedule="@daily"), ranges="data_interval", partition_duration=DAY)


@pytest.mark.parametrize(
    "schedule",
    [
        DeltaTriggerTimetable(DAY, interval=DAY),
        DeltaTriggerTimetable(relativedelta(days=1), interval=DAY),
    ],
)
def test_a_schedule_that_leaves_out_what_it_is_late_for_needs_catchup(schedule: Any) -> None:
    """Without catchup the scheduler counts from now: see test_tiling_schedules.py."""
    make(DAG("d", schedule=schedule, catchup=True, start_date=NEW_YEAR), ranges="data_interval")
    for form in both(schedule):
        with pytest.raises(ConfigurationError, match="leave gaps where a run is late"):
            make(DAG("e", schedule=form), ranges="data_interval")


@pytest.mark.parametrize(
    ("schedule", "advice"),
    [
        (
            CronTriggerTimetable("@daily", timezone="Europe/Berlin", interval=DAY),
            r"CronDataIntervalTimetable\('(@daily|0 0 \* \* \*)', timezone='Europe/Berlin'\)",
        ),
        (CronTriggerTimetable("@daily", timezone="UTC", interval=7 * DAY), "CronDataIntervalTimetable"),
        (CronTriggerTimetable("0 0 * * 1-5", timezone="UTC", interval=DAY), "CronDataIntervalTimetable"),
        (CronTriggerTimetable("0 0 1 * *", timezone="UTC", interval=relativedelta(months=1)), "Cron"),
        (CronTriggerTimetable("0 0 * * 1#1", timezone="UTC", interval=7 * DAY), "CronDataInterval"),
        (CronTriggerTimetable("0 * * * *", timezone="Australia/Lord_Howe", interval=DAY / 24), "Cron"),
        # The zone has no clock changes any more, but had them on days that a backfill reads.
        (CronTriggerTimetable("@daily", timezone="America/Sao_Paulo", interval=DAY), "CronDataInterval"),
        (
            MultipleCronTriggerTimetable("0 * * * *", "30 * * * *", timezone="UTC", interval=DAY / 48),
            "CronDataIntervalTimetable",
        ),
        (DeltaTriggerTimetable(DAY, interval=2 * DAY), r"DeltaDataIntervalTimetable\(datetime.*days=1\)\)"),
        (
            DeltaTriggerTimetable(relativedelta(months=1), interval=relativedelta(months=1)),
            r"DeltaDataIntervalTimetable\(relativedelta\(months=\+1\)\)",
        ),
        (
            MultipleCronTriggerTimetable("0 6 * * *", "0 9 * * *", timezone="UTC", interval=DAY),
            r"CronDataIntervalTimetable\(with one expression for all times",
        ),
    ],
)
def test_schedule_whose_intervals_do_not_meet_is_refused(schedule: Any, advice: str) -> None:
    """Records would be read twice or never, at least once a year; the error names a schedule that tiles."""
    for form in both(schedule):
        with pytest.raises(ConfigurationError, match=rf"overlap or leave gaps, .*{advice}"):
            make(DAG("d", schedule=form, catchup=True, start_date=NEW_YEAR), ranges="data_interval")
    with pytest.raises(ConfigurationError, match="overlap or leave gaps"):
        KafkaDataIntervalSensor(task_id="over", dag=DAG("e", schedule=schedule), topics="src")
    make(DAG("f", schedule=schedule))  # a cursor does not need intervals
    make(DAG("g", schedule=schedule), ranges="data_interval", partition_duration=DAY)


@pytest.mark.parametrize(
    ("expression", "zone", "is_refused"),
    [
        ("*/15 1-3 * * *", "Europe/Berlin", True),
        ("*/5 0-22 * * *", "America/New_York", True),  # the scheduler raises an error
        ("*/15 1-3 * * *", "UTC", False),
        ("*/15 8-20 * * *", "Europe/Berlin", False),
        ("*/15 1-3 * * 1-5", "Europe/Berlin", False),  # clocks change on Sundays
        ("30 1-3 * * *", "Europe/Berlin", False),
        ("*/15 * * * *", "Europe/Berlin", False),
    ],
)
def test_ticks_that_airflow_leaves_out_behind_a_change_of_the_clock_are_refused(
    expression: str, zone: str, is_refused: bool
) -> None:
    """In March, Airflow 3.3 begins the interval after 03:00 at 03:45: 45 minutes belong to no interval."""
    dag = DAG("d", schedule=CronDataIntervalTimetable(expression, timezone=zone))
    expected = pytest.raises(ConfigurationError, match=r"do not meet at .* Airflow leaves records out")
    with expected if is_refused else contextlib.nullcontext():
        make(dag, ranges="data_interval")


WHOLE: dict[Any, dict[str, Any]] = {
    KafkaLagSensor: {"topics": ["src"], "group_id": "g"},
    KafkaDataIntervalSensor: {"topics": ["src"]},
    RunCommittedSensor: {"pipeline": "p"},
}


def test_what_a_sensor_renders_is_left_to_the_sensor(dag: DAG) -> None:
    """A template is not a literal, and a given key alone names its run."""
    KafkaLagSensor(task_id="a", dag=dag, topics=["{{ t }}", "{{ t }}"], group_id="{{ params.group }} of")
    KafkaDataIntervalSensor(task_id="b", dag=dag, topics="{{ t }}", accept_deleted="{{ conf }}")
    RunCommittedSensor(task_id="c", dag=dag, pipeline="{{ p }} of", ranges="data_interval", topics="{{ t }}")
    RunCommittedSensor(task_id="d", dag=dag, pipeline="p", ranges="data_interval", run_key="p/r")


def test_a_sensors_schedule_without_intervals_is_refused() -> None:
    """It would fail in every scheduled run; one with its own interval needs none."""
    daily = DAG("daily", schedule="@daily")
    with pytest.raises(ConfigurationError, match="gives empty intervals"):
        KafkaDataIntervalSensor(task_id="a", dag=daily, topics="src")
    with pytest.raises(ConfigurationError, match="gives empty intervals"):
        RunCommittedSensor(task_id="b", dag=daily, pipeline="p", topics="src", ranges="data_interval")
    start = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
    KafkaDataIntervalSensor(task_id="c", dag=daily, topics="src", interval=Interval(start, start + DAY))


def rendered(operator: Any, **fields: Any) -> Any:
    """Return the operator as in the task, with these rendered fields."""
    for name, value in fields.items():
        setattr(operator, name, value)
    return operator


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("group_id", "", "group_id is empty: its template '{{ params.any }}' rendered to ''"),
        ("group_id", None, "group_id must be text, got None"),
        (
            "group_id",
            "None",
            "group_id is empty: its template '{{ params.any }}' rendered to 'None'",
        ),
        ("prefix", "None", "prefix is empty"),
        ("group_id", "g\n", r"group_id 'g\n' is not a name"),
        ("pipeline", "orders-None", "pipeline 'orders-None' is not a name"),
        ("topics", ["src", "None"], "topics 'None' is not a name"),
        ("topics", " ", "topics is empty: its template '{{ params.any }}' rendered to ' '"),
        ("topics", "a,b", "topics 'a,b' is not the name of a topic"),
        ("sink_topic", "", "sink_topic is empty"),
        ("dead_letter_topic", "", "dead_letter_topic is empty"),
        ("kafka_config_id", "", "kafka_config_id is empty"),
        ("source_partition", "", "source_partition is empty"),
        ("accept_deleted", "", "accept_deleted is empty"),
        ("skip_offsets", "", "skip_offsets is empty"),
        ("sink_topic", "src", "sink_topic 'src' is also a source topic"),
        ("pipeline", 5, "pipeline must be text, got 5"),
    ],
)
def test_what_a_template_rendered_is_checked_before_spark_starts(
    dag: DAG, runs: list[FakeRun], spark_starts: list[Any], name: str, value: Any, says: str
) -> None:
    """No run starts; the error for an empty value has its template."""
    operator = rendered(make(dag, **{name: "{{ params.any }}"}), **{name: value})
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        operator.execute(make_context(operator))
    assert (runs, spark_starts) == ([], [])


@pytest.mark.parametrize("name", ["pipeline", "prefix", "source_partition"])
@pytest.mark.parametrize("kind", ["native template", "result of a task"])
def test_none_is_not_the_default_of_what_names_the_run(
    runs: list[FakeRun], spark_starts: list[Any], name: str, kind: str
) -> None:
    """It would name another run, without a commit: one of a default pipeline, or of all partitions."""
    dag = DAG("pipelines", schedule=None, render_template_as_native_obj=True)
    given: Any = upstream(None) if kind == "result of a task" else "{{ params.any }}"
    operator = make(dag, **{name: given})
    context = make_context(operator)
    operator.render_template_fields({**context, "params": {"any": None}})
    with pytest.raises(ConfigurationError, match=f"{name} is empty: its template .* rendered to None"):
        operator.execute(context)
    assert (runs, spark_starts) == ([], [])


@pytest.mark.parametrize(
    ("template", "value"), [("{{ params.any }}", "NoneSuch"), ("None-{{ params.any }}", "None-a")]
)
def test_a_name_that_only_looks_like_none_is_a_name(dag: DAG, template: str, value: str) -> None:
    """It is part of a word, or the author's choice."""
    operator = rendered(make(dag, group_id=template), group_id=value)
    check_rendered(operator, {"group_id": template})


@pytest.mark.parametrize(
    ("op_kwargs", "says"),
    [({"faktor": 1}, "did you mean 'factor'"), ({}, "needs 'factor'"), ("x", "op_kwargs must be a mapping")],
)
def test_arguments_that_are_only_known_in_the_task_are_checked_before_spark_starts(
    dag: DAG, runs: list[FakeRun], spark_starts: list[Any], op_kwargs: Any, says: str
) -> None:
    """Also those of a function that is unknown until its module is imported."""

    def process(df: Any, run: Any, factor: int) -> Any:
        return df, run, factor

    operator = rendered(make(dag, process=process, op_kwargs="{{ params.any }}"), op_kwargs=op_kwargs)
    with pytest.raises(ConfigurationError, match=says):
        operator.execute(make_context(operator))
    assert (runs, spark_starts) == ([], [])


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (KafkaLagSensor, "group_id", ""),
        (KafkaDataIntervalSensor, "topics", ""),
        (RunCommittedSensor, "pipeline", ""),
        (RunCommittedSensor, "run_key", None),
        (RunCommittedSensor, "ledger_topic", None),
    ],
)
def test_what_a_sensors_template_rendered_fails_it_at_once(
    dag: DAG, kind: Any, name: str, value: str | None
) -> None:
    """The error has the parameter and its template."""
    whole = {**WHOLE[kind], name: "{{ params.any }}"}
    sensor = rendered(kind(task_id="wait", dag=dag, **whole), **{name: value})
    with pytest.raises(AirflowFailException, match=name):
        sensor.poke(make_context(sensor))
