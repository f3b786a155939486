"""Every literal that can be checked is checked when the Dag is parsed, in every class that takes it."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from dateutil.relativedelta import relativedelta

from airflow_eos.decorators.kafka_eos import kafka_eos_task
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operators import parameter_table
from airflow_eos.operators.parameter_table import TABLE, Row
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.replay import ReplayOffsetRangesOperator
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator
from airflow_eos.sensors.kafka_data_interval import KafkaDataIntervalSensor
from airflow_eos.sensors.kafka_lag import KafkaLagSensor
from airflow_eos.sensors.run_committed import RunCommittedSensor
from airflow_eos.triggers.offset_range import OffsetRangeTrigger

SECOND = dt.timedelta(seconds=1)
DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
RANGE = OffsetRange("src", 0, 1, 2)


def copy(df: Any, factor: int = 1) -> Any:
    return df, factor


def decorated(*, dag: DAG, task_id: str, **given: Any) -> Any:
    """Create a task with ``@task.kafka_eos`` and call it."""
    with dag:
        return kafka_eos_task(copy, task_id=task_id, **given)()


def trigger(*, dag: DAG, task_id: str, **given: Any) -> Any:
    return OffsetRangeTrigger(**given)


RUN = {"topics": ["src"], "group_id": "g"}
TABLE_SINK = IcebergTable("db.t")
WHOLE: dict[Any, dict[str, Any]] = {
    ReadProcessWriteOperator: {**RUN, "process": copy},
    ReplayOffsetRangesOperator: {**RUN, "process": copy, "offset_ranges": [RANGE], "reason": "wrong"},
    ReadProcessWriteSubmitOperator: {**RUN, "process": "package.module:process"},
    decorated: RUN,
    KafkaLagSensor: RUN,
    KafkaDataIntervalSensor: {"topics": ["src"]},
    RunCommittedSensor: {"pipeline": "p", "topics": ["src"]},
    trigger: RUN,
}
CLASSES: dict[Any, type] = {
    **{kind: kind for kind in WHOLE if isinstance(kind, type)},
    decorated: ReadProcessWriteOperator,
    trigger: OffsetRangeTrigger,
}
NOT_CHECKED = {
    decorated: {"process", "op_kwargs"},  # the function and the arguments of its call: Airflow binds them
    ReplayOffsetRangesOperator: {"ranges"},  # it has no such parameter
}
SINCE_PARSE = "a datetime.timedelta"

# For each parameter: refused literals, each with its error; accepted literals.
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "topics": [
        (5, "topics must be the name of a topic, got 5"),
        ("a,b", "topics 'a,b' is not the name of a topic.*several topics are a list: \\['a', 'b'\\]"),
        ("ord.*", "topics 'ord\\.\\*' is not the name of a topic.*patterns are not"),
        ("", "topics '' is not the name of a topic"),
        (None, "topics must be the name of a topic, got None"),
        ([], "topics needs distinct topic names"),
        (["a", "a"], "topics needs distinct topic names"),
        ([".."], "'\\.\\.' is not the name of a topic"),
        ({"a": 1}, "topics must be a list of topics"),
    ],
    "sink_topic": [
        (5, "sink_topic must be the name of a topic, got 5"),
        ("", "sink_topic ''"),
        ("a/b", "'a/b'"),
    ],
    "sink": [
        ("db.t", "sink must be a table, as IcebergTable.* got 'db.t'; a topic is given as sink_topic"),
        (
            IcebergTable("db.t", properties={"uri": "x"}),
            "sink=.*properties=.*a Dag names a connection .*iceberg_default",
        ),
    ],
    "dead_letter_topic": [
        ("x" * 250, "dead_letter_topic 'x+' is not the name"),
        (["a"], "dead_letter_topic"),
    ],
    "source_partition": [
        (-1, "source_partition.*got -1"),
        ("first", "'first'"),
        ("--3", "source_partition must be the number of a partition.*got '--3'"),
        (1.5, "1.5"),
        (True, "True"),
    ],
    "skip_offsets": [
        ([["src", 0, 2, 1]], "start <= end"),
        ([["src", 0, 1.5, 2]], "start=.*got 1.5"),
        (5, "skip_offsets 5 must be a list of"),
    ],
    "ranges": [
        ("data-interval", "ranges 'data-interval' is not supported.*did you mean 'data_interval'"),
        ([["src", 0, 1, 2]], "is not supported"),
    ],
    "accept_deleted": [("perhaps", "accept_deleted must be true or false, got 'perhaps'"), (1, "got 1")],
    "offset_ranges": [
        ([["src", 0, 1]], "offset_ranges.*\\[topic, partition, start, end\\]"),
        ([["src", 0, 1, 3], ["src", 0, 2, 3]], "must not overlap"),
    ],
    "interval": [("2026-01-01", r"interval must be Interval\(start, end\)")],
    "group_id": [
        (None, "group_id must be text, got None"),
        ("", "group_id ''"),
        ("a" * 8_001, "transactional id"),
        ("nul\0", "no NUL character"),
        (20251124, "group_id must be text, got 20251124: .* a name made of digits"),
    ],
    "pipeline": [("half \ud83d", "no UTF-8 form"), (5, "pipeline must be text, got 5")],
    "prefix": [("a.b", "without a dot"), (5, "prefix must be text, got 5")],
    "kafka_config_id": [
        ("", "kafka_config_id must be text that is not empty, got ''"),
        (None, "kafka_config_id .* got None"),
    ],
    "ledger": [("topic", "ledger must be LedgerSettings.* got 'topic'")],
    "ledger_topic": [("a b", "ledger_topic 'a b' is not the name of a topic")],
    "run_id": [(None, "run_id must be text that is not empty, got None"), ("", "run_id")],
    "run_key": [(5, "run_key must be text or None, got 5")],
    "max_dead_letters": [
        ("5", "max_dead_letters must be a whole number of at least 1, got '5'"),
        (0, "got 0"),
        (True, "got True"),
        (None, "got None"),
    ],
    "max_send_attempts": [(0, "max_send_attempts must be a whole number of at least 1, got 0"), (1.5, "1.5")],
    "allow_loop": [("yes", "allow_loop must be True or False, got 'yes'")],
    "on_committed": [
        (
            "reproces",
            "on_committed must be 'skip', 'fail', 'reprocess' or 'accept'.*did you mean 'reprocess'",
        ),
        ("{{ params.what }}", "got '{{ params.what }}'"),
    ],
    "mark_output": [("allways", "mark_output must be .*did you mean 'always'")],
    "compression": [("ztsd", "compression must be .*did you mean 'zstd'"), (None, "got None")],
    "on_empty": [("skipp", "on_empty must be 'succeed' or 'skip', got 'skipp'; did you mean 'skip'")],
    "transaction_timeout": [
        (60, f"transaction_timeout must be {SINCE_PARSE} longer than 0 s and at most 36500 days, got 60"),
        (10 * SECOND, "must be below transaction_timeout 10 s"),
    ],
    "delivery_timeout": [
        (30, f"delivery_timeout must be {SINCE_PARSE} longer than 0 s and at most 36500 days, got 30"),
        (280 * SECOND, "delivery_timeout 280 s"),
    ],
    "max_active_tis_per_dag": [("1", "max_active_tis_per_dag must be a whole number of at least 1 or None")],
    "retry_policy": [("x", "retry_policy must be a RetryPolicy.*got 'x'"), (3, "got 3")],
    "confirm": [("perhaps", "confirm must be .*got 'perhaps'"), (5, "got 5")],
    "reason": [(" ", "a replay needs a reason"), (None, "got None")],
    "process": [
        ("app.py", "'package.module:function' or 'path/to/file.py:function'"),
        ("missing.py:process", "there is no file .*missing.py"),
        (5, "process must be .* got int"),
        (None, "process"),
    ],
    "application": [(5, "application must be text, got 5")],
    "op_kwargs": [
        (["a"], "op_kwargs must be a mapping of names to values, got list"),
        ({"faktor": 2}, r"op_kwargs gives 'faktor' to process\(.*did you mean 'factor'"),
        ({"df": 2}, "op_kwargs gives 'df' to process.* which it gets from the run"),
        ({1: 2}, "op_kwargs must be a mapping of names"),
    ],
    "conn_id": [("", "conn_id must be text that is not empty or None, got ''"), (5, "got 5")],
    "config_kwargs": [(["a"], "config_kwargs must be a mapping of names to values, got list")],
    "deferrable": [("yes", "deferrable must be True or False.*got 'yes'")],
    "allowed_lateness": [
        (300, f"allowed_lateness must be {SINCE_PARSE} of at least 0 s and at most 36500 days, got 300"),
        (-DAY, "got datetime"),
        (dt.timedelta.max, "at most 36500 days, got datetime"),
    ],
    "partition_duration": [
        (dt.timedelta(), "partition_duration must be"),
        (5, "partition_duration .*got 5"),
        (dt.timedelta.max, "partition_duration must be .*at most 100 years, got datetime"),
        (relativedelta(years=9000), "partition_duration must be .*got relativedelta"),
    ],
    "idle_partitions": [("wit", "idle_partitions must be .*did you mean 'wait'")],
    "min_records": [(0, "min_records must be a whole number of at least 1, got 0"), ("many", "got 'many'")],
    "max_records": [(0, "max_records must be a whole number of at least 1 or None, got 0")],
    "max_delay": [
        ("30", "max_delay must be .*got '30'"),
        (dt.timedelta.max, "max_delay must be .*, got datetime"),
    ],
    "start": [("erliest", "start must be 'earliest' or 'latest', got 'erliest'; did you mean 'earliest'")],
    "poll_interval": [(0, "poll_interval must be a number of seconds above 0, got 0"), ("5", "got '5'")],
}
ACCEPTED: dict[str, list[Any]] = {
    "topics": [["a", "b"], ["a.b_c-1"]],
    "sink": [
        None,
        TABLE_SINK,
        IcebergTable("a.b.c", catalog="lake", branch="audit"),
        DeltaTable("s3://lake/t", connection=None),
        PostgresTable("public.t", mode="upsert", key=["id"]),
    ],
    "sink_topic": [None, "out"],
    "dead_letter_topic": [None, "dead"],
    "source_partition": [None, 0],
    "skip_offsets": [(), [["src", 0, 1, 2]], [RANGE]],
    "ranges": [None, Cursor(max_records=5)],
    "accept_deleted": [False, "false"],
    "offset_ranges": [[["src", 0, 1, 2]], '[["src", 0, 1, 2]]'],
    "interval": [None, Interval(START, START + DAY)],
    "group_id": ["g", "shop:orders/1", "한국어"],
    "pipeline": ["p", "a.b c"],
    "prefix": [None, "", "prod-eu"],
    "kafka_config_id": ["kafka_prod"],
    "ledger": [None, LedgerSettings(topic="books")],
    "ledger_topic": [None, "books"],
    "run_id": ["manual__1"],
    "run_key": [None, "p/r"],
    "max_dead_letters": [1, 5000],
    "max_send_attempts": [1, 9],
    "allow_loop": [True, False],
    "on_committed": ["skip", "fail", "reprocess", "accept"],
    "mark_output": ["never", "reprocessed", "always"],
    "compression": ["none", "gzip", "snappy", "lz4", "zstd"],
    "on_empty": ["succeed", "skip"],
    "transaction_timeout": [151 * SECOND, dt.timedelta(minutes=15)],
    "delivery_timeout": [SECOND, 269 * SECOND],
    "max_active_tis_per_dag": [None, 4],
    "retry_policy": [None, TransactionRetryPolicy()],
    "confirm": [True, False, "true", "no"],
    "reason": ["the sink was lost"],
    "process": ["json:dumps"],
    "application": [""],
    "op_kwargs": [None, {}, {"factor": 2}],
    "conn_id": [None, "spark"],
    "config_kwargs": [None, {"spark.master": "local[1]"}],
    "deferrable": [True, False],
    "allowed_lateness": [dt.timedelta(), DAY],
    "partition_duration": [None, DAY],
    "idle_partitions": ["allowed_lateness", "wait"],
    "min_records": [1, 10_000],
    "max_records": [None, 10_000],
    "max_delay": [None],
    "start": ["earliest", "latest"],
    "poll_interval": [0.5, 30],
}
OTHERWISE: dict[Any, dict[str, list[Any]]] = {  # where a class uses a name differently
    RunCommittedSensor: {"topics": [(), "a"]},
    ReplayOffsetRangesOperator: {"topics": [["src", "b"], "src"]},
}
EMPTY_TOPICS = {RunCommittedSensor: ("", None, [])}  # a run of a cursor is named without them


def parameters_of(kind: Any) -> set[str]:
    """Return the names of the parameters that this package's classes define."""
    names: set[str] = set()
    for base in CLASSES[kind].__mro__:
        init = vars(base).get("__init__")
        if base is not object and init is not None and init.__module__.startswith("airflow_eos."):
            names |= set(inspect.signature(init).parameters) - {"self", "kwargs"}
    return names - NOT_CHECKED.get(kind, set())


