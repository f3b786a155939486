from __future__ import annotations

import contextlib
import datetime as dt
import json
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetUniqueKey
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_eos import compat, exceptions
from airflow_eos.compat import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from airflow_eos.compat.retry_policy import RetryAction
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    EosError,
    OutcomeUnknown,
    ProcessFailed,
    RunAlreadyCommitted,
    RunFenced,
    UnknownTable,
)
from airflow_eos.hooks.table_connections import with_connection
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import LedgerSettings, MayCreate
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.retriable import is_final
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.operators.spark_session import TaskSession
from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark.process import arrow_process
from tests.unit.airflow.fakes import DAY, START, FakeRun, FakeSession, a_record, make_context


def copy(df: Any) -> Any:
    return df


def make(dag: DAG, **changes: Any) -> ReadProcessWriteOperator:
    fields = {"process": copy, "topics": ["src"], "sink_topic": "out", "group_id": "g", **changes}
    return ReadProcessWriteOperator(task_id="copy", dag=dag, retries=2, **fields)


def execute(operator: ReadProcessWriteOperator, **dag_run: Any) -> Any:
    return operator.execute(make_context(operator, **dag_run))


# -- what the run gets -----------------------------------------------------------------------------------


def test_an_iteration_of_a_loop_is_no_run(dag: DAG, runs: list[FakeRun]) -> None:
    """It is refused before any request: the iterations have the same identity."""
    operator = make(dag)
    context = make_context(operator)
    context["loop"] = SimpleNamespace(index=1, max_iterations=5, previous=None)
    with pytest.raises(ConfigurationError, match="in a loop"):
        operator.execute(context)
    assert runs == []


def test_run_is_named_by_dag_task_and_run(dag: DAG, runs: list[FakeRun]) -> None:
    """Pipeline, run id and try come from Airflow unless the author names them."""
    execute(make(dag), try_number=2)
    spec = runs[0].spec
    assert (spec.pipeline, spec.run_id, spec.clear_number, spec.try_number) == (
        "pipelines.copy",
        "scheduled__2026-11-20",
        0,
        2,
    )
    assert (spec.source_topics, spec.sink_topic, spec.group_id) == (("src",), "out", "g")
    assert spec.ranges == Cursor()
    assert spec.prefix == "airflow-eos"


