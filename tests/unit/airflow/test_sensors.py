"""Sensors: what they wait for, how they wait, what makes them fail."""

from __future__ import annotations

import datetime as dt
import functools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.compat import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    CredentialsRefused,
    UnknownTopic,
)
from airflow_eos.ledger.keys import cursor_run_key, run_key
from airflow_eos.model.ranges import Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.run.work import WorkDefinition
from airflow_eos.sensors.kafka_data_interval import KafkaDataIntervalSensor
from airflow_eos.sensors.kafka_lag import KafkaLagSensor
from airflow_eos.sensors.run_committed import RunCommittedSensor
from airflow_eos.triggers.condition import ConditionTrigger
from tests.unit.airflow.fakes import DAY, START, make_context

WAITING_SINCE = START + dt.timedelta(hours=3)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers of the condition, one after the other; exceptions are raised."""
    script: list[Any] = []

    def poll(_: ConditionTrigger) -> Any:
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    monkeypatch.setattr(ConditionTrigger, "poll", poll)
    return script


def context_of(task: Any, **dag_run: Any) -> Any:
    context = make_context(task, **dag_run)
    context["ti"] = SimpleNamespace(
        **vars(context["ti"]), start_date=WAITING_SINCE, get_first_reschedule_date=lambda _: None
    )
    return context


def lag_sensor(dag: DAG, **changes: Any) -> KafkaLagSensor:
    fields: dict[str, Any] = {"task_id": "enough", "dag": dag, "topics": "src", "group_id": "g"}
    return KafkaLagSensor(**{**fields, "poke_interval": 0, **changes})


def test_poking_sensor_asks_until_it_is_answered(dag: DAG, answers: list[Any]) -> None:
    """Without a triggerer the task itself waits, and returns the answer for XCom."""
    answers += [None, None, {"lag": 12}]
    sensor = lag_sensor(dag, deferrable=False)
    assert sensor.execute(context_of(sensor)) == {"lag": 12}
    assert answers == []


@pytest.mark.parametrize(
    ("taken", "first", "message"),
    [
        (AirflowNotFoundException("`kafka_default` isn't defined"), AirflowNotFoundException, "defined"),
        (CredentialsRefused("refused the credentials"), AirflowFailException, "CredentialsRefused"),
    ],
    ids=["the API server is away", "the password was changed"],
)
def test_a_poking_sensor_outlives_what_takes_its_connection_away(
    dag: DAG, answers: list[Any], taken: Exception, first: type[Exception], message: str
) -> None:
    """A connection that never existed, or credentials that never worked, fail it."""
    answers += [None, taken, taken, {"lag": 12}]
    sensor = lag_sensor(dag, deferrable=False)
    assert sensor.execute(context_of(sensor)) == {"lag": 12}
    answers += [taken]
    rescheduled = lag_sensor(dag, task_id="rescheduled", deferrable=False, mode="reschedule")
    with pytest.raises(AirflowRescheduleException):
        rescheduled.execute({**context_of(rescheduled), "task_reschedule_count": 1})
    answers += [taken]
    never = lag_sensor(dag, task_id="never", deferrable=False)
    with pytest.raises(first, match=message):
        never.execute(context_of(never))


def test_deferrable_sensor_gives_its_slot_back(dag: DAG, answers: list[Any]) -> None:
    """It checks once in the task, then defers with the sensor's own time-out."""
    answers += [None]
    sensor = lag_sensor(
        dag, deferrable=True, timeout=77, poke_interval=5, min_records=3, max_delay=dt.timedelta(hours=1)
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context_of(sensor))
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout == dt.timedelta(seconds=77)
    _, kwargs = deferred.value.trigger.serialize()
    assert kwargs == {
        "topics": ["src"],
        "group_id": "g",
        "min_records": 3,
        "any_after": (WAITING_SINCE + dt.timedelta(hours=1)).isoformat(),
        "start": "earliest",
        "ledger_topic": "airflow-eos-ledger",
        "kafka_config_id": "kafka_default",
        "poll_interval": 5.0,
    }
    assert sensor.execute_complete({}, {"answer": {"lag": 3}}) == {"lag": 3}


def test_condition_that_holds_already_defers_nothing(dag: DAG, answers: list[Any]) -> None:
    """Usually, with a busy topic, no triggerer is involved."""
    answers += [{"lag": 3}]
    sensor = lag_sensor(dag, deferrable=True)
    assert sensor.execute(context_of(sensor)) == {"lag": 3}