def make(kind: Any, dag: DAG, **given: Any) -> Any:
    return kind(task_id="made", dag=dag, **{**WHOLE[kind], **given})


def cases(table: dict[str, list[Any]], otherwise: Any) -> list[Any]:
    return [
        pytest.param(kind, name, case, id=f"{kind.__name__}-{name}-{number}")
        for kind in WHOLE
        for name in sorted(parameters_of(kind))
        for number, case in enumerate(otherwise.get(kind, {}).get(name, table[name]))
    ]


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_every_parameter_has_a_rule_with_literals_on_both_sides(kind: Any) -> None:
    """A new parameter cannot be forgotten."""
    rows = {row.parameters[0] for row in TABLE if len(row.parameters) == 1 and row.concerns(CLASSES[kind])}
    for name in parameters_of(kind):
        assert name in rows, f"{name} of {kind.__name__} has no row in {parameter_table.__name__}"
        assert REFUSED[name]
        assert ACCEPTED[name]


def test_no_rule_is_about_a_parameter_that_nothing_takes() -> None:
    """Rules are removed together with their parameters."""
    taken = set().union(*map(parameters_of, WHOLE))
    assert {row.parameters[0] for row in TABLE} <= taken
    assert set(REFUSED) == set(ACCEPTED) == taken