def test_the_log_names_the_connection(
    dag: DAG, runs: list[FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its errors have addresses only; the log has no secrets."""
    execute(make(dag))
    log = capsys.readouterr().out
    assert "Kafka connection 'kafka_default': broker:9092" in log
    assert "hunter2" not in log


def test_a_table_reaches_the_run_with_the_connection_of_its_catalog(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Dag names a connection; if that is missing, the try ends before any request."""
    table = IcebergTable("db.flights", catalog="lake", branch="audit")
    with pytest.raises(UnknownTable, match="catalog='lake'"):
        execute(make(dag, sink_topic=None, sink=table))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "iceberg", "host": "http://catalog:8181"}')
    execute(make(DAG("again", schedule=None), sink_topic=None, sink=table))
    (run,) = runs
    assert run.spec.sink == table
    assert run.spec.sink.properties == {"type": "rest", "uri": "http://catalog:8181"}
    assert run.spec.sink_topic is None


@pytest.mark.parametrize(
    "table",
    [
        IcebergTable("db.t", catalog="lake"),
        DeltaTable("s3://lake/t", connection="lake"),
        PostgresTable("db.t", connection="lake"),
    ],
    ids=lambda table: table.KIND,
)
def test_a_table_is_retried_while_the_api_server_is_away(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its API server does not answer, Airflow tells a task that the connection does not exist."""
    supervisor = mock.Mock(send=mock.Mock(side_effect=AirflowException("API_SERVER_ERROR")))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    with pytest.raises(EosError, match="API server") as raised:
        with_connection(table)
    assert supervisor.send.called
    assert not is_final(raised.value)


def test_every_parameter_reaches_the_run(dag: DAG, runs: list[FakeRun]) -> None:
    """The specification has every parameter of the operator."""
    ledger = LedgerSettings(topic="books", create=False)
    execute(
        make(
            dag,
            topics="one",
            pipeline="renamed.once",
            prefix="staging",
            source_partition=3,
            on_committed="fail",
            transaction_timeout=dt.timedelta(seconds=600),
            delivery_timeout=dt.timedelta(seconds=60),
            max_send_attempts=5,
            compression="lz4",
            ledger=ledger,
            ranges=Cursor(max_records=10),
        )
    )
    spec = runs[0].spec
    assert spec.source_topics == ("one",)
    assert (spec.pipeline, spec.prefix, spec.source_partition) == ("renamed.once", "staging", 3)
    assert (spec.on_committed, spec.compression, spec.max_send_attempts) == ("fail", "lz4", 5)
    assert spec.transaction_timeout == dt.timedelta(seconds=600)
    assert spec.delivery_timeout == dt.timedelta(seconds=60)
    assert spec.ledger == ledger
    assert spec.ranges == Cursor(max_records=10)


def test_the_runs_origin_is_this_airflow(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tries of all tasks name the same environment."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team")
    execute(make(dag))
    assert runs[0].spec.origin == "airflow.example.com/team"


def test_retry_after_a_neighbour_was_cleared_is_the_same_work(dag: DAG, runs: list[FakeRun]) -> None:
    """A clear of another task raises the Dag run's clear_number, not this task's."""
    operator = make(dag)
    execute(operator, clear_number=1, try_number=2, max_tries=2)
    assert runs[0].spec.clear_number == 0


def test_retries_that_were_lowered_are_no_clear(dag: DAG, runs: list[FakeRun]) -> None:
    """A task instance keeps the ``max_tries`` from its creation; its run was never cleared."""
    operator = make(dag)
    execute(operator, clear_number=0, try_number=2, max_tries=(operator.retries or 0) + 3)
    assert runs[0].spec.clear_number == 0


def test_each_clear_of_the_task_is_other_work(dag: DAG, runs: list[FakeRun]) -> None:
    """A clear gets a number that no earlier one had, and its retries keep it."""
    operator = make(dag)
    lives = [
        {"clear_number": 0, "try_number": 1, "max_tries": 2},
        {"clear_number": 1, "try_number": 2, "max_tries": 3},
        {"clear_number": 1, "try_number": 3, "max_tries": 3},
        {"clear_number": 5, "try_number": 4, "max_tries": 5},
    ]
    for life in lives:
        execute(operator, **life)
    assert [run.spec.clear_number for run in runs] == [0, 1, 1, 3]


@pytest.mark.parametrize(("index", "recorded"), [(-1, -1), (3, 3), (None, -1)])
def test_a_run_names_the_task_that_wants_it(
    dag: DAG, runs: list[FakeRun], index: int | None, recorded: int
) -> None:
    """Whatever its pipeline's name: its record belongs to a Dag."""
    execute(make(dag, pipeline="renamed"), map_index=index, start_date=START)
    assert runs[0].spec.task == {
        "dag_id": "pipelines",
        "task_id": "copy",
        "map_index": recorded,
        "run_id": "scheduled__2026-11-20",
        "max_tries": 2,
        "dag_run_start": "2026-11-20 00:00:00+00:00",
    }


def test_a_kill_before_there_is_a_run_reaches_it(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow continues the task after ``on_kill``: a run made later must know that it was killed."""
    operator = make(dag)
    build_spec = operator.build_spec

    def killed(context: Any) -> Any:
        operator.on_kill()
        return build_spec(context)

    monkeypatch.setattr(operator, "build_spec", killed)
    execute(operator)
    assert runs[0].kills == 1


@pytest.mark.parametrize(
    ("life", "may_create"),
    [
        ({"try_number": 1}, MayCreate.WHERE_NEW),
        ({"try_number": 2}, MayCreate.WHERE_NEW),
        ({"try_number": 2, "clear_number": 1, "max_tries": 3}, MayCreate.WHERE_BEGUN),
    ],
)
def test_a_clear_makes_no_ledger_unless_one_was_begun(
    dag: DAG,
    runs: list[FakeRun],
    monkeypatch: pytest.MonkeyPatch,
    life: dict[str, Any],
    may_create: MayCreate,
) -> None:
    """The evidence of its ledger may have expired if a run is cleared long after."""
    operator = make(dag)
    execute(operator, **life)
    assert runs[0].spec.may_create_ledger is may_create
    monkeypatch.setenv("AIRFLOW__EOS__CREATE_LEDGER", "False")
    execute(operator, **life)
    assert runs[1].spec.may_create_ledger is MayCreate.NEVER


def test_eos_section_gives_the_defaults(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefix and ledger come from [eos] at run time."""
    monkeypatch.setenv("AIRFLOW__EOS__PREFIX", "prod-eu")
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_TOPIC", "prod-ledger")
    monkeypatch.setenv("AIRFLOW__EOS__CREATE_LEDGER", "False")
    execute(make(dag))
    assert runs[0].spec.prefix == "prod-eu"
    assert runs[0].spec.ledger == LedgerSettings(topic="prod-ledger", create=False)


# -- ranges -----------------------------------------------------------------------------------------------


def test_data_interval_of_the_run_is_read(dag: DAG, runs: list[FakeRun]) -> None:
    """ranges="data_interval" reads exactly the Dag run's interval."""
    execute(make(dag, ranges="data_interval", allowed_lateness=dt.timedelta(seconds=9)))
    assert runs[0].spec.ranges == Interval(START, START + DAY, dt.timedelta(seconds=9))


def test_offsets_are_skipped_for_one_run(dag: DAG, runs: list[FakeRun]) -> None:
    """By a template of the Dag run's configuration, or as a literal."""
    operator = make(dag)
    context = make_context(operator)
    for wanted in ([["src", 0, 3, 5]], []):
        operator.skip_offsets = "{{ dag_run_conf['skip_offsets'] }}"
        operator.render_template_fields({**context, "dag_run_conf": {"skip_offsets": wanted}})
        operator.execute(context)
    operator.skip_offsets = [OffsetRange("src", 1, 0, 1)]
    operator.execute(context)
    assert [run.spec.skip_offsets for run in runs] == [
        (OffsetRange("src", 0, 3, 5),),
        (),
        (OffsetRange("src", 1, 0, 1),),
    ]
    operator.skip_offsets = "src:0:3"
    with pytest.raises(ConfigurationError, match="skip_offsets 'src:0:3' must be a list"):
        operator.execute(context)


def test_deleted_records_are_accepted_for_one_run_of_an_interval(dag: DAG, runs: list[FakeRun]) -> None:
    """A template decides for each Dag run; a cursor has another way."""
    accepted = Interval(START, START + DAY, accept_deleted=True)
    operator = make(dag, ranges="data_interval")
    context = make_context(operator)
    for wanted in (True, False):
        operator.accept_deleted = "{{ params.accept }}"
        operator.render_template_fields({**context, "params": {"accept": wanted}})
        operator.execute(context)
    operator.accept_deleted = True
    operator.ranges = PartitionInterval("k", Interval(START, START + DAY))
    operator.execute(context)
    assert [run.spec.ranges for run in runs] == [
        accepted,
        Interval(START, START + DAY),
        PartitionInterval("k", accepted),
    ]
    operator.ranges = Cursor()
    with pytest.raises(ConfigurationError, match="reset-offsets"):
        operator.execute(context)


def test_partition_of_the_run_is_read(dag: DAG, runs: list[FakeRun]) -> None:
    """A partitioned Dag run reads its partition, which its key names."""
    operator = make(dag, ranges="data_interval", partition_duration=DAY)
    no_interval = {"data_interval_start": None, "data_interval_end": None}
    execute(operator, partition_key="2026-11-20", partition_date=START, **no_interval)
    assert runs[0].spec.ranges == PartitionInterval("2026-11-20", Interval(START, START + DAY))


@pytest.mark.parametrize(
    ("logical_date", "warned"),
    [
        (START, False),
        (START + DAY + dt.timedelta(hours=7), False),
        (START + DAY, True),
        (START + 2 * DAY, True),
        (START - 3 * DAY, True),
        (None, False),
    ],
    ids=["scheduled", "triggered-today", "the-next-run's", "later", "earlier", "none"],
)
def test_a_date_far_from_the_interval_that_is_read_is_a_warning(
    dag: DAG,
    runs: list[FakeRun],
    logical_date: dt.datetime | None,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run triggered for a past day reads another interval: success, although that day is not read."""
    operator = make(dag, ranges="data_interval")
    execute(operator, logical_date=logical_date)
    assert runs[0].spec.ranges == Interval(START, START + DAY)
    assert ("does not choose the interval" in caplog.text) is warned
    if warned:  # the run of another day would count as the backfill of this one
        with pytest.raises(ConfigurationError, match="create the backfill again"):
            execute(operator, logical_date=logical_date, run_type="backfill")


def test_a_date_between_an_interval_and_the_trigger_is_no_warning(
    dag: DAG, runs: list[FakeRun], caplog: pytest.LogCaptureFixture
) -> None:
    """On a Sunday, the last interval of a schedule of work days ended on Friday."""
    sunday = START + 3 * DAY
    execute(make(dag, ranges="data_interval"), logical_date=sunday, run_after=sunday, run_type="manual")
    assert len(runs) == 1
    assert "does not choose the interval" not in caplog.text


@pytest.mark.parametrize(("run_type", "warned"), [("manual", True), ("scheduled", False)])
def test_a_triggered_run_of_a_trigger_timetable_warns_of_the_overlap(
    runs: list[FakeRun], run_type: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its interval ends at the trigger, and the next scheduled run starts from the last tick."""
    schedule = CronTriggerTimetable("@daily", timezone="UTC", interval=DAY)
    date = START + DAY if warned else START
    execute(
        make(DAG("daily", schedule=schedule), ranges="data_interval"), run_type=run_type, logical_date=date
    )
    assert len(runs) == 1
    assert ("CronTriggerTimetable have other intervals" in caplog.text) is warned
    assert "does not choose the interval" not in caplog.text


@pytest.mark.parametrize(("end", "warned"), [(START, False), (START + dt.timedelta(hours=2), True)])
def test_what_the_dag_run_before_has_read_is_a_warning(
    dag: DAG, runs: list[FakeRun], end: dt.datetime, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a change of the Dag's time zone: success, although hours are read twice."""
    operator = make(dag, ranges="data_interval")
    before = {"prev_data_interval_start_success": START - DAY, "prev_data_interval_end_success": end}
    operator.execute({**make_context(operator), **before})
    assert runs[0].spec.ranges == Interval(START, START + DAY)
    assert ("records in both are read twice" in caplog.text) is warned


def test_pre_execute_gives_a_key_of_several_parts_its_ranges(dag: DAG, runs: list[FakeRun]) -> None:
    """As the refusal of such a key advises; the topics may follow the key, too."""
    key, day = "2026-11-20|eu", {"partition_key": "2026-11-20|eu", "data_interval_start": START}

    def give(context: Any) -> None:
        given = PartitionInterval(context["dag_run"].partition_key, Interval(START, START + DAY))
        context["task"].ranges = given

    operator = make(dag, ranges="data_interval", pre_execute=give)
    with pytest.raises(ConfigurationError, match=r"the task's pre_execute: context\['task'\].ranges = "):
        execute(operator, **day)
    operator._pre_execute_hook(make_context(operator, **day))
    execute(operator, **day)
    assert runs[0].spec.ranges == PartitionInterval(key, Interval(START, START + DAY))


def test_given_ranges_are_taken_as_they_are(dag: DAG, runs: list[FakeRun]) -> None:
    """The Dag run's interval does not change explicit ranges."""
    ranges = Explicit((OffsetRange("src", 0, 1, 2),))
    execute(make(dag, ranges=ranges))
    assert runs[0].spec.ranges == ranges


@pytest.mark.parametrize(
    ("dag_run", "says"),
    [
        ({"data_interval_end": START}, "schedule=None.*CronDataIntervalTimetable"),
        ({"data_interval_end": START - DAY}, "ends before it starts"),
        ({"data_interval_start": None, "data_interval_end": None}, "logical date.*start as logical_date"),
        (
            {"data_interval_start": None, "data_interval_end": None, "partition_key": "k"},
            "its schedule, or an Airflow before 3.3, gives none.*PartitionInterval",
        ),
        (
            {
                "data_interval_start": None,
                "data_interval_end": None,
                "partition_key": "k",
                "partition_date": START,
            },
            "partition_duration",
        ),
    ],
)
def test_run_without_an_interval_fails_at_once_with_what_to_change(
    dag: DAG, runs: list[FakeRun], dag_run: dict[str, Any], says: str
) -> None:
    """An empty or missing interval is the author's to fix: no retry, no run."""
    with pytest.raises(ConfigurationError, match=says):
        execute(make(dag, ranges="data_interval"), **dag_run)
    assert runs == []


def test_cursor_tasks_run_one_at_a_time_unless_the_author_says_otherwise(dag: DAG) -> None:
    """Two Dag runs on one cursor would only fence each other."""
    limits = [
        make(DAG(f"d{number}", schedule=None), **changes).max_active_tis_per_dag
        for number, changes in enumerate(
            [{}, {"max_active_tis_per_dag": None}, {"max_active_tis_per_dag": 4}, {"ranges": "data_interval"}]
        )
    ]
    assert limits == [1, None, 4, None]


def test_default_args_set_the_limit_too() -> None:
    """The Dag's default_args override the cursor's default."""
    dag = DAG("limited", schedule=None, default_args={"max_active_tis_per_dag": 7})
    assert make(dag).max_active_tis_per_dag == 7


@pytest.mark.parametrize("policy", [TransactionRetryPolicy(), None])
def test_default_args_set_the_retry_policy_too(policy: Any) -> None:
    """The Dag's default_args override this package's policy, also None, which means Airflow's own rules."""
    given = make(DAG("given", schedule=None, default_args={"retry_policy": policy}))
    assert given.retry_policy is policy
    assert type(make(DAG("plain", schedule=None)).retry_policy).__name__ == "TransactionRetryPolicy"


# -- Spark ------------------------------------------------------------------------------------------------


def test_found_run_starts_no_spark(dag: DAG, runs: list[FakeRun], spark_starts: list[dict[str, str]]) -> None:
    """A run with a record in the ledger starts no JVM."""
    FakeRun.outcome = a_record(found=True)
    assert execute(make(dag))["found"] is True
    assert spark_starts == []


def test_spark_starts_when_the_run_asks_for_it(
    dag: DAG, runs: list[FakeRun], spark_starts: list[dict[str, str]]
) -> None:
    """Without a connection Spark runs locally; config_kwargs take precedence."""
    FakeRun.asks_for_spark = True
    execute(make(dag, config_kwargs={"spark.sql.shuffle.partitions": 4}))
    assert spark_starts == [
        {
            "spark.app.name": "pipelines-copy",
            "spark.master": "local[*]",
            **local_defaults("local[*]", private_folders=True),
            "spark.sql.shuffle.partitions": "4",
            "spark.ui.showConsoleProgress": "false",
            "spark.serializer.objectStreamReset": "4",
            "spark.python.unix.domain.socket.enabled": "true",
        }
    ]


@pytest.mark.parametrize("is_arrow", [True, False])
def test_the_jvm_is_told_whether_records_pass_it(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch, is_arrow: bool
) -> None:
    """With an Arrow process they do not, however many there are."""
    through_jvm: list[bool] = []

    def start(_session: TaskSession, _offsets: int, *, rows: bool) -> FakeSession:
        through_jvm.append(rows)
        return FakeSession()

    monkeypatch.setattr(TaskSession, "start", start)
    FakeRun.asks_for_spark = True
    execute(make(dag, process=arrow_process(lambda batch: batch) if is_arrow else lambda df: df))
    assert through_jvm == [not is_arrow]


@pytest.mark.parametrize("encrypted", [True, False])
def test_credentials_in_clear_are_refused_by_what_the_session_has(
    dag: DAG,
    runs: list[FakeRun],
    spark_starts: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    encrypted: bool,
) -> None:
    """spark-defaults.conf is known only once Spark runs, but no secret was sent by then."""
    monkeypatch.setenv("AIRFLOW__EOS__REQUIRE_ENCRYPTED_SPARK", "True")
    on = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    settings = {"spark.master": "spark://master:7077", **(on if encrypted else {})}
    monkeypatch.setattr(FakeSession, "settings", settings)
    FakeRun.asks_for_spark = True
    operator = make(dag, config_kwargs={"spark.master": "spark://master:7077"})
    if encrypted:
        execute(operator)
        return
    with pytest.raises(ConfigurationError, match="in clear over Spark's RPC at spark://master:7077"):
        execute(operator)


def test_process_gets_the_rendered_arguments(dag: DAG, runs: list[FakeRun]) -> None:
    """op_kwargs are bound to process."""

    def shift(df: int, by: int) -> int:
        return df + by

    execute(make(dag, process=shift, op_kwargs={"by": 5}))
    assert runs[0].process(1) == 6


# -- outcome ----------------------------------------------------------------------------------------------


def test_return_value_is_a_small_json_summary(dag: DAG, runs: list[FakeRun]) -> None:
    """XCom gets counts and ranges, all of which JSON can represent."""
    summary = execute(make(dag))
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["records_read"], summary["records_written"]) == (10, 10)


def test_outlet_events_tell_what_was_written(dag: DAG, runs: list[FakeRun]) -> None:
    """A kafka:// asset counts its own topic, another asset everything."""
    out = Asset("out", uri="kafka://broker:9092/out")
    other = Asset("report", uri="x://report")
    operator = make(dag, outlets=[out, other])
    context = make_context(operator)
    operator.execute(context)
    extra = context["outlet_events"][out].extra["airflow_eos"]
    assert (extra["records_written"], extra["written"]) == (7, {"out-0": 7})
    assert extra["ranges"] == [["src", 0, 5, 15]]
    assert context["outlet_events"][other].extra["airflow_eos"]["records_written"] == 10


def test_outlet_events_of_references_tell_the_same(
    runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asset.ref() names an asset of another Dag; an unresolvable name fails no commit."""
    asset = Asset("out", uri="kafka://broker:9092/out")

    def resolve(_: Any, reference: Any) -> Any:
        if reference == Asset.ref(name="away"):
            raise RuntimeError("API server is busy")
        return AssetUniqueKey.from_asset(asset), asset

    monkeypatch.setattr(OutletEventAccessors, "_resolve_asset_ref", resolve)
    for reference in (Asset.ref(name="out"), Asset.ref(uri=asset.uri)):
        outlets = [Asset.ref(name="away"), AssetAlias("any"), reference]
        operator = make(DAG(type(reference).__name__, schedule=None), outlets=outlets)
        context = make_context(operator)
        operator.execute(context)
        events = context["outlet_events"]
        assert list(events) == [asset]
        assert events[asset].extra["airflow_eos"]["written"] == {"out-0": 7}


def test_events_and_xcom_name_the_table_that_got_the_rows(dag: DAG, runs: list[FakeRun]) -> None:
    """An event of the table's asset counts its rows; the asset of a topic counts none."""
    table = {"sink": "iceberg:lake/db.t", "uuid": "u", "snapshot": 7, "files": 2, "rows": 9}
    FakeRun.outcome = a_record(receipts=(), details={"table": table})
    flights, topic = Asset("flights", uri="x://lake/db/t"), Asset("out", uri="kafka://broker:9092/out")
    operator = make(dag, outlets=[flights, topic])
    context = make_context(operator)
    summary = operator.execute(context)
    event = context["outlet_events"][flights].extra["airflow_eos"]
    assert (event["records_written"], event["written"]) == (9, {"iceberg:lake/db.t": 9})
    assert event["table"] == summary["table"] == table
    assert context["outlet_events"][topic].extra["airflow_eos"]["records_written"] == 0


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that moves only by pauses; lists the pauses."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("airflow_eos.operators.last_answer.time", clock)
    return slept


@pytest.mark.parametrize("error", [RunFenced("by epoch 7"), OutcomeUnknown("no coordinator")])
def test_commit_that_another_attempt_made_is_this_trys_success(
    dag: DAG, runs: list[FakeRun], error: Exception
) -> None:
    """Also on the last try: no later retry would find it."""
    FakeRun.outcome, FakeRun.ledger = error, [a_record(found=True)]
    assert execute(make(dag), try_number=3)["found"] is True


@pytest.mark.parametrize("answer", [None, AuthorizationFailed("no READ on the ledger")])
def test_fenced_try_without_a_commit_fails_as_fenced(dag: DAG, runs: list[FakeRun], answer: Any) -> None:
    """If the ledger has no record, or no answer, the error stays: the retry policy decides."""
    FakeRun.outcome, FakeRun.ledger = RunFenced("by epoch 7"), [answer]
    with pytest.raises(RunFenced, match="epoch 7"):
        execute(make(dag))


def test_fenced_by_a_run_that_on_committed_refuses_fails_for_good(dag: DAG, runs: list[FakeRun]) -> None:
    """``on_committed="fail"`` also applies to a commit that is found late."""
    FakeRun.outcome, FakeRun.ledger = RunFenced("by epoch 7"), [RunAlreadyCommitted("by run r0")]
    with pytest.raises(RunAlreadyCommitted):
        execute(make(dag, on_committed="fail"))


def test_ledger_is_asked_until_the_brokers_are_back(
    dag: DAG, runs: list[FakeRun], pauses: list[float]
) -> None:
    """Some minutes without brokers hide no commit; after that the try fails with its own error."""
    away = BrokersUnavailable("no broker answered")
    FakeRun.outcome, FakeRun.ledger = OutcomeUnknown("no coordinator"), [away] * 8 + [a_record(found=True)]
    assert execute(make(dag))["found"] is True
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    pauses.clear()
    FakeRun.ledger = [away]
    with pytest.raises(OutcomeUnknown):
        execute(make(DAG("longer", schedule=None)))
    assert 270 <= sum(pauses) <= 300


def _error_classes(base: type[EosError]) -> list[type[EosError]]:
    return [base, *(deep for sub in base.__subclasses__() for deep in _error_classes(sub))]


FINAL = {
    "AuthorizationFailed",
    "BrokerUnsupported",
    "ConfigurationError",
    "CredentialsRefused",
    "CursorMoved",
    "DifferentWork",
    "GroupOwned",
    "IntervalUnaccountable",
    "LedgerPruned",
    "LedgerReplaced",
    "LedgerTampered",
    "LedgerTruncated",
    "NoStartingPoint",
    "OffsetsOutOfRange",
    "OutputLost",
    "RecordRefused",
    "RecordTooLarge",
    "RunAlreadyCommitted",
    "TableRefused",
    "TableReplaced",
    "TableRewritten",
    "TimeoutsInconsistent",
    "TopicRecreated",
    "UnsupportedMagic",
    "UntranslatableConfig",
}


@pytest.mark.parametrize(
    "kind",
    [kind for kind in _error_classes(EosError) if kind.__module__ == exceptions.__name__],
    ids=lambda kind: kind.__name__,
)
def test_each_error_retries_or_fails_as_the_table_says(
    dag: DAG, runs: list[FakeRun], kind: type[EosError]
) -> None:
    """Errors that need a person fail the task; all others, including RunFenced, are retried."""
    assert kind.__name__ in vars(exceptions)
    error = kind.__new__(kind, "the reason")
    error.args = ("the reason",)
    FakeRun.outcome = error
    operator = make(dag)
    with pytest.raises(kind, match="the reason") as caught:
        execute(operator)
    policy = operator.retry_policy
    assert policy is not None
    decision = policy.evaluate(caught.value, 1, 2, None)
    assert (decision.action is RetryAction.FAIL) == (kind.__name__ in FINAL)


@pytest.mark.parametrize(
    "raised",
    [
        AirflowSkipException("nothing to do"),
        AirflowFailException("poisoned"),
        AirflowRescheduleException(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)),
        type("Ours", (AirflowFailException,), {})("a class of the author's"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_what_process_asks_of_airflow_is_done(
    dag: DAG, runs: list[FakeRun], raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception itself is raised, so that Airflow acts on it whatever the task's retry policy is."""
    FakeRun.outcome = ProcessFailed("process failed: no")
    FakeRun.outcome.__cause__ = raised
    with caplog.at_level("INFO"), pytest.raises(type(raised)) as caught:
        execute(make(dag))
    assert caught.value is raised
    skipped = isinstance(raised, AirflowSkipException)
    assert ("nothing of this run, or of this round, is committed" in caplog.text) == skipped


@pytest.mark.parametrize("name", ["AirflowSkipException", "AirflowFailException"])
def test_what_process_asks_of_airflow_on_an_executor_is_done(
    dag: DAG, runs: list[FakeRun], name: str
) -> None:
    """Only the names of the classes are known there."""
    raised = ("mine.Special", f"airflow.exceptions.{name}", "builtins.Exception")
    FakeRun.outcome = ProcessFailed("process failed at src-0, offset 7", raised=raised)
    with pytest.raises(Exception, match="process failed at src-0, offset 7") as caught:
        execute(make(dag))
    assert type(caught.value).__name__ == name


def test_what_process_asked_in_vain_stays_its_failure(dag: DAG, runs: list[FakeRun]) -> None:
    """Airflow's other exceptions, such as for a missing connection, are ordinary failures."""
    FakeRun.outcome = ProcessFailed("process failed", raised=("airflow.exceptions.AirflowNotFoundException",))
    FakeRun.outcome.__cause__ = AirflowNotFoundException("no connection")
    with pytest.raises(ProcessFailed):
        execute(make(dag))


def test_nothing_read_succeeds_or_skips_as_the_author_says(dag: DAG, runs: list[FakeRun]) -> None:
    """on_empty: an empty run commits in both cases; skip also skips downstream tasks."""
    FakeRun.outcome = a_record(records_read_by_partition={"src-0": 0}, receipts=())
    assert execute(make(dag))["records_read"] == 0
    with pytest.raises(AirflowSkipException, match="committed"):
        execute(make(DAG("other", schedule=None), on_empty="skip"))
    FakeRun.outcome = a_record()
    assert execute(make(DAG("third", schedule=None), on_empty="skip"))["records_read"] == 10
    with pytest.raises(ConfigurationError, match="on_empty"):
        make(DAG("fourth", schedule=None), on_empty="ignore")


def test_on_kill_ends_this_attempt_only(dag: DAG, runs: list[FakeRun]) -> None:
    """on_kill kills the run of this process."""
    operator = make(dag)
    execute(operator)
    operator.on_kill()
    assert [run.kills for run in runs] == [1]


class TimedOut(BaseException):
    """Like Airflow's ``AirflowTaskTimeout``."""


@contextlib.contextmanager
def time_out() -> Iterator[None]:
    """Airflow's ``execution_timeout``: a signal raises it once, at any point of the task."""

    def interrupt(*_: Any) -> None:
        raise TimedOut

    timer, handler = signal.setitimer(signal.ITIMER_REAL, 600), signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_a_time_out_that_python_drops_is_raised_again(
    dag: DAG, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost in the callback of a weak reference, for example while Spark's modules are imported."""
    dropped: list[Any] = []

    def hang_as_the_time_is_over(_: Any) -> None:
        _, repeated = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, 0.05, repeated)
        time.sleep(5)

    def hang(_: Any) -> Any:
        thing = type("Thing", (), {})()
        reference = weakref.ref(thing, hang_as_the_time_is_over)
        del thing
        time.sleep(5)
        return reference

    monkeypatch.setattr(sys, "unraisablehook", lambda lost: dropped.append(lost.exc_type))
    monkeypatch.setattr(compat, "TIME_OUT_AGAIN", 0.1)
    monkeypatch.setattr(FakeRun, "execute", hang)
    with pytest.raises(TimedOut), time_out():
        execute(make(dag))
    assert dropped == [TimedOut]


# -- secrets and templates --------------------------------------------------------------------------------


def test_secrets_stay_in_the_connection(dag: DAG, runs: list[FakeRun]) -> None:
    """The password is in the configuration for the run, and in nothing that Airflow shows."""
    operator = make(dag)
    execute(operator)
    spec = runs[0].spec
    assert spec.kafka["sasl.password"] == "hunter2-secret"
    shown = [
        repr(operator),
        repr(spec),
        str({name: getattr(operator, name) for name in operator.template_fields}),
    ]
    shown.append(str({key: value for key, value in vars(operator).items() if key != "_run"}))
    assert not [text for text in shown if "hunter2" in text]


def test_fields_are_templated(dag: DAG, runs: list[FakeRun]) -> None:
    """Topics, group, connection, pipeline and prefix are rendered for each run."""
    operator = make(
        dag,
        topics=["src-{{ params.region }}"],
        sink_topic="out-{{ params.region }}",
        group_id="g-{{ params.region }}",
        pipeline="p-{{ params.region }}",
        prefix="x-{{ params.region }}",
        op_kwargs={"region": "{{ params.region }}"},
        process=lambda df, region: (df, region),
    )
    context = make_context(operator)
    operator.render_template_fields({**context, "params": {"region": "eu"}})
    operator.execute(context)
    spec = runs[0].spec
    assert (spec.source_topics, spec.sink_topic, spec.group_id) == (("src-eu",), "out-eu", "g-eu")
    assert (spec.pipeline, spec.prefix) == ("p-eu", "x-eu")
    assert runs[0].process(None) == (None, "eu")


@pytest.mark.parametrize("dag_id", ["한국어_집계", "d" * 250, "a.b-c_d", "ćwiczenie"])
def test_any_dag_id_that_airflow_allows_names_a_pipeline(runs: list[FakeRun], dag_id: str) -> None:
    """Kafka accepts any text in ids, so no `pipeline=` is needed."""
    operator = ReadProcessWriteOperator(
        task_id="t" * 250,
        dag=DAG(dag_id, schedule=None),
        process=copy,
        topics="src",
        sink_topic="out",
        group_id="shop:orders/1",
    )
    execute(operator)
    assert runs[0].spec.pipeline == f"{dag_id}.{'t' * 250}"
    assert runs[0].spec.group_id == "shop:orders/1"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("template", "given", "read"),
    [
        ("{{ params.topics }}", ["a", "b"], ("a", "b")),
        ("{{ params.topics | tojson }}", ["a", "b"], ("a", "b")),
        ("{{ params.topics }}", ("a", "b"), ("a", "b")),
        (" {{ params.topics }} ", ["a"], ("a",)),
        ("{{ params.topics }}", "a", ("a",)),
        (["{{ params.topics }}", "c"], "a", ("a", "c")),
    ],
)
def test_a_list_of_topics_may_be_rendered(
    runs: list[FakeRun], template: Any, given: Any, read: tuple[str, ...], native: bool
) -> None:
    """As its text, or as the list itself if the Dag renders native objects."""
    operator = make(DAG("pipelines", schedule=None, render_template_as_native_obj=native), topics=template)
    context = make_context(operator)
    operator.render_template_fields({**context, "params": {"topics": given}})
    operator.execute(context)
    assert runs[0].spec.source_topics == read


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topics": "{{ params.x }}"}, "topics must be the name of a topic, got 20251124: .* made of digits"),
        ({"topics": ["{{ params.x }}"]}, "got 20251124: .* made of digits"),
        ({"sink_topic": "{{ params.x }}"}, "sink_topic must be .* made of digits"),
        ({"dead_letter_topic": "{{ params.x }}"}, "dead_letter_topic must be .* made of digits"),
        ({"group_id": "{{ params.x }}"}, "group_id must be text, got 20251124: .* made of digits"),
        ({"pipeline": "{{ params.x }}"}, "pipeline must be text, got 20251124: .* made of digits"),
        ({"prefix": "{{ params.x }}"}, "prefix must be text, got 20251124: .* made of digits"),
        ({"topics": "{{ params.none }}"}, "topics must be the name of a topic, got None"),
        ({"topics": "{{ params.mapping }}"}, "topics must be a list of topics, got {'a': 1}"),
        ({"topics": "[1, {{ params.x }}]"}, "topics must be the name of a topic, got 1"),
        ({"source_partition": "{{ params.text }}"}, "source_partition must be the number of a partition"),
    ],
)
def test_what_a_native_template_makes_of_a_name_is_said(
    runs: list[FakeRun], changes: dict[str, Any], message: str
) -> None:
    """A name of digits becomes a number: final, and the error says so."""
    operator = make(DAG("pipelines", schedule=None, render_template_as_native_obj=True), **changes)
    context = make_context(operator)
    params = {"x": "20251124", "none": None, "mapping": {"a": 1}, "text": "first"}
    operator.render_template_fields({**context, "params": params})
    with pytest.raises(ConfigurationError, match=message) as failed:
        operator.execute(context)
    assert is_final(failed.value)
    assert not runs


def test_wrong_names_fail_at_once(dag: DAG, runs: list[FakeRun]) -> None:
    """The author has to fix what RunSpec refuses."""
    with pytest.raises(ConfigurationError, match="transactional id"):
        execute(make(dag, group_id="a" * 8_001))


def test_process_must_be_callable_or_a_name(dag: DAG) -> None:
    """Anything else is refused when the Dag is parsed."""
    with pytest.raises(ConfigurationError, match="function or a string"):
        make(dag, process=3)


def test_one_mapped_task_per_partition(dag: DAG, runs: list[FakeRun]) -> None:
    """Expanding over source_partition gives each task its partition; there is no limit of one at a time."""
    mapped = ReadProcessWriteOperator.partial(
        task_id="mapped", dag=dag, process=copy, topics=["src"], sink_topic="out", group_id="g"
    ).expand(source_partition=[0, 1, 2])
    for partition in (0, 2):
        execute(mapped.unmap({"source_partition": partition}), map_index=partition)
    assert [run.spec.source_partition for run in runs] == [0, 2]
    assert {run.spec.pipeline for run in runs} == {"pipelines.mapped"}
    assert mapped.max_active_tis_per_dag is None


def test_mapped_instances_that_would_be_one_run_are_refused(dag: DAG, runs: list[FakeRun]) -> None:
    """A run's name holds no map index: all but the first would find their work committed by it."""
    given = [{"group_id": "g-eu", "sink_topic": "eu"}, {"group_id": "g-us", "sink_topic": "us"}]
    mapped = ReadProcessWriteOperator.partial(
        task_id="mapped", dag=dag, process=copy, topics=["src"]
    ).expand_kwargs(given)
    for index, kwargs in enumerate(given):
        with pytest.raises(ConfigurationError, match=rf"map index {index}.*pipeline of its own"):
            execute(mapped.unmap(kwargs), map_index=index)
    assert runs == []


def test_mapped_instances_with_a_pipeline_each_are_runs_of_their_own(dag: DAG, runs: list[FakeRun]) -> None:
    """Expanded or templated, the author's name tells them apart."""
    mapped = ReadProcessWriteOperator.partial(
        task_id="mapped", dag=dag, process=copy, topics=["src"], sink_topic="out", pipeline="by.{{ region }}"
    ).expand(group_id=["eu", "us"])
    for index, region in enumerate(["eu", "us"]):
        operator = mapped.unmap({"group_id": region})
        context = make_context(operator, map_index=index)
        operator.render_template_fields({**context, "region": region})
        operator.execute(context)
    assert [run.spec.pipeline for run in runs] == ["by.eu", "by.us"]


def test_operator_survives_serialization(dag: DAG) -> None:
    """The scheduler's copy of the Dag keeps the operator's link to its class and its limit."""
    from tests.support.airflow_serialization import DagSerialization

    make(dag)
    data = DagSerialization.to_dict(dag)
    task = DagSerialization.from_dict(json.loads(json.dumps(data))).get_task("copy")
    assert task.task_type == "ReadProcessWriteOperator"
    assert task.max_active_tis_per_dag == 1
