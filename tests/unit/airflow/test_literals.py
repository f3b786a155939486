"""A wrong literal is an import error of the Dag, not a failure of the night's run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable, XComArg, task
from airflow.sdk.definitions.timetables.trigger import DeltaTriggerTimetable

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Cursor, Interval, OffsetRange
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.replay import ReplayOffsetRangesOperator
from airflow_eos.sensors.kafka_data_interval import KafkaDataIntervalSensor
from airflow_eos.sensors.kafka_lag import KafkaLagSensor
from airflow_eos.sensors.run_committed import RunCommittedSensor

DAY = dt.timedelta(days=1)


def make(dag: DAG, **changes: Any) -> ReadProcessWriteOperator:
    fields = {"process": "app.py:process", "topics": ["src"], "sink_topic": "out", "group_id": "g", **changes}
    return ReadProcessWriteOperator(task_id="copy", dag=dag, **fields)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranges": "data-interval"}, "'data-interval' is not supported"),
        ({"ranges": [["src", 0, 1, 2]]}, r"is not supported: give Cursor\(\)"),
        ({"on_committed": "reproces"}, "'skip', 'fail', 'reprocess' or 'accept'"),
        ({"compression": "brotli"}, "not a Kafka codec"),
        ({"max_send_attempts": 0}, "at least 1"),
        ({"group_id": ""}, "group_id ''"),
        ({"group_id": "a" * 8_001}, "transactional id"),
        ({"group_id": "nul\0"}, "no NUL character"),
        ({"pipeline": "half \ud83d"}, "no UTF-8 form"),
        ({"pipeline": 20251124}, "pipeline must be text, got 20251124: .* a name made of digits"),
        ({"sink_topic": "a/b"}, "sink_topic 'a/b' is not the name of a topic"),
        ({"dead_letter_topic": "x" * 250}, "dead_letter_topic .* is not the name of a topic"),
        ({"topics": ["src", ".."]}, r"'\.\.' is not the name of a topic"),
        ({"prefix": "a.b"}, "without a dot"),
        ({"topics": []}, "distinct topic names"),
        ({"topics": ["src", "src"]}, "distinct topic names"),
        ({"sink_topic": "airflow-eos-ledger"}, "the ledger's topic"),
        ({"sink_topic": "src"}, "sink_topic 'src' is also a source topic.*allow_loop=True"),
        ({"topics": "src", "sink_topic": "src"}, "also a source topic"),
        ({"sink_topic": "src", "ranges": "data_interval"}, "also a source topic"),
        ({"source_partition": -1}, "negative"),
        ({"source_partition": "first"}, "'first'"),
        ({"source_partition": 0, "topics": ["a", "b"]}, "exactly one source topic"),
        ({"skip_offsets": [["other", 0, 1, 2]]}, "no source topic"),
        ({"skip_offsets": [["src", 0, 2, 1]]}, "start <= end"),
        ({"accept_deleted": "perhaps"}, "true or false"),
        ({"accept_deleted": True, "ranges": Cursor()}, "for intervals and partitions"),
    ],
)
def test_wrong_literals_are_refused_when_the_dag_is_parsed(
    dag: DAG, changes: dict[str, Any], says: str
) -> None:
    """By the rules of the run, which would refuse them in the task."""
    with pytest.raises(ConfigurationError, match=says):
        make(dag, **changes)


def test_a_loop_is_accepted_where_it_is_asked_for(dag: DAG) -> None:
    """The run may then write to what it reads."""
    assert make(dag, sink_topic="src", allow_loop=True).allow_loop


def test_what_the_task_renders_is_left_to_the_task(dag: DAG) -> None:
    """Templates, alone or in a list, and results of other tasks."""
    with dag:

        @task
        def choose() -> Any:
            return "g"

        chosen = choose()
    for name, value in {
        "topics": ["{{ params.topic }}", "{{ params.topic }}"],
        "group_id": "{{ params.group }} of",
        "sink_topic": "{% if a %}b{% endif %}",
        "source_partition": "{{ params.partition }}",
        "skip_offsets": "{{ dag_run.conf.get('skip_offsets', []) }}",
        "accept_deleted": "{{ dag_run.conf.get('accept_deleted', False) }}",
    }.items():
        make(DAG("other", schedule=None), **{name: value})
    assert isinstance(chosen, XComArg)
    for name in ("topics", "group_id", "sink_topic", "source_partition", "skip_offsets", "accept_deleted"):
        ReadProcessWriteOperator(
            task_id=f"by-{name}",
            dag=dag,
            **{"process": "app.py:process", "topics": ["src"], "group_id": "g", name: chosen},
        )


@pytest.mark.parametrize(
    "schedule", ["@daily", "5 * * * *", DAY, CronTriggerTimetable("@daily", timezone="UTC")]
)
def test_schedule_without_intervals_is_refused(schedule: Any) -> None:
    """Every scheduled run would fail; inside a `with DAG` block as well."""
    with pytest.raises(ConfigurationError, match="CronDataIntervalTimetable"):
        make(DAG("d", schedule=schedule), ranges="data_interval")
    with DAG("e", schedule=schedule), pytest.raises(ConfigurationError, match="gives empty intervals"):
        ReadProcessWriteOperator(
            task_id="t", process="a.py:f", topics="src", group_id="g", ranges="data_interval"
        )
    make(DAG("f", schedule=schedule))  # a cursor needs none


@pytest.mark.parametrize(
    "schedule",
    [
        None,  # whoever triggers it gives an interval
        CronDataIntervalTimetable("@daily", timezone="UTC"),
        CronTriggerTimetable("@daily", timezone="UTC", interval=DAY),
        DeltaTriggerTimetable(DAY, interval=DAY),
    ],
)
def test_schedule_that_may_give_intervals_is_not(schedule: Any) -> None:
    """Also none at all, and partitions with a duration."""
    make(DAG("d", schedule=schedule), ranges="data_interval")
    make(DAG("e", schedule="@daily"), ranges="data_interval", partition_duration=DAY)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reason": " "}, "needs a reason"),
        ({"offset_ranges": [["src", 0, 1]]}, r"\[topic, partition, start, end\]"),
        ({"offset_ranges": [["src", 0, 1, 2], ["src", 0, 2, 3]]}, "at most one per partition"),
    ],
)
def test_a_replays_literals_too(dag: DAG, changes: dict[str, Any], says: str) -> None:
    """Its reason and its ranges."""
    fields: dict[str, Any] = {"offset_ranges": [OffsetRange("src", 0, 1, 2)], "reason": "wrong", **changes}
    with pytest.raises(ConfigurationError, match=says):
        ReplayOffsetRangesOperator(
            task_id="r", dag=dag, process="a.py:f", topics=["src"], group_id="g", **fields
        )


WHOLE = {
    KafkaLagSensor: {"topics": ["src"], "group_id": "g"},
    KafkaDataIntervalSensor: {"topics": ["src"]},
    RunCommittedSensor: {"pipeline": "p"},
}


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        (KafkaLagSensor, {"topics": []}, "distinct topic names"),
        (KafkaLagSensor, {"topics": ["a", "a"]}, "distinct topic names"),
        (KafkaLagSensor, {"group_id": ""}, "group_id ''"),
        (KafkaLagSensor, {"min_records": 0}, "min_records must be int and at least 1"),
        (KafkaLagSensor, {"min_records": "many"}, "got 'many'"),
        (KafkaLagSensor, {"max_delay": 30}, "max_delay must be timedelta"),
        (KafkaLagSensor, {"max_delay": -DAY}, "max_delay must be timedelta and at least"),
        (KafkaLagSensor, {"start": "newest"}, "'earliest' or 'latest'"),
        (KafkaDataIntervalSensor, {"topics": ""}, "'' is not the name of a topic"),
        (KafkaDataIntervalSensor, {"allowed_lateness": -DAY}, "allowed_lateness"),
        (KafkaDataIntervalSensor, {"idle_partitions": "ignore"}, "'allowed_lateness' or 'wait'"),
        (KafkaDataIntervalSensor, {"partition_duration": dt.timedelta()}, "partition_duration"),
        (KafkaDataIntervalSensor, {"accept_deleted": "perhaps"}, "true or false"),
        (KafkaDataIntervalSensor, {"interval": "2026-01-01"}, r"Interval\(start, end\)"),
        (RunCommittedSensor, {"pipeline": ""}, "pipeline ''"),
        (RunCommittedSensor, {"topics": ["a", "a"]}, "distinct topic names"),
        (RunCommittedSensor, {"ranges": "data-interval", "topics": "a"}, "is not supported"),
        (RunCommittedSensor, {"ranges": "data_interval"}, "topics are part of the name"),
        (RunCommittedSensor, {"source_partition": 0}, "topics are part of the name"),
        (RunCommittedSensor, {"source_partition": -1, "topics": "a"}, "at least 0"),
        (RunCommittedSensor, {"source_partition": 0, "topics": ["a", "b"]}, "exactly one source topic"),
        (RunCommittedSensor, {"prefix": "a.b"}, "without a dot"),
    ],
)
def test_a_sensors_literals_too(dag: DAG, kind: Any, changes: dict[str, Any], says: str) -> None:
    """Whatever would be asked for ever, or fail in the task."""
    kind(task_id="whole", dag=dag, **WHOLE[kind])
    with pytest.raises(ConfigurationError, match=says):
        kind(task_id="wrong", dag=dag, **{**WHOLE[kind], **changes})


def test_what_a_sensor_renders_is_left_to_the_sensor(dag: DAG) -> None:
    """A template is no literal, and a key that is given names its run alone."""
    KafkaLagSensor(task_id="a", dag=dag, topics=["{{ t }}", "{{ t }}"], group_id="{{ params.group }} of")
    KafkaDataIntervalSensor(task_id="b", dag=dag, topics="{{ t }}", accept_deleted="{{ conf }}")
    RunCommittedSensor(task_id="c", dag=dag, pipeline="{{ p }} of", ranges="data_interval", topics="{{ t }}")
    RunCommittedSensor(task_id="d", dag=dag, pipeline="p", ranges="data_interval", run_key="p/r")


def test_a_sensors_schedule_without_intervals_is_refused() -> None:
    """It would fail in every scheduled run; an interval of its own needs none."""
    daily = DAG("daily", schedule="@daily")
    with pytest.raises(ConfigurationError, match="gives empty intervals"):
        KafkaDataIntervalSensor(task_id="a", dag=daily, topics="src")
    with pytest.raises(ConfigurationError, match="gives empty intervals"):
        RunCommittedSensor(task_id="b", dag=daily, pipeline="p", topics="src", ranges="data_interval")
    start = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
    KafkaDataIntervalSensor(task_id="c", dag=daily, topics="src", interval=Interval(start, start + DAY))