@pytest.mark.parametrize(("kind", "name", "case"), cases(REFUSED, {}))
def test_a_wrong_literal_is_refused(dag: DAG, kind: Any, name: str, case: tuple[Any, str]) -> None:
    """The error has the parameter, its value, and what it must be."""
    value, says = case
    if name == "topics" and kind in EMPTY_TOPICS and value in EMPTY_TOPICS[kind]:
        make(kind, dag, **{name: value})
        return
    if name == "topics" and kind is trigger and not isinstance(value, list):
        says = "topics"
    if name == "process" and kind is ReadProcessWriteSubmitOperator and value is None:
        says = "process or application"
    with pytest.raises(ConfigurationError, match=says) as refused:
        make(kind, dag, **{name: value})
    assert name in str(refused.value)


@pytest.mark.parametrize(("kind", "name", "value"), cases(ACCEPTED, OTHERWISE))
def test_a_right_literal_is_accepted(dag: DAG, kind: Any, name: str, value: Any) -> None:
    """Rules refuse impossible values, and nothing else."""
    make(kind, dag, **{name: value})


RELATIONS: list[tuple[tuple[str, ...], Any, dict[str, Any], str]] = [
    (("sink_topic", "topics"), ReadProcessWriteOperator, {"sink_topic": "src"}, "also a source topic"),
    (("sink_topic", "topics"), decorated, {"sink_topic": "airflow-eos-ledger"}, "the ledger's topic"),
    (("sink_topic", "topics"), decorated, {"sink_topic": "b", "ledger": LedgerSettings("b")}, "the ledger's"),
    (("sink_topic", "topics"), decorated, {"sink_topic": "__transaction_state"}, "written by brokers only"),
    (
        ("dead_letter_topic", "topics"),
        decorated,
        {"dead_letter_topic": "__consumer_offsets", "max_dead_letters": 1},
        "written by brokers only",
    ),
    (("sink", "sink_topic"), decorated, {"sink": TABLE_SINK, "sink_topic": "out"}, "a run has one sink"),
    (
        ("sink", "dead_letter_topic"),
        ReadProcessWriteOperator,
        {"sink": TABLE_SINK, "dead_letter_topic": "dead", "max_dead_letters": 1_001},
        "max_dead_letters=1001 is more than the 1000 that a run with a table may have",
    ),
    (("sink", "mark_output"), decorated, {"sink": TABLE_SINK, "mark_output": "always"}, "no headers"),
    (
        ("sink", "compression"),
        ReadProcessWriteSubmitOperator,
        {"sink": TABLE_SINK, "compression": "gzip"},
        r"write\.parquet\.compression-codec",
    ),
    (
        ("sink", "allow_loop"),
        ReplayOffsetRangesOperator,
        {"sink": TABLE_SINK, "allow_loop": True},
        "not read by the run",
    ),
    (("dead_letter_topic", "topics"), decorated, {"dead_letter_topic": "src"}, "is read by the run"),
    (("source_partition", "topics"), decorated, {"source_partition": 0, "topics": ["a", "b"]}, "exactly one"),
    (
        ("source_partition", "topics"),
        RunCommittedSensor,
        {"source_partition": 0, "topics": ["a", "b"]},
        "one",
    ),
    (
        ("ranges", "topics"),
        ReadProcessWriteOperator,
        {"ranges": Explicit([OffsetRange("scr", 0, 1, 2)])},
        r"ranges=Explicit\(...\) names scr, which is not a source topic.*did you mean 'src'",
    ),
    (
        ("ranges", "topics"),
        ReadProcessWriteOperator,
        {"ranges": Explicit([RANGE]), "source_partition": 1},
        "names partition 0, and source_partition=1",
    ),
    (
        ("skip_offsets", "topics"),
        ReadProcessWriteSubmitOperator,
        {"skip_offsets": [["other", 0, 1, 2]]},
        "skip_offsets names other, which is not a source topic",
    ),
    (
        ("offset_ranges", "topics"),
        ReplayOffsetRangesOperator,
        {"offset_ranges": [["other", 0, 1, 2]]},
        "offset_ranges names other",
    ),
    (
        ("accept_deleted", "ranges"),
        ReadProcessWriteOperator,
        {"accept_deleted": True, "ranges": Cursor()},
        "for intervals and partitions",
    ),
    (
        ("accept_deleted", "offset_ranges"),
        ReplayOffsetRangesOperator,
        {"accept_deleted": True},
        "for intervals and partitions",
    ),
    (
        ("transaction_timeout", "delivery_timeout"),
        ReadProcessWriteSubmitOperator,
        {"transaction_timeout": 100 * SECOND, "delivery_timeout": 70 * SECOND},
        r"delivery_timeout 70 s \+ 30 s must be below transaction_timeout 100 s",
    ),
    (
        ("process", "application"),
        ReadProcessWriteSubmitOperator,
        {"application": "app.py"},
        "either process or application",
    ),
    (("topics", "ranges"), RunCommittedSensor, {"ranges": "data_interval", "topics": ()}, "part of the name"),
    (("topics", "ranges"), RunCommittedSensor, {"source_partition": 0, "topics": ""}, "part of the name"),
    (("max_records", "min_records"), trigger, {"max_records": 4, "min_records": 5}, "got 4 and 5"),
]