@pytest.mark.parametrize("kind", [KafkaLagSensor, KafkaDataIntervalSensor, RunCommittedSensor])
def test_airflows_default_decides_whether_sensors_defer(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """[operators] default_deferrable, as for every other sensor."""
    arguments: dict[str, Any] = {
        KafkaLagSensor: {"topics": "src", "group_id": "g"},
        KafkaDataIntervalSensor: {"topics": "src"},
        RunCommittedSensor: {"pipeline": "p"},
    }[kind]
    assert kind(task_id="a", dag=dag, **arguments).deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert kind(task_id="b", dag=dag, **arguments).deferrable is True


@pytest.mark.parametrize("deferrable", [True, False])
def test_what_another_question_would_meet_again_fails_at_once(
    dag: DAG, answers: list[Any], deferrable: bool
) -> None:
    """A missing permission is not retried; a topic that may still be created is."""
    sensor = lag_sensor(dag, deferrable=deferrable)
    answers += [AuthorizationFailed("no Describe on group g"), UnknownTopic("no topic src")]
    with pytest.raises(AirflowFailException, match="AuthorizationFailed: no Describe"):
        sensor.execute(context_of(sensor))
    with pytest.raises(UnknownTopic):
        sensor.execute(context_of(sensor))


def test_error_of_the_trigger_is_judged_as_in_the_task(dag: DAG) -> None:
    """The triggerer reports the error's class; the worker decides."""
    sensor = lag_sensor(dag, deferrable=True)
    with pytest.raises(AirflowFailException, match="no Describe"):
        sensor.execute_complete({}, {"error": "AuthorizationFailed", "message": "no Describe"})
    with pytest.raises(UnknownTopic, match="no topic"):
        sensor.execute_complete({}, {"error": "UnknownTopic", "message": "no topic"})


@pytest.mark.parametrize("deferrable", [True, False])
def test_soft_failing_sensor_is_skipped(dag: DAG, answers: list[Any], deferrable: bool) -> None:
    """soft_fail and never_fail mean the same as for every sensor."""
    answers += [AuthorizationFailed("no"), UnknownTopic("no")]
    soft = lag_sensor(dag, deferrable=deferrable, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        soft.execute(context_of(soft))
    never = lag_sensor(dag, task_id="never", deferrable=deferrable, never_fail=True)
    with pytest.raises(AirflowSkipException):
        never.execute(context_of(never))


DEFERRED: dict[str, tuple[str, dict[str, Any]]] = {
    "UnknownTopic": ("execute_complete", {"event": {"error": "UnknownTopic", "message": "no topic src"}}),
    "AuthorizationFailed": (
        "execute_complete",
        {"event": {"error": "AuthorizationFailed", "message": "no Describe"}},
    ),
    "RuntimeError": ("__fail__", {"error": "TriggerFailure", "traceback": ["API server is busy"]}),
}
"""Airflow's call of a sensor after an error in the triggerer."""


@pytest.mark.parametrize("deferred", [False, True], ids=["poked", "deferred"])
@pytest.mark.parametrize(
    ("error", "given", "skipped"),
    [
        (UnknownTopic("no topic src"), {}, False),
        (UnknownTopic("no topic src"), {"soft_fail": True}, False),
        (UnknownTopic("no topic src"), {"never_fail": True}, True),
        (RuntimeError("API server is busy"), {"soft_fail": True}, False),
        (RuntimeError("API server is busy"), {"never_fail": True}, True),
        (AuthorizationFailed("no Describe"), {"soft_fail": True}, True),
        (AuthorizationFailed("no Describe"), {"never_fail": True}, True),
    ],
)
def test_an_error_means_the_same_in_the_task_and_in_the_triggerer(
    dag: DAG, answers: list[Any], error: Exception, given: dict[str, Any], skipped: bool, deferred: bool
) -> None:
    """soft_fail skips after errors that stay; a topic that may still be created is retried."""
    answers += [error]
    sensor = lag_sensor(dag, deferrable=deferred, retries=2, **given)
    context = context_of(sensor)
    resumed = functools.partial(sensor.resume_execution, *DEFERRED[type(error).__name__], context)
    with pytest.raises(Exception, match=r"\w") as ended:
        (resumed if deferred else functools.partial(sensor.execute, context))()
    assert isinstance(ended.value, AirflowSkipException) is skipped
    assert not isinstance(ended.value, AirflowFailException)


def test_a_sensor_that_waited_too_long_is_skipped_softly(dag: DAG) -> None:
    """The triggerer's time-out is the sensor's."""
    soft = lag_sensor(dag, deferrable=True, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        soft.resume_execution("__fail__", {"error": "Trigger timeout"}, context_of(soft))
    plain = lag_sensor(dag, task_id="plain", deferrable=True)
    with pytest.raises(AirflowSensorTimeout, match=r"did not hold within timeout \(\d+ s\), or no triggerer"):
        plain.resume_execution("__fail__", {"error": "Trigger timeout"}, context_of(plain))


@pytest.mark.parametrize("error", [UnknownTopic("no"), RuntimeError("API server is busy")])
def test_first_question_of_a_deferrable_sensor_may_fail_silently(
    dag: DAG, answers: list[Any], error: Exception
) -> None:
    """silent_fail and never_fail take any error there, as they do in a sensor that pokes."""
    answers += [error, error, error]
    silent = lag_sensor(dag, deferrable=True, silent_fail=True)
    with pytest.raises(TaskDeferred):
        silent.execute(context_of(silent))
    never = lag_sensor(dag, task_id="never", deferrable=True, never_fail=True)
    with pytest.raises(AirflowSkipException):
        never.execute(context_of(never))
    plain = lag_sensor(dag, task_id="plain", deferrable=True)
    with pytest.raises(type(error)):
        plain.execute(context_of(plain))


def test_brokers_that_are_away_are_asked_again(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of the cluster does not affect a waiting sensor."""
    script: list[Any] = [BrokersUnavailable("none"), {"lag": 1}]

    def ask(_: Any, kafka: Any) -> Any:
        assert kafka["bootstrap.servers"] == "broker:9092"
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    monkeypatch.setattr("airflow_eos.triggers.kafka_lag.KafkaLagTrigger.ask", ask)
    sensor = lag_sensor(dag, deferrable=False)
    assert sensor.execute(context_of(sensor)) == {"lag": 1}


def test_rescheduled_sensor_counts_its_delay_from_its_first_process(dag: DAG) -> None:
    """Each reschedule is a new process; the wait began with the first one."""
    sensor = lag_sensor(dag, mode="reschedule", max_delay=dt.timedelta(minutes=10), deferrable=False)
    context = context_of(sensor)
    context["ti"].get_first_reschedule_date = lambda _: START
    expected = (START + dt.timedelta(minutes=10)).isoformat()
    assert sensor.make_trigger(context).any_after == expected


def test_interval_sensor_waits_for_the_interval_of_its_dag_run(dag: DAG) -> None:
    """The condition gets interval, lateness and policy; also a partition's date and length."""
    sensor = KafkaDataIntervalSensor(
        task_id="over",
        dag=dag,
        topics=["src"],
        allowed_lateness=dt.timedelta(minutes=1),
        idle_partitions="wait",
    )
    trigger = sensor.make_trigger(context_of(sensor))
    assert (trigger.start, trigger.end) == (START.isoformat(), (START + DAY).isoformat())
    assert (trigger.allowed_lateness, trigger.idle_partitions) == (60.0, "wait")
    assert (trigger.accept_deleted, trigger.ledger_topic) == (False, "airflow-eos-ledger")

    mapped = KafkaDataIntervalSensor(task_id="part", dag=dag, topics="src", partition_duration=DAY / 2)
    context = context_of(
        mapped, partition_key="k", partition_date=START, data_interval_start=None, data_interval_end=None
    )
    assert mapped.make_trigger(context).end == (START + DAY / 2).isoformat()
    mapped.accept_deleted = "True"  # rendered
    assert mapped.make_trigger(context).accept_deleted
    mapped.accept_deleted = "perhaps"
    with pytest.raises(AirflowFailException, match="'perhaps'"):
        mapped.poke(context)

    context["dag_run"].partition_key = "2026-11-20|eu"
    with pytest.raises(ConfigurationError, match=r"pre_execute: context\['task'\].ranges = "):
        sensor.make_trigger(context)
    sensor.ranges = PartitionInterval("2026-11-20|eu", Interval(START, START + 2 * DAY))
    assert sensor.make_trigger(context).end == (START + 2 * DAY).isoformat()


def test_interval_sensor_without_an_interval_names_the_way_out(dag: DAG) -> None:
    """A Dag run without a data interval fails at once, as the operator does."""
    sensor = KafkaDataIntervalSensor(task_id="over", dag=dag, topics=["src"])
    with pytest.raises(AirflowFailException, match="CronDataIntervalTimetable"):
        sensor.poke(context_of(sensor, data_interval_start=START, data_interval_end=START))
    with pytest.raises(AirflowFailException, match="ends before it starts"):
        sensor.poke(context_of(sensor, data_interval_start=START + DAY, data_interval_end=START))
    with pytest.raises(ConfigurationError, match="idle_partitions"):
        KafkaDataIntervalSensor(task_id="x", dag=dag, topics=["src"], idle_partitions="ignore")


@pytest.mark.parametrize(
    ("ranges", "extra"),
    [
        (None, {}),
        ("data_interval", {}),
        (Interval(START, START + DAY), {}),
        (PartitionInterval("key", Interval(START, START + DAY)), {}),
        (None, {"source_partition": 1}),
        (None, {"source_partition": "3"}),
    ],
)
def test_run_is_named_as_the_operator_names_it(dag: DAG, ranges: Any, extra: dict[str, Any]) -> None:
    """Sensor and operator with the same arguments refer to the same run, in every range mode."""
    operator = ReadProcessWriteOperator(
        task_id="copy", dag=dag, process=lambda df: df, topics=["src"], group_id="g", ranges=ranges, **extra
    )
    sensor = RunCommittedSensor(
        task_id="wait",
        dag=dag,
        pipeline="pipelines.copy",
        run_id="scheduled__2026-11-20",
        ranges=ranges,
        topics=["src"],
        **extra,
    )
    context = context_of(operator)
    trigger = sensor.make_trigger(context)
    assert trigger.run_key == run_key(operator.build_spec(context))
    assert (trigger.pipeline, trigger.ledger_topic, trigger.prefix) == (
        "pipelines.copy",
        "airflow-eos-ledger",
        "airflow-eos",
    )
    work = WorkDefinition.of(operator.build_spec(context)).to_dict()
    assert trigger.work == {name: work[name] for name in ("topics", "interval") if name in work}


def test_run_that_is_only_named_may_have_done_anything(dag: DAG) -> None:
    """Neither a pipeline with a Dag run, nor a key, describes the work; given ranges do."""
    sensor = RunCommittedSensor(task_id="wait", dag=dag, pipeline="p")
    assert sensor.make_trigger(context_of(sensor)).work == {}
    sensor = RunCommittedSensor(
        task_id="key", dag=dag, pipeline="p", topics=["src"], run_key=cursor_run_key("p", "r")
    )
    assert sensor.make_trigger(context_of(sensor)).work == {}
    given = Explicit((OffsetRange("src", 0, 5, 9),))
    sensor = RunCommittedSensor(task_id="given", dag=dag, pipeline="p", topics="src", ranges=given)
    work = {"topics": ["src"], "ranges": [["src", 0, 5, 9]]}
    assert sensor.make_trigger(context_of(sensor)).work == work


def test_run_key_names_the_run_by_itself(dag: DAG) -> None:
    """For runs of another deployment, with a key from `airflow eos ledger`."""
    sensor = RunCommittedSensor(
        task_id="wait", dag=dag, pipeline="p", run_key=cursor_run_key("p", "r"), ledger_topic="l", prefix="x"
    )
    _, kwargs = sensor.make_trigger(context_of(sensor)).serialize()
    assert {name: kwargs[name] for name in ("run_key", "ledger_topic", "prefix")} == {
        "run_key": cursor_run_key("p", "r"),
        "ledger_topic": "l",
        "prefix": "x",
    }


def test_interval_run_without_topics_is_refused(dag: DAG) -> None:
    """Topics are part of the key; a sensor without them would wait for ever."""
    with pytest.raises(ConfigurationError, match="topics"):
        RunCommittedSensor(task_id="wait", dag=dag, pipeline="p", ranges="data_interval")
    sensor = RunCommittedSensor(
        task_id="templated", dag=dag, pipeline="p", ranges="data_interval", topics="{{ params.topics }}"
    )
    sensor.topics = ""  # rendered
    with pytest.raises(AirflowFailException, match="topics"):
        sensor.poke(context_of(sensor))


def test_templated_fields_are_fields(dag: DAG) -> None:
    """Airflow renders them before the sensor uses them."""
    sensors = [
        lag_sensor(dag),
        KafkaDataIntervalSensor(task_id="over", dag=dag, topics=["src"]),
        RunCommittedSensor(task_id="wait", dag=dag, pipeline="p"),
    ]
    for sensor in sensors:
        assert "kafka_config_id" in sensor.template_fields
        assert all(hasattr(sensor, name) for name in sensor.template_fields)
    assert json.dumps(list(sensors[2].template_fields))