@pytest.mark.parametrize(("parameters", "kind", "given", "says"), RELATIONS)
def test_literals_that_do_not_fit_each_other_are_refused(
    dag: DAG, parameters: Any, kind: Any, given: dict[str, Any], says: str
) -> None:
    """Each literal alone is valid."""
    with pytest.raises(ConfigurationError, match=says):
        make(kind, dag, **given)


def test_every_rule_of_several_parameters_has_a_case() -> None:
    """Rules about the Dag, its schedule and the file of process, have their own tests."""
    pairs = {parameters for parameters, *_ in RELATIONS}
    assert {
        row.parameters[:2] for row in TABLE if len(row.parameters) > 1 and "dag" not in row.parameters
    } == pairs
    assert {row.parameters[0] for row in TABLE if "dag" in row.parameters} == {"process", "ranges"}


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_what_is_not_known_yet_is_left_to_the_task(dag: DAG, kind: Any) -> None:
    """Templates, alone or in a list, and results of other tasks; a topic may be called ``templated``."""
    fields = getattr(CLASSES[kind], "template_fields", ())
    with dag:

        @task
        def choose() -> Any:
            return "g"

        chosen = choose()
    for number, name in enumerate(sorted(parameters_of(kind) & set(fields))):
        for value in ("{{ params.any }} of", "{% if a %}b{% endif %}", chosen):
            make(kind, DAG(f"d{number}", schedule=None) if value is not chosen else dag, **{name: value})
            dag.task_dict.pop("made", None)
            dag.task_group.children.pop("made", None)
            dag.task_group.used_group_ids.discard("made")
    if "sink_topic" in parameters_of(kind):
        make(kind, DAG("t", schedule=None), topics="{{ params.topic }}", sink_topic="templated")
        make(kind, DAG("u", schedule=None), topics=["{{ params.topic }}", "{{ params.topic }}"])


def test_the_result_of_another_task_is_refused_where_it_would_not_be_resolved(dag: DAG) -> None:
    """The parameter is not a templated field: the task would get the reference itself."""
    with dag:

        @task
        def choose() -> Any:
            return "skip"

        with pytest.raises(ConfigurationError, match="on_committed is not a templated field"):
            make(ReadProcessWriteOperator, dag, on_committed=choose())


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (ReadProcessWriteOperator, "topic", "ReadProcessWriteOperator has no parameter 'topic'; .*'topics'"),
        (ReadProcessWriteOperator, "proces", "has no parameter 'proces'; did you mean 'process'"),
        (ReadProcessWriteSubmitOperator, "sink_topics", "did you mean 'sink_topic'"),
        (ReplayOffsetRangesOperator, "offset_range", "did you mean 'offset_ranges'"),
        (decorated, "on_commited", "did you mean 'on_committed'"),
        (KafkaLagSensor, "group", "has no parameter 'group'; did you mean 'group_id'"),
        (KafkaDataIntervalSensor, "allowed_latenes", "did you mean 'allowed_lateness'"),
        (RunCommittedSensor, "run_keys", "did you mean 'run_key'"),
        (trigger, "topic", "OffsetRangeTrigger has no parameter 'topic'; did you mean 'topics'"),
    ],
)
def test_a_misspelt_parameter_is_named_with_the_near_one(dag: DAG, kind: Any, given: str, says: str) -> None:
    """Airflow and Python would only name other, missing parameters."""
    with pytest.raises(ConfigurationError, match=says):
        make(kind, dag, **{given: "x"})


def test_a_class_of_the_authors_may_take_what_it_likes(dag: DAG) -> None:
    """Also parameters with a name similar to one of ours."""

    class TopicOperator(ReadProcessWriteOperator):
        def __init__(self, **kwargs: Any) -> None:
            self.topic = kwargs.pop("topic")
            super().__init__(topics=[self.topic], **kwargs)

    assert TopicOperator(task_id="mine", dag=dag, process=copy, group_id="g", topic="src").topics == ["src"]
    with pytest.raises(ConfigurationError, match="topics 'a,b'"):
        TopicOperator(task_id="wrong", dag=dag, process=copy, group_id="g", topic="a,b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topics": "a,b"}, "topics 'a,b'"),
        ({"topics": ["a"], "transaction_timeout": 60}, "transaction_timeout must be"),
        ({"topic": "a"}, "did you mean 'topics'"),
    ],
)
def test_literals_of_a_mapped_task_are_known_when_it_is_parsed(
    dag: DAG, given: dict[str, Any], says: str
) -> None:
    """Arguments of ``partial``, or of the decorator; expanded ones are unknown."""
    with pytest.raises(ConfigurationError, match=says):
        ReadProcessWriteOperator.partial(task_id="m", dag=dag, process=copy, group_id="g", **given)
    with pytest.raises(ConfigurationError, match=says):
        kafka_eos_task(copy, group_id="g", **given)
    with dag:
        ReadProcessWriteOperator.partial(
            task_id="m", process=copy, group_id="g", topics="src", sink_topic="out"
        ).expand(source_partition=[0, 1])


def test_no_value_of_a_mapping_is_shown(dag: DAG) -> None:
    """They may be secrets."""
    for name in ("op_kwargs", "config_kwargs"):
        for value in (["hunter2"], {"faktor": "hunter2"}, {5: "hunter2"}):
            if name == "config_kwargs" and value == {"faktor": "hunter2"}:
                continue  # an ordinary setting
            with pytest.raises(ConfigurationError, match=name) as refused:
                make(ReadProcessWriteOperator, DAG("d", schedule=None), **{name: value})
            assert "hunter2" not in str(refused.value)


# -- process ----------------------------------------------------------------------------------------------


APP = """
from somewhere_else import imported, other as renamed
import package_that_is_not_installed

def one(df): ...
def two(df, run): ...
def second(df, context): ...
def more(df, factor, *, unit="min"): ...
def needs(df, factor, unit): ...
def any(df, **options): ...
def only(df, /, *, unit): ...
def nothing(): ...
@airflow_eos.arrow_process
def arrow(batch, factor=1): ...
@functools.cache
def wrapped(): ...
if True:
    def conditional(df): ...
assigned = make_process()
"""


@pytest.mark.parametrize(
    ("name", "op_kwargs", "says"),
    [
        ("one", {}, ""),
        ("two", {}, ""),
        ("second", {}, ""),
        ("more", {"factor": 1, "unit": "h"}, ""),
        ("needs", {"factor": "{{ params.factor }}", "unit": 1}, ""),
        ("any", {"whatever": 1}, ""),
        ("only", {"unit": "h"}, ""),
        ("arrow", {"factor": 2}, ""),
        ("wrapped", {"whatever": 1}, ""),
        ("imported", {"whatever": 1}, ""),
        ("renamed", {}, ""),
        ("assigned", {"whatever": 1}, ""),
        ("conditional", {}, ""),
        ("one", {"factor": 1}, r"op_kwargs gives 'factor' to process\(df\), which has no such parameter"),
        ("more", {"faktor": 1}, "did you mean 'factor'"),
        ("two", {"run": 1}, "gives 'run' .*which it gets from the run"),
        ("arrow", {"batch": 1}, "gives 'batch'"),
        ("needs", {}, r"process\(df, factor, unit\) needs 'factor', 'unit', which nothing gives"),
        ("only", {}, "needs 'unit'"),
        ("nothing", {}, r"process\(\) takes no DataFrame"),
        ("ones", {}, "has no function 'ones'; did you mean 'one'"),
        ("other", {}, "has no function 'other'"),
    ],
)
def test_the_file_of_process_is_read_without_importing_it(
    tmp_path: Path, name: str, op_kwargs: dict[str, Any], says: str
) -> None:
    """The results of imports, decorators and calls are known only in the task."""
    (tmp_path / "app.py").write_text(APP)
    dag = DAG("d", schedule=None)
    dag.fileloc = str(tmp_path / "dag.py")
    given = {**RUN, "process": f"app.py:{name}", "op_kwargs": op_kwargs}
    if not says:
        ReadProcessWriteOperator(task_id="t", dag=dag, **given)
        return
    with pytest.raises(ConfigurationError, match=says):
        ReadProcessWriteOperator(task_id="t", dag=dag, **given)


def test_a_file_that_is_not_python_is_named(tmp_path: Path) -> None:
    """The error has the line."""
    (tmp_path / "app.py").write_text("def process(df:\n")
    dag = DAG("d", schedule=None)
    dag.fileloc = str(tmp_path / "dag.py")
    with pytest.raises(ConfigurationError, match=r"app\.py is not Python: .*line 1"):
        ReadProcessWriteOperator(task_id="t", dag=dag, **RUN, process="app.py:process")


def test_a_dag_that_a_function_of_another_folder_makes_finds_its_file(tmp_path: Path) -> None:
    """Airflow assigns such a Dag its file's path only after the file has been parsed."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "app.py").write_text("def process(df): ...")
    file = tmp_path / "dags" / "dag.py"
    make: Callable[[], Any] = lambda: ReadProcessWriteOperator(  # noqa: E731
        task_id="t", dag=DAG("d", schedule=None), **RUN, process="../app.py:process"
    )
    exec(compile("made()", str(file), "exec"), {"made": make})
    with pytest.raises(ConfigurationError, match="there is no file"):
        make()


def test_rows_name_classes_that_there_are() -> None:
    """A renamed class has to take its rows along."""
    names = {base.__name__ for kind in CLASSES.values() for base in kind.__mro__} | {
        "_KafkaEosDecoratedOperator"
    }
    for row in TABLE:
        assert isinstance(row, Row)
        assert set(row.only) | set(row.but) <= names
