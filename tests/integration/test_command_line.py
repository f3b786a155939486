"""Every command against a real broker: what it prints, what it changes, and its exit code."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from airflow_eos.cli import commands
from airflow_eos.cli.definition import COMMANDS
from airflow_eos.cli.main import main, parser
from airflow_eos.engine import control_plane
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import CursorMoved, EosError, OffsetsOutOfRange, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.operations import cursor_agreement, group_progress, upkeep
from airflow_eos.operations.queries import ledger_records
from airflow_eos.run.states import State
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import LocalDataPlane, LocalSealed, Paused, Pipeline
from tests.support.markers import wait_for_markers
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until
from tests.support.topic_settings import change_topic_and_wait

NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)
Cli = Callable[..., tuple[int, Any]]


@pytest.fixture
def pipeline(embedded_kafka: Any) -> Iterator[Pipeline]:
    # A single broker never forgets a topic; the tests look for missing ledgers again and again.
    with missing_at_once():
        yield Pipeline(embedded_kafka)


@pytest.fixture
def cli(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command on the pipeline's ledger with ``--output json``; return exit code and document."""

    def run(command: str, *arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
        code = main([command, *options, "--prefix", "test", "--output", "json", *arguments])
        printed = capsys.readouterr()
        assert (code in (0, 3)) == (printed.err == ""), printed.err
        return code, json.loads(printed.out) if printed.out else printed.err

    return run


def move_group(pipeline: Pipeline, offset: int, partition: int = 0) -> None:
    """Commit an offset as a consumer that knows nothing of cursors does."""
    spec = pipeline.spec
    commit_offset(spec.kafka, spec.group_id, pipeline.source, offset, partition=partition)


def error_of(document: Any) -> tuple[str, str]:
    return document["error"]["type"], document["error"]["message"]


# -- init ---------------------------------------------------------------------------------------------------


def test_init_makes_the_ledger_once(cli: Cli, pipeline: Pipeline) -> None:
    """The first call creates topic and identity; a second one finds both."""
    code, first = cli("init", "--partitions", "2", "--replication-factor", "1")
    assert code == 0
    assert first["ledger"]["topic"] == pipeline.ledger
    assert first["ledger"]["partitions"] == 2
    assert ledger_keys(pipeline) == [keys.LEDGER_IDENTITY_KEY]
    assert cli("init") == (0, first)


def test_init_makes_no_ledger_of_a_topic_that_deletes(cli: Cli, pipeline: Pipeline) -> None:
    """Another application may use it, or it would forget runs; once compacted, it is a ledger."""
    pipeline.kafka.create_topic(pipeline.ledger, partitions=2)
    code, refused = cli("init")
    assert (code, error_of(refused)[0]) == (1, "ConfigurationError")
    assert "cleanup.policy=delete" in error_of(refused)[1]
    admin = AdminClient(pipeline.kafka.client_config())
    change_topic_and_wait(admin, pipeline.ledger, {"cleanup.policy": "compact"})
    assert cli("init")[0] == 0


def test_a_ledger_with_added_partitions_knows_its_runs(cli: Cli, pipeline: Pipeline) -> None:
    """Partitions cannot be removed; every key is looked up, and written, in the same partition as before."""
    pipeline.publish(["a"])
    first = pipeline.run("r1")

    def places(*, verified: bool) -> list[int]:
        with ControlPlane(pipeline.spec) as control:
            if verified:
                control.verify_ledger()
            return [control.ledger.partition_for(str(number)) for number in range(20)]

    before = places(verified=True)
    pipeline.add_partitions(pipeline.ledger, 7)
    assert places(verified=True) == places(verified=False) == before
    assert replace(pipeline.run("r1"), trace=()) == replace(first, trace=())
    pipeline.publish(["b"])
    assert pipeline.run("r2").records_read == 1
    assert pipeline.output() == ["a", "b"]
    code, report = cli("doctor")
    ledger = {check["name"]: check for check in report["checks"]}["ledger"]
    assert (code, ledger["status"], ledger["found"].split(", ")[-1]) == (0, "ok", "2 partitions")


def test_broker_that_is_not_there_is_an_error_in_both_forms(
    unused_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1: one line on standard error, and an object for programs."""
    monkeypatch.setattr("airflow_eos.broker.shared_connections.BOOTSTRAP_TIMEOUT", 0.5)
    options = ["--bootstrap-servers", f"127.0.0.1:{unused_port}"]
    assert main(["status", *options, "--output", "json"]) == 1
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert printed.err.strip() == f"{error['type']}: {error['message']} ({error['docs']})"
    assert str(unused_port) in error["message"]
    assert main(["status", *options]) == 1
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)


def test_wrong_usage_ends_with_2(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do not fit together are named before any request is sent."""
    for command, *arguments in (
        ("abort",),
        ("abort", "--group", "g", "--transactional-id", "t"),
        ("abort", "--group", "g", "--yes"),
        ("reset-offsets", "--group", "g"),
        ("reset-offsets", "--group", "g", "--to", "latest", "--offset", "t:0=1"),
        ("reset-offsets", "--group", "g", "--offset", "t-0=1"),
        ("reset-offsets", "--group", "g", "--offset", "t:0=\N{ARABIC-INDIC DIGIT ONE}"),
        ("reset-offsets", "--group", "g", "--topic", "a", "--offset", "b:0=1"),
        ("reset-offsets", "--group", "g", "--offset", "a:0=1", "--offset", "a:1=1", "--offset", "a:0=2"),
        ("status", "--run", "no-run-id"),
        ("ledger", "--pipeline", "p", "--key", "k"),
        ("prune", "--before", "yesterday"),
        ("doctor", "--table", "no-namespace"),
        ("doctor", "--table", "postgres:c"),
        ("doctor", "--table", "delta:http://[::1"),
        ("plan", "--pipeline", "p", "--group", "g", "--topic", "t", "--interval", "2026-11-01", "2026-11-02"),
        ("plan", "--pipeline", "p", "--group", "g", "--topic", "t", "--accept-deleted"),
        ("plan", "--pipeline", "p", "--group", "g", "--topic", "t", "--allowed-lateness", "0"),
    ):
        code, message = cli(command, *arguments)
        assert (code, message.startswith(f"{command}: ")) == (2, True), (command, message)
    for parsed in (
        ["status"],
        ["status", "--bootstrap-servers", ""],
        ["ledger", "--bootstrap-servers", "a:1", "--pipeline", "p" * 8_001],
        ["ledger", "--bootstrap-servers", "a:1", "--key", ""],
        ["reset-offsets", "--bootstrap-servers", "a:1", "--group", "", "--to", "latest"],
        ["reset-offsets", "--bootstrap-servers", "a:1", "--group", "g", "--to", "latest", "--pipeline", ""],
        ["repair", "--bootstrap-servers", "a:1", "--topic", "a/b"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(parsed)
        assert stopped.value.code == 2


def test_settings_come_from_a_file_and_stay_there(
    pipeline: Pipeline, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Passwords appear neither on the command line nor in the output."""
    file = tmp_path / "client.json"
    file.write_text(json.dumps({**pipeline.kafka.client_config(), "sasl.password": "hunter2"}))
    main(["status", "--config", str(file), "--ledger-topic", pipeline.ledger, "--output", "json"])
    printed = capsys.readouterr()
    assert error_of(json.loads(printed.out))[0] == "LedgerMissing"
    assert "hunter2" not in printed.out + printed.err
    secret = '{"sasl.password": "hunter2"}'
    for text, reason in ((f"[{secret}]", "one JSON object"), (secret[:-1], "delimiter"), (secret, "missing")):
        file.write_text(text)
        assert main(["status", "--config", str(file), "--output", "json"]) == 1
        printed = capsys.readouterr()
        assert reason in printed.err
        assert "hunter2" not in printed.out + printed.err


# -- doctor -------------------------------------------------------------------------------------------------


def test_doctor_finds_a_healthy_pipeline_healthy(cli: Cli, pipeline: Pipeline) -> None:
    """Every part is checked, and all checks pass after a run."""
    pipeline.publish(["a"])
    pipeline.run()
    code, report = cli(
        "doctor", "--group", pipeline.spec.group_id, "--source", pipeline.source, "--sink", pipeline.sink
    )
    assert (code, report["healthy"], report["failed"]) == (0, True, []), report
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    assert set(statuses) == {
        "brokers",
        "hanging transactions",
        "prefix",
        "partition verification",
        "time-outs",
        "expiry of ids",
        "transactional id",
        "ledger",
        "ledger topic",
        "ledger topic replicas",
        "ledger records",
        "ledger writers",
        "ledger settings",
        f"topic {pipeline.source}",
        f"topic {pipeline.sink}",
        f"topic {pipeline.sink} replicas",
        f"end of topic {pipeline.source}",
        f"end of topic {pipeline.ledger}",
        f"topic {pipeline.source} retention",
        f"topic {pipeline.source} timestamps",
        f"topic {pipeline.sink} retention",
        f"group {pipeline.spec.group_id}",
    }
    assert set(statuses.values()) == {"ok"}
    assert all(set(check) == {"name", "status", "found", "advice"} for check in report["checks"])


def test_doctor_names_what_is_wrong_and_what_to_do(cli: Cli, pipeline: Pipeline) -> None:
    """A ledger that deletes, a moved group, a missing topic, time-outs that do not fit: exit code 3."""
    pipeline.spec = replace(pipeline.spec, group_id=f"{pipeline.spec.group_id} & it's")
    pipeline.publish(["a", "b"])
    pipeline.run()
    move_group(pipeline, 1)
    admin = AdminClient(pipeline.kafka.client_config())
    change_topic_and_wait(admin, pipeline.ledger, {"cleanup.policy": "delete"})
    group = f"group {pipeline.spec.group_id}"
    code, report = cli(
        "doctor",
        *("--group", pipeline.spec.group_id, "--source", "not-there"),
        *("--transaction-timeout", "100", "--delivery-timeout", "80"),
    )
    assert (code, report["healthy"]) == (3, False)
    assert report["failed"] == ["time-outs", "ledger settings", "topic not-there", group]
    checks = {check["name"]: check for check in report["checks"]}
    assert "cleanup.policy=delete" in checks["ledger settings"]["found"]
    to_cursor, to_committed = re.findall("`(.*?)`", checks[group]["advice"])
    assert pasted(to_cursor, pipeline)["offsets"] != pasted(to_committed, pipeline)["offsets"]
    assert "committed 1, cursor 2" in checks[group]["found"]


def test_doctor_warns_of_what_retention_deletes_and_of_timestamps_without_a_limit(
    cli: Cli, embedded_kafka: Any
) -> None:
    """History on topics that keep a week; a source that takes the year 2100; an interval of last year."""
    week = {"retention.ms": "604800000"}
    history = Pipeline(
        embedded_kafka,
        source_config={"message.timestamp.after.max.ms": str(2**63 - 1)},
        sink_config=week,
        prefix="test",
    )
    history.publish(["old"], timestamp=1_514_764_800_000)
    young = Pipeline(embedded_kafka, source_config=week)
    young.publish(["new"])

    def warned(*options: str) -> list[str]:
        code, report = cli("doctor", *options)
        assert code == 0
        checks = {check["name"]: check for check in report["checks"]}
        return sorted(n for n, check in checks.items() if n.startswith("topic") and check["status"] == "warn")

    both = ("--source", history.source, "--sink", history.sink)
    assert warned(*both) == sorted([f"topic {history.source} timestamps", f"topic {history.sink} retention"])
    assert warned("--source", young.source, "--sink", young.sink) == []
    interval = ("--interval", "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z")
    assert warned("--source", young.source, *interval) == [f"topic {young.source} retention"]


def test_doctor_without_a_ledger_warns_without_a_broker_stops(
    cli: Cli,
    unused_port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first run may create the ledger; without an answer from brokers no other check is possible."""
    with caplog.at_level(logging.INFO):
        code, report = cli("doctor")
    assert code == 0
    assert "Only writer" not in caplog.text, "a check is no run"
    (ledger,) = [check for check in report["checks"] if check["name"] == "ledger"]
    assert ledger["status"] == "warn"
    assert ("does not exist" in ledger["found"], "airflow eos init" in ledger["advice"]) == (True, True)
    assert "python -m" not in f"{ledger}"
    assert [check["status"] for check in report["checks"] if check["name"] == "prefix"] == ["ok"]
    monkeypatch.setattr("airflow_eos.broker.shared_connections.BOOTSTRAP_TIMEOUT", 0.5)
    assert main(["doctor", "--bootstrap-servers", f"127.0.0.1:{unused_port}", "--output", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in report["checks"]] == ["brokers"]


@pytest.mark.parametrize("ranges", [Cursor(), Interval(NOON, NOON + dt.timedelta(hours=1))])
def test_doctor_finds_a_group_beside_another_ledger(
    cli: Cli, pipeline: Pipeline, ranges: Cursor | Interval
) -> None:
    """Its next run is refused, as if the ledger had been recreated."""
    pipeline.publish(["a"])
    pipeline.run("r1", ranges=ranges)
    other = ("--ledger-topic", f"{pipeline.ledger}-other")
    options = ("--group", pipeline.spec.group_id, "--source", pipeline.source, *other)

    def group() -> Any:
        return {row["name"]: row for row in cli("doctor", *options)[1]["checks"]}[f"group {options[1]}"]

    missing = group()
    cli("init", *other, "--partitions", "2")
    for check in (missing, group()):
        assert check["status"] == "fail"
        assert f"LedgerReplaced: group '{options[1]}" in check["found"]


def test_doctor_warns_of_fewer_replicas_than_old_brokers_write(cli: Cli, pipeline: Pipeline) -> None:
    """Only old brokers, such as 3.6, refuse writes there."""
    few = {"min.insync.replicas": "2"}
    pipeline.kafka.create_topic(f"{pipeline.sink}-few", config=few)
    pipeline.publish(["a"])
    assert pipeline.run("r1", sink_topic=f"{pipeline.sink}-few").records_written == 1
    code, report = cli("doctor", "--sink", f"{pipeline.sink}-few")
    replicas = {check["name"]: check for check in report["checks"]}[f"topic {pipeline.sink}-few replicas"]
    assert (code, replicas["status"], "3.6" in replicas["advice"]) == (0, "warn", True)


def test_doctor_warns_of_a_prefix_that_everybody_has(cli: Cli) -> None:
    """The prefix works until another environment uses it, too."""
    code, report = cli("doctor", "--prefix", "airflow-eos")
    checks = {check["name"]: check for check in report["checks"]}
    assert (code, checks["prefix"]["status"]) == (0, "warn")
    assert "[eos] prefix" in checks["prefix"]["advice"]


def test_doctor_compares_versions_on_the_executors(pipeline: Pipeline) -> None:
    """In a separate process, as users run it: a session starts, and ends with the process."""
    command = [sys.executable, "-m", "airflow_eos", "doctor", "--spark", "local[1]", "--output", "json"]
    options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, *options], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    check = json.loads(done.stdout)["checks"][-1]
    assert (check["name"], check["status"]) == ("executors of local[1]", "ok")
    assert "pyarrow" in check["found"]


def test_doctor_goes_on_behind_a_table_without_a_connection(cli: Cli, pipeline: Pipeline) -> None:
    """An Airflow connection that is missing is one failed check among all the others."""

    def connected(_: object) -> None:
        raise UnknownTable("connection 'iceberg_default' is not there")

    options = parser().parse_args(
        ["doctor", "--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--table", "db.orders"]
    )
    options.connected = connected
    outcome = commands.doctor(pipeline.spec.deployment, options)
    assert (outcome.code, outcome.data["failed"]) == (3, ["table db.orders"])
    assert "brokers" in {check["name"] for check in outcome.data["checks"]}


# -- plan ---------------------------------------------------------------------------------------------------


def test_plan_shows_the_next_run_and_changes_nothing(cli: Cli, pipeline: Pipeline) -> None:
    """It shows the ranges that a cursor run then reads; the cursor does not move."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    pipeline.publish(["c"], partition=1)
    options = (
        "--pipeline",
        pipeline.spec.pipeline,
        "--group",
        pipeline.spec.group_id,
        "--topic",
        pipeline.source,
    )
    code, plan = cli("plan", *options, "--run-id", "r2")
    assert code == 0
    assert plan["ranges"] == [[pipeline.source, 0, 2, 2], [pipeline.source, 1, 0, 1]]
    assert (plan["mode"], plan["records_at_most"], plan["committed"]) == ("cursor", 1, None)
    assert plan["transactional_id"] == keys.cursor_transactional_id("test", pipeline.spec.group_id)
    assert [offsets.to_list() for offsets in pipeline.run("r2").ranges] == plan["ranges"]
    _, plan = cli("plan", *options, "--run-id", "r2", "--max-records", "1")
    assert (plan["committed"]["run_id"], plan["notes"]) == ("r2", [])
    pipeline.run("r3", ranges=Explicit((OffsetRange(pipeline.source, 1, 1, 1),), advance=True))
    _, plan = cli("plan", *options, "--run-id", "r3")
    assert plan["notes"] == [
        "the ledger's record is of other work: range mode: recorded 'explicit', asked 'cursor'",
        f"the ledger's record is of other work: ranges: recorded {pipeline.source}-1 [1, 1), asked no others",
        "the ledger's record is of other work: advance: recorded True, asked False",
    ]


def test_plan_of_an_interval_pins_nothing(cli: Cli, pipeline: Pipeline) -> None:
    """Boundaries are computed and shown as not pinned; the run pins them."""
    pipeline.publish(["old"], timestamp=int(NOON.timestamp() * 1000) - 1)
    pipeline.publish(["new"], timestamp=int(NOON.timestamp() * 1000))
    hour = dt.timedelta(hours=1)
    cli("init", "--partitions", "2")
    options = (
        "--pipeline",
        pipeline.spec.pipeline,
        "--group",
        pipeline.spec.group_id,
        "--topic",
        pipeline.source,
    )
    interval = ("--interval", "2026-11-01T11:00:00Z", "2026-11-01T12:00:00+00:00")
    code, plan = cli("plan", *options, *interval)
    assert (code, plan["mode"], plan["advances"]) == (0, "interval", False)
    assert plan["ranges"] == [[pipeline.source, 0, 0, 1], [pipeline.source, 1, 0, 0]]
    assert len(plan["notes"]) == 2
    assert not [key for key in ledger_keys(pipeline) if key.startswith(keys.BOUNDARIES)]
    record = pipeline.run(ranges=Interval(NOON - hour, NOON))
    assert [offsets.to_list() for offsets in record.ranges] == plan["ranges"]
    code, plan = cli("plan", *options, *interval)
    assert (plan["notes"], plan["committed"]["records_written"]) == ([], 1)


def test_plan_of_an_interval_waits_and_accepts_as_its_task(cli: Cli, pipeline: Pipeline) -> None:
    """It waits for an idle partition and refuses deleted records, unless the task's options allow them."""
    cli("init", "--partitions", "2")
    spec, hour = pipeline.spec, dt.timedelta(hours=1)
    options = (
        "--pipeline",
        spec.pipeline,
        "--group",
        spec.group_id,
        "--topic",
        pipeline.source,
        "--interval",
    )
    ended = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=1)
    recent = (*options, (ended - hour).isoformat(), ended.isoformat())
    code, refused = cli("plan", *recent)
    assert (code, refused["error"]["type"]) == (1, "IntervalNotReady")
    code, planned = cli("plan", *recent, "--allowed-lateness", "0")
    assert (code, planned["records_at_most"]) == (0, 0)

    for value in ("deleted", "kept"):
        pipeline.publish([value], timestamp=int((NOON - hour / 2).timestamp() * 1000))
    deleted = Position(pipeline.source, 0, 1)
    pipeline.kafka.admin().delete_records([deleted])[deleted].result()
    past = (*options, (NOON - hour).isoformat(), NOON.isoformat())
    code, refused = cli("plan", *past)
    assert (code, refused["error"]["type"]) == (1, "IntervalUnaccountable")
    code, planned = cli("plan", *past, "--accept-deleted")
    record = pipeline.run(ranges=Interval(NOON - hour, NOON, accept_deleted=True))
    assert (code, planned["ranges"]) == (0, [offsets.to_list() for offsets in record.ranges])


def test_plan_that_cannot_be_says_why(cli: Cli, pipeline: Pipeline) -> None:
    """It raises what the run would raise, without a run."""
    cli("init", "--partitions", "2")
    options = (
        "--pipeline",
        pipeline.spec.pipeline,
        "--group",
        pipeline.spec.group_id,
        "--topic",
        pipeline.source,
    )
    code, refused = cli("plan", *options, "--start", "fail")
    assert (code, error_of(refused)[0]) == (1, "NoStartingPoint")


def ledger_keys(pipeline: Pipeline) -> list[str]:
    spec = pipeline.spec
    return [record.key for record in ledger_records(spec.deployment)]


# -- status and ledger --------------------------------------------------------------------------------------


def test_status_shows_cursors_with_lag_and_runs(cli: Cli, pipeline: Pipeline) -> None:
    """It shows each group's position and lag, and which runs are committed."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    pipeline.publish(["c"])
    name = pipeline.spec.pipeline
    code, status = cli(
        "status",
        "--group",
        pipeline.spec.group_id,
        "--group",
        "none",
        "--run",
        f"{name}/r1",
        "--run",
        f"{name}/r2",
    )
    assert (code, status["missing"]) == (3, ["none", f"{name}/r2"])
    cursor = status["cursors"][pipeline.spec.group_id]
    assert (cursor["pipeline"], cursor["layout"], cursor["lag"]) == (name, "whole", 1)
    assert cursor["ends"] == {f"{pipeline.source}-0": 2, f"{pipeline.source}-1": 0}
    assert status["cursors"]["none"] is None
    assert status["runs"][f"{name}/r1"]["records_written"] == 2
    assert status["runs"][f"{name}/r2"] is None


def test_status_finds_runs_whose_keys_name_more_than_the_run(cli: Cli, pipeline: Pipeline) -> None:
    """A data interval, rounds and a mapped task: they are shown as committed."""
    name, group = pipeline.spec.pipeline, pipeline.spec.group_id
    pipeline.publish(["a"], timestamp=int(NOON.timestamp() * 1000))
    hour = dt.timedelta(hours=1)
    interval = pipeline.run("i1", ranges=Interval(NOON, NOON + hour))
    rounds = pipeline.run("c1", ranges=Cursor(max_records=4, until_caught_up=True))
    mapped = pipeline.run("m1", source_partition=0, group_id=f"{group}-2")
    for record in (interval, rounds, mapped):
        code, document = cli("status", "--run", f"{name}/{record.run_id}")
        assert (code, document["missing"]) == (0, [])
        assert document["runs"][f"{name}/{record.run_id}"]["run_key"] == record.run_key
    assert cli("status", "--run", f"{name}/i2")[1]["missing"] == [f"{name}/i2"]


def test_status_without_names_shows_all_there_is(cli: Cli, pipeline: Pipeline) -> None:
    """Groups with their lag, pipelines with their latest runs."""
    for run_id in ("r1", "r2"):
        pipeline.publish([run_id])
        pipeline.run(run_id)
    pipeline.publish(["c"])
    code, status = cli("status")
    assert (code, status["missing"], status["exceeded"]) == (0, [], [])
    assert {group: cursor["lag"] for group, cursor in status["cursors"].items()} == {
        pipeline.spec.group_id: 1
    }
    assert {name: run["run_id"] for name, run in status["pipelines"].items()} == {
        pipeline.spec.pipeline: "r2"
    }


def test_the_latest_run_is_the_last_in_the_log(
    cli: Cli, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver's clock is three days behind, so its record seems to be the oldest."""
    name = pipeline.spec.pipeline
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b", "c"])
    three_days_ago = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=3)
    with monkeypatch.context() as behind:
        behind.setattr(control_plane, "utc_now", lambda: three_days_ago)
        pipeline.run("r2")
    assert cli("status")[1]["pipelines"][name]["run_id"] == "r2"
    assert cli("verify", "--pipeline", name, "--last", "1")[1]["records"] == 2
    (shown,) = cli("ledger", "--pipeline", name, "--limit", "1")[1]["records"]
    assert shown["value"]["run_id"] == "r2"


def test_status_is_a_check_for_a_monitor(cli: Cli, pipeline: Pipeline) -> None:
    """Exit code 3 if a group's lag, or the age of its open transaction, exceeds its limit."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b", "c"])
    group = pipeline.spec.group_id
    assert cli("status", "--max-lag", "2", "--max-open", "0")[0] == 0
    code, status = cli("status", "--group", group, "--max-lag", "1")
    assert code == 3
    assert status["exceeded"] == [{"group": group, "limit": "max-lag", "allowed": 1, "found": 2}]
    name = keys.cursor_transactional_id(pipeline.spec.prefix, group)
    owner = Producer({**pipeline.spec.kafka, "transactional.id": name})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce(pipeline.sink, value=b"open")
    owner.flush(30)

    def passed() -> bool:
        code, status = cli("status", "--group", group, "--max-open", "0")
        assert status["cursors"][group]["open_transaction"]["transactional_id"] == name
        return code == 3 and [excess["limit"] for excess in status["exceeded"]] == ["max-open"]

    try:
        wait_until(passed)
        assert cli("status", "--group", group, "--max-open", "3600")[0] == 0
    finally:
        owner.abort_transaction(30)


def test_cursor_whose_next_run_would_be_refused_is_not_healthy(cli: Cli, pipeline: Pipeline) -> None:
    """Offsets moved by another client, a recreated source, a deleted one: unknown lag, and a failed check."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    group = pipeline.spec.group_id

    def refused(error: str) -> bool:
        code, document = cli("status", "--group", group, "--max-lag", "9")
        cursor = document["cursors"][group]
        unknown = (code, cursor["lag"]) == (3, None) and cursor["unknown"].startswith(f"{error}: ")
        failed = cli("doctor", "--group", group)[1]["failed"]
        return unknown and f"group {group}" in failed

    move_group(pipeline, 1)
    assert refused("CursorMoved")
    move_group(pipeline, 2)
    assert cli("status", "--group", group, "--max-lag", "0")[0] == 0
    pipeline.kafka.delete_topic(pipeline.source)
    assert refused("UnknownTopic")
    pipeline.kafka.create_topic(pipeline.source, partitions=2)
    pipeline.publish(["c"])
    assert refused("TopicRecreated")
    assert cli("reset-offsets", "--group", group, "--to", "earliest", "--yes")[0] == 0
    code, document = cli("status", "--group", group)
    assert (code, document["cursors"][group]["lag"]) == (0, 1)
    assert f"group {group}" not in cli("doctor", "--group", group)[1]["failed"]


def test_status_goes_on_behind_a_group_that_cannot_be_asked(
    cli: Cli, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error, the other groups are shown, and the group's limits count as exceeded."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    group = pipeline.spec.group_id
    pipeline.run("r1", group_id="another", pipeline="another")
    moved = cursor_agreement.moved_positions

    def failing(control: ControlPlane, cursor: Any, topics: Any) -> list[str]:
        if cursor.group == "another":
            raise ValueError("no such offset")
        return moved(control, cursor, topics)

    monkeypatch.setattr(group_progress, "moved_positions", failing)
    code, shown = cli("status", "--max-lag", "0")
    assert (code, shown["cursors"][group]["lag"]) == (3, 0)
    assert shown["cursors"]["another"]["unknown"] == "ValueError: no such offset"
    assert [row["group"] for row in shown["exceeded"]] == ["another"]


def test_status_asks_for_all_groups_by_the_same_connections(
    cli: Cli, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger may have a thousand groups: new connections for each would take most of the time."""
    pipeline.publish(["a"])
    groups = [f"{pipeline.spec.group_id}-{number}" for number in range(3)]
    for group in groups:
        pipeline.run("r1", group_id=group, pipeline=group)
    opened_now: list[ControlPlane] = []
    begin = ControlPlane.__init__

    def counted(control: ControlPlane, of: Any) -> None:
        opened_now.append(control)
        begin(control, of)

    monkeypatch.setattr(ControlPlane, "__init__", counted)
    numbers = set()
    for shown in (groups[:1], groups):
        opened_now.clear()
        code, answer = cli("status", *(word for group in shown for word in ("--group", group)))
        assert (code, {cursor["lag"] for cursor in answer["cursors"].values()}) == (0, {0})
        numbers.add(len(opened_now))
    assert len(numbers) == 1


def test_status_sees_gaps_between_intervals_and_transactions_that_are_no_cursors(
    cli: Cli, pipeline: Pipeline
) -> None:
    """An interval that no run covered, and an interval's open transaction: monitors can check for both."""
    day, hour = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc), dt.timedelta(hours=1)
    for number in range(5):
        for partition in (0, 1):
            moment = int((day + number * hour).timestamp() * 1000)
            pipeline.publish([f"p{partition}h{number}"], partition=partition, timestamp=moment)
    for number in (0, 3, 1):
        between = Interval(day + number * hour, day + (number + 1) * hour)
        pipeline.run(f"h{number}", ranges=between)
    code, status = cli("status")
    assert (code, status["open_transactions"]) == (0, [])
    (gap,) = status["gaps"]
    assert (gap["start"], gap["end"]) == ("2026-01-05T02:00:00.000Z", "2026-01-05T03:00:00.000Z")
    assert (gap["pipeline"], gap["topics"]) == (pipeline.spec.pipeline, [pipeline.source])
    assert cli("status", "--max-gaps", "1")[0] == 0
    code, status = cli("status", "--max-gaps", "0", "--max-open", "3600")
    passed = {"pipeline": pipeline.spec.pipeline, "limit": "max-gaps", "allowed": 0, "found": 1}
    assert (code, status["exceeded"]) == (3, [passed])

    missing = pipeline.changed("h2", ranges=Interval(day + 2 * hour, day + 3 * hour))
    name = keys.transactional_id(missing)
    with opened(pipeline, name):
        wait_until(lambda: cli("status", "--max-open", "0")[0] == 3)
        _, status = cli("status", "--max-open", "0")
        assert [transaction["transactional_id"] for transaction in status["open_transactions"]] == [name]
        assert [excess["limit"] for excess in status["exceeded"]] == ["max-open"]
    pipeline.run("h2", ranges=missing.ranges)
    code, status = cli("status", "--max-gaps", "0")
    assert (code, status["gaps"], status["open_transactions"]) == (0, [], [])


def test_status_of_a_group_shows_the_transaction_of_its_first_run(cli: Cli, pipeline: Pipeline) -> None:
    """A run that was killed at OPEN has no record: its transaction is shown, and counts for --max-open."""
    group = pipeline.spec.group_id
    name = keys.cursor_transactional_id("test", group)
    cli("init", "--partitions", "2", "--replication-factor", "1")
    code, status = cli("status", "--group", group)
    assert (code, status["open_transactions"]) == (3, [])
    with opened(pipeline, name):
        wait_until(lambda: [row for row in shown_open(cli, group) if row["age_seconds"] > 0])
        code, status = cli("status", "--group", group, "--max-open", "0")
        (row,) = status["open_transactions"]
        assert (code, row["transactional_id"]) == (3, name)
        assert 0 <= row["age_seconds"] < row["timeout_seconds"]
        assert [excess["transactional_id"] for excess in status["exceeded"]] == [name]
        shown = pasted(row["command"], pipeline)
        assert (shown["transactional_id"], shown["foreign"], shown["answer"]) == (name, False, "dry run")
        assert cli("status", "--group", "another")[1]["open_transactions"] == []


def shown_open(cli: Cli, group: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cli("status", "--group", group)[1]["open_transactions"]
    return rows


def test_a_group_of_another_prefix_is_seen_as_it_is(cli: Cli, pipeline: Pipeline) -> None:
    """Its runs' ids have the cursor's prefix: status shows their transaction, the doctor names the prefix."""
    group = pipeline.spec.group_id
    pipeline.publish(["a"])
    pipeline.run("r1", prefix="another")
    name = keys.cursor_transactional_id("another", group)
    with opened(pipeline, name):
        wait_until(lambda: cli("status", "--group", group, "--max-open", "0")[0] == 3)
        _, status = cli("status", "--max-open", "0")
        assert status["cursors"][group]["open_transaction"]["transactional_id"] == name
        assert [excess["group"] for excess in status["exceeded"]] == [group]
    code, report = cli("doctor", "--group", group)
    assert (code, report["failed"]) == (3, [f"group {group}"])
    assert "belongs to prefix 'another', this run says 'test'" in report["checks"][-1]["found"]
    assert cli("doctor", "--group", group, "--prefix", "another")[0] == 0


def pasted(command: str, pipeline: Pipeline) -> Any:
    """Run a command that an answer suggests, as a shell would, and return its document."""
    program, arguments = shlex.split(command)[:3], shlex.split(command)[3:]
    assert program == ["python", "-m", "airflow_eos"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*arguments, "--output", "json"]) == 0
    assert arguments[-6:] == [
        *("--bootstrap-servers", pipeline.kafka.bootstrap_servers),
        *("--ledger-topic", pipeline.ledger, "--prefix", "test"),
    ]
    return json.loads(printed.getvalue())


@contextlib.contextmanager
def opened(pipeline: Pipeline, transactional_id: str) -> Iterator[None]:
    """Keep a transaction with one record open."""
    owner = Producer({**pipeline.spec.kafka, "transactional.id": transactional_id})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce(pipeline.sink, value=b"open")
    owner.flush(30)
    try:
        yield
    finally:
        owner.abort_transaction(30)


def test_misspelt_names_are_errors_with_the_near_ones(cli: Cli, pipeline: Pipeline) -> None:
    """The error suggests similar names: no empty answer with exit code 0."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    name, group = pipeline.spec.pipeline, pipeline.spec.group_id
    for command, *options in (("verify",), ("ledger",), ("prune", "--before", "2026-01-01")):
        code, refused = cli(command, *options, "--pipeline", f"{name}x")
        assert (code, error_of(refused)[0]) == (1, "ConfigurationError")
        assert f"no run of the pipeline '{name}x'; did you mean '{name}'?" in error_of(refused)[1]
        assert f"it has '{name}'" in error_of(cli(command, *options, "--pipeline", "~")[1])[1]
    code, refused = cli("ledger", "--key", f"cursor:{group}x")
    assert (code, "no record of the key" in error_of(refused)[1]) == (1, True)


def test_ledger_lists_runs_in_the_order_of_their_commits(cli: Cli, pipeline: Pipeline) -> None:
    """It lists all records, those of a pipeline, the latest ones, or one by its key."""
    for run_id in ("r1", "r2", "r3"):
        pipeline.publish([run_id])
        pipeline.run(run_id)
    name, group = pipeline.spec.pipeline, pipeline.spec.group_id
    code, listing = cli("ledger", "--pipeline", name)
    assert code == 0
    assert [record["value"]["run_id"] for record in listing["records"]] == ["r1", "r2", "r3"]
    assert all(set(record) == {"key", "partition", "offset", "value"} for record in listing["records"])
    _, listing = cli("ledger", "--pipeline", name, "--limit", "1")
    assert [record["key"] for record in listing["records"]] == [
        keys.run_record_key(keys.cursor_run_key(name, "r3"))
    ]
    _, listing = cli("ledger", "--key", keys.cursor_key(group))
    assert [record["value"]["run_key"] for record in listing["records"]] == [keys.cursor_run_key(name, "r3")]
    _, listing = cli("ledger")
    assert {record["key"] for record in listing["records"]} == {
        keys.LEDGER_IDENTITY_KEY,
        keys.cursor_key(group),
        *(keys.run_record_key(keys.cursor_run_key(name, run_id)) for run_id in ("r1", "r2", "r3")),
    }


def ledger_partitions(pipeline: Pipeline) -> list[TopicPartition]:
    return [TopicPartition(pipeline.ledger, number) for number in range(pipeline.spec.ledger.partitions)]


def test_what_no_run_wrote_is_listed(cli: Cli, pipeline: Pipeline, tmp_path: Path) -> None:
    """The doctor names it, listings continue after unreadable records, and a key comes from a file."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    name, group = pipeline.spec.pipeline, pipeline.spec.group_id
    run, cursor = keys.run_record_key(keys.cursor_run_key(name, "r2")), keys.cursor_key(group)
    with ControlPlane(pipeline.spec) as control:
        places = {key: control.ledger.partition_for(key) for key in (name, group)}
    forge = Producer(dict(pipeline.spec.kafka))
    forge.produce(pipeline.ledger, key=run, value="{}", partition=places[name])
    assert forge.flush(30) == 0
    code, report = cli("doctor")
    (check,) = [check for check in report["checks"] if check["name"] == "ledger writers"]
    assert (code, check["status"]) == (3, "fail")
    assert run in check["found"]
    assert f"partition {places[name]}, offset " in check["found"]
    owner = Producer({**pipeline.spec.kafka, "transactional.id": "somebody"})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce(pipeline.ledger, key=run, value=b"\xffgarbage", partition=places[name])
    owner.produce(pipeline.ledger, key=cursor, value=b"", partition=places[group])
    owner.commit_transaction(30)
    wait_for_markers(pipeline.spec.kafka, ledger_partitions(pipeline))
    code, status = cli("status", "--group", group, "--run", f"{name}/r1", "--run", f"{name}/r2")
    assert code == 0
    assert status["runs"][f"{name}/r1"]["run_id"] == "r1"
    assert "cannot be read" in status["runs"][f"{name}/r2"]["state"]
    assert "cannot be read" in status["cursors"][group]["unreadable"]
    assert {record["key"] for record in cli("ledger")[1]["records"]} >= {
        run,
        cursor,
        keys.LEDGER_IDENTITY_KEY,
    }
    assert cli("repair")[0] == 0
    assert cli("verify", "--pipeline", name)[0] == 3
    secret = tmp_path / "key"
    secret.write_text("a-secret-of-length\n")
    keyed = ("--ledger-key-file", str(secret))
    code, answer = cli("status", "--group", group, *keyed)
    assert (code, answer["error"]["type"]) == (1, "LedgerTampered")
    assert cli("sign", *keyed, "--yes")[0] == 0
    assert cli("status", "--group", group, *keyed)[0] == 0
    code, answer = cli("status", "--group", group, "--ledger-key-file", str(tmp_path / "none"))
    assert (code, answer["error"]["type"]) == (1, "ConfigurationError")


def test_records_of_a_stranger_end_no_command_for_the_others(
    cli: Cli, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is valid JSON in a committed transaction: it is left out, or shown as unknown."""
    monkeypatch.setattr(upkeep, "MIN_AGE", -dt.timedelta(days=1))
    for run_id in ("r1", "r2"):
        pipeline.publish([run_id])
        pipeline.run(run_id)
    values = {record.key: record.value for record in ledger_records(pipeline.spec.deployment)}
    group = pipeline.spec.group_id
    cursor = values[keys.cursor_key(group)]
    run = values[keys.run_record_key(keys.cursor_run_key(pipeline.spec.pipeline, "r1"))]
    long_group = "g" * 40_000
    owner = Producer({**pipeline.spec.kafka, "transactional.id": "stranger"})
    owner.init_transactions(30)
    owner.begin_transaction()
    with ControlPlane(pipeline.spec) as control:
        status = control.cluster.describe_transaction("stranger")
        assert status is not None
        named = {"producer_id": status.producer_id, "producer_epoch": status.producer_epoch}

        def write(routing: str, key: str, value: dict[str, Any]) -> None:
            partition = control.ledger.partition_for(routing)
            owner.produce(pipeline.ledger, key=key, value=json.dumps(value), partition=partition)

        write("x", keys.cursor_key("x"), {**cursor, "group": "x", "ends": [[pipeline.source, 0, -1]]})
        write(long_group, keys.cursor_key(long_group), {**cursor, "group": long_group})
        producer = {"transactional_id": "stranger", **named}
        for run_id in ("s1", "s2", "s3"):
            key = keys.cursor_run_key("q", run_id)
            stranger = {**run, "pipeline": "q", "run_key": key, "run_id": run_id, "producer": producer}
            if run_id == "s3":
                stranger["details"] = {**run["details"], "work": 5}
            write("q", keys.run_record_key(key), stranger)
        horizon = {"v": 1, "producer": named, "pipeline": "q", "before": "", "runs": 1, "intervals": []}
        write("q", keys.horizon_key("q"), {**horizon, "read": {"read": 5}})
        owner.commit_transaction(30)
    wait_for_markers(pipeline.spec.kafka, ledger_partitions(pipeline))
    code, shown = cli("status", "--max-lag", "0")
    assert (code, list(shown["cursors"]), shown["cursors"][group]["lag"]) == (0, [group], 0)
    assert set(shown["pipelines"]) == {pipeline.spec.pipeline, "q"}
    before = (dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)).isoformat()
    code, pruned = cli("prune", "--before", before, "--yes")
    assert (code, pruned["pipelines"]) == (0, {pipeline.spec.pipeline: {"runs": 1, "records": 1}})


def test_names_with_a_slash_are_found_as_they_are(cli: Cli, pipeline: Pipeline) -> None:
    """Keys quote the slash, which users do not; quoted names are found as before."""
    pipeline.publish(["a"])
    names = {"pipeline": "team/orders.copy", "group_id": "team/orders"}
    pipeline.run("manual/r1", **names)
    for name in ("team/orders.copy/manual/r1", "team%2Forders.copy/manual/r1"):
        code, shown = cli("status", "--run", name)
        (run,) = shown["runs"].values()
        assert (code, run["run_id"], shown["missing"]) == (0, "manual/r1", [])
    code, shown = cli("status", "--run", "team/orders.copy/r2")
    assert (code, shown["missing"]) == (3, ["team/orders.copy%2Fr2"])
    for key in ("cursor:team/orders", "cursor:team%2Forders"):
        code, shown = cli("ledger", "--key", key)
        assert (code, [record["key"] for record in shown["records"]]) == (0, ["cursor:team%2Forders"])


def test_a_run_that_may_be_pruned_is_not_said_to_have_never_been(
    cli: Cli, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key of an interval's run has no run id: the ledger cannot tell which runs were pruned."""
    monkeypatch.setattr(upkeep, "MIN_AGE", -dt.timedelta(days=1))
    hour = dt.timedelta(hours=1)
    pipeline.publish(["a"], timestamp=int((NOON - hour / 2).timestamp() * 1000))
    name = pipeline.spec.pipeline
    for number in range(2):
        ranges = Interval(NOON + (number - 1) * hour, NOON + number * hour)
        pipeline.run(f"i{number}", ranges=ranges)
    options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    arguments = ["status", *options, "--prefix", "test", "--run", f"{name}/i0"]
    assert main(arguments) == 0
    before = (dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)).isoformat()
    assert cli("prune", "--before", before, "--yes")[1]["pipelines"] == {name: {"runs": 1, "records": 1}}
    assert main(arguments) == 3
    shown = capsys.readouterr().out
    assert "it may be pruned, as 1 run of the pipeline is; the latest run is 'i1'" in shown
    assert main([*arguments[:-1], f"{name}x/i0"]) == 3
    assert "pruned" not in capsys.readouterr().out


def test_tables_are_for_people(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without --output every command prints tables: titles, columns, a dash for a missing value."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    name, group = pipeline.spec.pipeline, pipeline.spec.group_id
    options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    stranger = Producer(dict(pipeline.spec.kafka))
    for partition in range(pipeline.spec.ledger.partitions):
        stranger.produce(pipeline.ledger, key="theirs", partition=partition)
    assert stranger.flush(30) == 0
    secret = tmp_path / "key"
    secret.write_text("a-secret-of-length")
    commands: tuple[tuple[tuple[str, ...], str], ...] = (
        (("init",), "topic_id"),
        (("doctor", "--group", group, "--source", pipeline.source, "--sink", pipeline.sink), "status"),
        (("plan", "--pipeline", name, "--group", group, "--topic", pipeline.source), "records_at_most"),
        (("status", "--group", group, "--run", f"{name}/r1"), "cursors"),
        (("ledger",), "1 read, 1 written by r1, try 1"),
        (("verify", "--pipeline", name), "summary"),
        (("repair",), "hanging\n-\n"),
        (("abort", "--group", group), "transaction"),
        (("dismiss", "--key", "theirs", "--routing", name), "record"),
        (("sign", "--ledger-key-file", str(secret)), "would be signed; add --yes"),
        (("index",), "indexed up to offset"),
        (("prune", "--before", "2026-01-01"), "would be pruned; add --yes"),
        (("reset-offsets", "--group", group, "--to", "earliest"), "would be moved; add --yes"),
    )
    asking = {command.name for command in COMMANDS if command.cluster}
    assert {given[0] for given, _ in commands} == asking
    for given, expected in commands:
        assert main([given[0], *options, "--prefix", "test", *given[1:]]) == 0, given
        printed = capsys.readouterr()
        assert expected in printed.out
        assert printed.err == ""
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(printed.out)


# -- verify -------------------------------------------------------------------------------------------------


class BesideAStranger(LocalDataPlane):
    """While it writes to a partition, another client writes a record to it."""

    batch_bytes = 1

    def send(self, sealed: LocalSealed, identity: Any, timeout: float) -> Any:
        stranger = Producer(dict(self._spec.kafka))

        def interrupted(target: TopicPartition, pairs: list[tuple[int, bytes]]) -> Any:
            for number, pair in enumerate(pairs):
                # Late enough that some of the run's batches are in the log, and others are not.
                if number == len(pairs) - 2:
                    stranger.produce(target.topic, value="stranger", partition=target.partition)
                    assert stranger.flush(30) == 0
                yield pair

        interleaved: Any = {target: interrupted(target, pairs) for target, pairs in sealed.batches.items()}
        return super().send(LocalSealed(sealed.manifest, interleaved), identity, timeout)


def test_verify_reads_the_output_again(cli: Cli, pipeline: Pipeline) -> None:
    """Records of other producers in between do not count, nor do those of an aborted try of the same work."""
    pipeline.publish([f"v{n}" for n in range(50)])
    held = Paused(pipeline, State.WRITTEN, "r1")
    record = pipeline.run("r1", data=BesideAStranger)
    held.resume()
    # The other client's records are between the first and the last of the run.
    assert all(receipt.last_offset - receipt.first_offset == receipt.records for receipt in record.receipts)
    pipeline.publish(["w"])
    pipeline.run("r2")
    code, report = cli("verify", "--pipeline", pipeline.spec.pipeline)
    assert (code, report["matches"], report["runs"], report["records"]) == (0, True, 2, 51)
    assert {finding["outcome"] for finding in report["findings"]} == {"ok"}
    _, report = cli("verify", "--pipeline", pipeline.spec.pipeline, "--last", "1")
    assert (report["runs"], report["records"]) == (1, 1)
    key = keys.cursor_run_key(pipeline.spec.pipeline, "r1")
    _, report = cli("verify", "--pipeline", pipeline.spec.pipeline, "--run-key", key)
    assert {finding["run_key"] for finding in report["findings"]} == {key}
    code, report = cli(
        "verify",
        "--pipeline",
        pipeline.spec.pipeline,
        "--run-key",
        keys.cursor_run_key(pipeline.spec.pipeline, "none"),
    )
    assert (code, error_of(report)[0]) == (1, "ConfigurationError")


def test_verify_tells_deleted_by_retention_from_lost(cli: Cli, pipeline: Pipeline) -> None:
    """Expired records are no finding; a recreated topic is one."""
    pipeline.publish([f"v{n}" for n in range(20)])
    record = pipeline.run("r1")
    admin = AdminClient(pipeline.kafka.client_config())
    cut = [
        Position(pipeline.sink, receipt.partition, receipt.first_offset + 1)
        for receipt in record.receipts
        if receipt.records
    ]
    for future in admin.delete_records(cut).values():
        future.result(30)
    code, report = cli("verify", "--pipeline", pipeline.spec.pipeline)
    assert (code, {finding["outcome"] for finding in report["findings"]}) == (0, {"expired"})
    assert (report["matches"], report["records"], report["expired"]) == (True, 0, 20)
    pipeline.kafka.delete_topic(pipeline.sink)
    pipeline.kafka.create_topic(pipeline.sink, partitions=2)
    code, report = cli("verify", "--pipeline", pipeline.spec.pipeline)
    assert (code, report["matches"]) == (3, False)
    assert {finding["outcome"] for finding in report["findings"]} == {"mismatch"}
    assert "recreated" in report["findings"][0]["detail"]


def test_verify_goes_on_behind_a_sink_that_is_gone(cli: Cli, pipeline: Pipeline) -> None:
    """Runs that wrote to the deleted topic do not match; later ones with another sink do."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    former = pipeline.sink
    pipeline.sink = f"{former}-2"
    pipeline.kafka.create_topic(pipeline.sink, partitions=2)
    pipeline.publish(["b"])
    pipeline.run("r2", sink_topic=pipeline.sink)
    pipeline.kafka.delete_topic(former)
    code, document = cli("verify", "--pipeline", pipeline.spec.pipeline)
    assert (code, document["matches"], document["runs"]) == (3, False, 2)
    wrong = [(item["topic"], item["detail"]) for item in document["findings"] if item["outcome"] != "ok"]
    assert wrong == [(former, "the topic, or its partition, is gone")]
    assert document["records"] == 1


# -- abort --------------------------------------------------------------------------------------------------


def test_abort_ends_a_transaction_that_hangs(cli: Cli, pipeline: Pipeline) -> None:
    """It shows the transaction, then ends it: readers go on, and the owner gets an error when it commits."""
    name = keys.cursor_transactional_id("test", pipeline.spec.group_id)
    owner = Producer({**pipeline.kafka.client_config(), "transactional.id": name})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce(pipeline.source, value="pending", partition=0)
    owner.flush(30)

    code, outcome = cli("abort", "--group", pipeline.spec.group_id)
    assert (code, outcome["state"], outcome["done"], outcome["answer"]) == (0, "Ongoing", False, "dry run")
    assert outcome["partitions"] == [f"{pipeline.source}-0"]
    assert (outcome["foreign"], outcome["timeout_seconds"]) == (False, 60.0)
    began = dt.datetime.fromisoformat(outcome["started"].replace("Z", "+00:00"))
    assert abs((dt.datetime.now(dt.timezone.utc) - began).total_seconds() - outcome["age_seconds"]) < 30
    epoch = str(outcome["producer_epoch"])
    code, outcome = cli("abort", "--transactional-id", name, "--yes", "--epoch", epoch)
    assert (code, outcome["state"], outcome["done"], outcome["answer"]) == (
        0,
        "CompleteAbort",
        True,
        "ended as asked",
    )
    with pytest.raises(KafkaException):
        owner.commit_transaction(30)
    code, outcome = cli("abort", "--transactional-id", name, "--yes", "--epoch", epoch)
    assert (code, outcome["answer"], outcome["done"], outcome["started"]) == (0, "nothing open", False, None)
    code, outcome = cli("abort", "--transactional-id", "nobody", "--yes", "--epoch", "0")
    assert (code, error_of(outcome)[0]) == (1, "ConfigurationError")


@pytest.mark.parametrize("name", ["test-staging.cursor.g", "testing.cursor.g", "an-application"])
def test_abort_ends_nothing_of_another_prefix_unless_told_to(cli: Cli, pipeline: Pipeline, name: str) -> None:
    """It shows the transaction and names the option; the owner's commit still succeeds."""
    name = f"{name}-{pipeline.spec.group_id}"
    owner = Producer({**pipeline.kafka.client_config(), "transactional.id": name})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce(pipeline.source, value="pending", partition=0)
    owner.flush(30)

    code, outcome = cli("abort", "--transactional-id", name)
    assert (code, outcome["foreign"], outcome["done"]) == (0, True, False)
    do_it = ("abort", "--transactional-id", name, "--yes", "--epoch", str(outcome["producer_epoch"]))
    code, refused = cli(*do_it)
    assert (code, error_of(refused)[0]) == (1, "ConfigurationError")
    assert "--foreign" in error_of(refused)[1]
    owner.commit_transaction(30)

    owner.begin_transaction()
    owner.produce(pipeline.source, value="pending", partition=0)
    owner.flush(30)
    epoch = str(cli("abort", "--transactional-id", name)[1]["producer_epoch"])
    code, outcome = cli("abort", "--transactional-id", name, "--yes", "--epoch", epoch, "--foreign")
    assert (code, outcome["state"], outcome["done"]) == (0, "CompleteAbort", True)


def test_abort_leaves_a_transaction_alone_that_began_after_the_look(cli: Cli, pipeline: Pipeline) -> None:
    """The transaction that was shown is gone; the next attempt has another epoch and is active."""
    name = keys.cursor_transactional_id("test", pipeline.spec.group_id)
    for seen in (True, False):
        owner = Producer({**pipeline.kafka.client_config(), "transactional.id": name})
        owner.init_transactions(30)
        owner.begin_transaction()
        owner.produce(pipeline.source, value="pending", partition=0)
        owner.flush(30)
        if seen:
            epoch = str(cli("abort", "--group", pipeline.spec.group_id)[1]["producer_epoch"])
    code, refused = cli("abort", "--group", pipeline.spec.group_id, "--yes", "--epoch", epoch)
    assert (code, error_of(refused)[0]) == (1, "ConfigurationError")
    assert "look again" in error_of(refused)[1]
    owner.commit_transaction(30)


def test_run_whose_transaction_was_aborted_by_hand_still_writes_once(cli: Cli, pipeline: Pipeline) -> None:
    """Its driver was alive after all: it starts over, and every record is written once."""
    pipeline.publish(["a", "b"])
    held = Paused(pipeline, State.WRITTEN, "r1")
    epoch = cli("abort", "--group", pipeline.spec.group_id)[1]["producer_epoch"]
    assert cli("abort", "--group", pipeline.spec.group_id, "--yes", "--epoch", str(epoch))[0] == 0
    held.resume()
    if held.error is not None:
        assert isinstance(held.error, EosError)
        pipeline.run("r1")
    assert pipeline.output() == ["a", "b"]


def test_repair_looks_in_no_topic_that_does_not_exist(cli: Cli, pipeline: Pipeline) -> None:
    """A named topic that is missing is an error; a deleted sink of earlier runs has nothing to repair."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    code, refused = cli("repair", "--topic", "nosuch")
    assert (code, error_of(refused)[0], "nosuch" in error_of(refused)[1]) == (1, "UnknownTopic", True)
    assert cli("repair", "--topic", pipeline.sink) == (0, {"hanging": [], "unseen": []})
    pipeline.kafka.delete_topic(pipeline.sink)
    assert cli("repair") == (0, {"hanging": [], "unseen": []})


# -- reset-offsets ------------------------------------------------------------------------------------------


def test_reset_settles_what_a_stranger_moved(cli: Cli, pipeline: Pipeline) -> None:
    """CursorMoved names this command: go back to the ledger's cursor, or on from the committed offsets."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b", "c"])
    pipeline.run("r1")
    move_group(pipeline, 1)
    with pytest.raises(CursorMoved):
        pipeline.run("r2")
    code, reset = cli("reset-offsets", "--group", group, "--to", "cursor")
    assert (code, reset["done"]) == (0, False)
    assert reset["offsets"][0] == {"partition": f"{pipeline.source}-0", "committed": 1, "cursor": 3, "new": 3}
    with pytest.raises(CursorMoved):
        pipeline.run("r2")
    assert cli("reset-offsets", "--group", group, "--to", "cursor", "--yes")[1]["done"] is True
    assert pipeline.run("r2").records_read == 0

    move_group(pipeline, 1)
    assert cli("reset-offsets", "--group", group, "--to", "committed", "--yes")[0] == 0
    assert pipeline.run("r3").records_read == 2
    assert pipeline.output() == ["a", "b", "b", "c", "c"]
    resets = [key for key in ledger_keys(pipeline) if key.startswith(keys.reset_key(group, ""))]
    assert len(resets) == 2


def test_the_reset_that_a_deleted_head_advises_moves_nothing_else(cli: Cli, pipeline: Pipeline) -> None:
    """Run and doctor name the partition and its new log start; the other partition is not read again."""
    group, source = pipeline.spec.group_id, TopicPartition(pipeline.source, 0)
    for partition in (0, 1):
        pipeline.publish([f"a{partition}", f"b{partition}"], partition=partition)
    pipeline.run("r1")
    pipeline.publish(["c0", "d0"])
    head = Position(pipeline.source, 0, 3)
    pipeline.kafka.admin().delete_records([head])[head].result()
    with pytest.raises(OffsetsOutOfRange) as refused:
        pipeline.run("r2")
    unknown = cli("status", "--group", group)[1]["cursors"][group]["unknown"]
    assert unknown.startswith(f"OffsetsOutOfRange: {source}: cursor 2, the log starts at 3")
    doctor = cli("doctor", "--group", group)[1]["checks"][-1]
    assert doctor["status"] == "fail"
    for advice in (doctor["advice"], str(refused.value)):
        (offset,) = re.findall(r"--offset (\S+:0=3)", advice)
    assert cli("reset-offsets", "--group", group, "--offset", offset, "--yes")[0] == 0
    assert cli("doctor", "--group", group)[1]["checks"][-1]["status"] == "ok"
    pipeline.run("r2")
    assert pipeline.output() == ["a0", "a1", "b0", "b1", "d0"]


def test_reset_moves_to_given_offsets_and_to_the_ends_of_the_log(cli: Cli, pipeline: Pipeline) -> None:
    """Each partition moves on its own, within its log only."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b", "c"])
    pipeline.run("r1")
    code, reset = cli("reset-offsets", "--group", group, "--offset", f"{pipeline.source}:0=2", "--yes")
    assert (code, [row["new"] for row in reset["offsets"]]) == (0, [2])
    assert pipeline.run("r2").records_read == 1
    for target, expected in (("earliest", 3), ("latest", 0)):
        assert cli("reset-offsets", "--group", group, "--to", target, "--yes")[0] == 0
        assert pipeline.run(target).records_read == expected
    code, reset = cli("reset-offsets", "--group", group, "--offset", f"{pipeline.source}:0=9", "--yes")
    assert (code, error_of(reset)[0]) == (1, "OffsetsOutOfRange")
    code, reset = cli("reset-offsets", "--group", group, "--offset", f"{pipeline.source}:7=0", "--yes")
    assert (code, error_of(reset)[0]) == (1, "UnknownTopic")


def test_reset_to_the_cursor_of_an_earlier_topic_is_refused(cli: Cli, pipeline: Pipeline) -> None:
    """It does not apply to the new topic of that name: records below it would not be read."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    pipeline.kafka.delete_topic(pipeline.source)
    pipeline.kafka.create_topic(pipeline.source, partitions=2)
    pipeline.publish(["c", "d", "e"])
    for target in ("cursor", "committed"):
        code, refused = cli("reset-offsets", "--group", group, "--to", target, "--yes")
        assert (code, error_of(refused)[0]) == (1, "ConfigurationError"), target
        assert "no " + target + " offset" in error_of(refused)[1]
    assert cli("reset-offsets", "--group", group, "--to", "earliest", "--yes")[0] == 0
    assert pipeline.run("r2").records_read == 3
    assert pipeline.output() == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("target", ["cursor", "committed"])
def test_reset_leaves_an_added_partition_at_its_beginning(
    cli: Cli, pipeline: Pipeline, target: str, mapped: bool
) -> None:
    """No run has read that partition yet, and the next one begins there."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b"])

    def run(run_id: str, partitions: int) -> list[int]:
        works = [{"source_partition": number} for number in range(partitions)] if mapped else [{}]
        return [pipeline.run(run_id, **work).records_read for work in works]

    run("r1", 2)
    pipeline.add_partitions(pipeline.source, 3)
    pipeline.publish(["c"], partition=2)
    move_group(pipeline, 1)
    code, reset = cli("reset-offsets", "--group", group, "--to", target, "--yes")
    assert (code, [row["new"] for row in reset["offsets"]]) == (0, [2 if target == "cursor" else 1, 0, 0])
    read = [0, 0, 1] if target == "cursor" else [1, 0, 1]
    assert run("r2", 3) == (read if mapped else [sum(read)])
    # The ledger has a position for partitions that were read, also after the group's offsets expired.
    pipeline.kafka.admin().delete_consumer_groups([group])[group].result()
    for partition in (0, 1):
        move_group(pipeline, 0, partition)
    code, reset = cli("reset-offsets", "--group", group, "--to", target)
    assert code == (0 if target == "cursor" else 1)
    assert target == "committed" or [row["new"] for row in reset["offsets"]] == [2, 0, 1]


def test_reset_fences_the_run_under_way(cli: Cli, pipeline: Pipeline) -> None:
    """A run that has read from the old position can no longer commit."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b", "c"])
    pipeline.run("r1")
    pipeline.publish(["d"])
    held = Paused(pipeline, State.WRITTEN, "r2")
    assert cli("reset-offsets", "--group", group, "--to", "earliest", "--yes")[0] == 0
    held.resume()
    assert isinstance(held.error, EosError)
    assert pipeline.run("r2").records_read == 4


def test_reset_makes_the_cursor_of_a_new_group(cli: Cli, pipeline: Pipeline) -> None:
    """A pipeline that is to begin somewhere else than at an end of the log."""
    cli("init", "--partitions", "2")
    pipeline.publish(["a", "b", "c"])
    group = pipeline.spec.group_id
    code, answer = cli("reset-offsets", "--group", group, "--offset", f"{pipeline.source}:0=1", "--yes")
    assert (code, "pipeline" in error_of(answer)[1]) == (1, True)
    owner = ("--pipeline", pipeline.spec.pipeline)
    assert (
        cli("reset-offsets", "--group", group, *owner, "--offset", f"{pipeline.source}:0=1", "--yes")[0] == 0
    )
    assert pipeline.run("r1").records_read == 2
    code, refused = cli("reset-offsets", "--group", group, "--pipeline", "another", "--to", "earliest")
    assert (code, error_of(refused)[0]) == (1, "GroupOwned")


def test_reset_beside_another_ledger_is_refused(cli: Cli, pipeline: Pipeline) -> None:
    """It would create a cursor in the wrong ledger, and let runs of the right one be written again."""
    pipeline.publish(["a", "b", "c"])
    pipeline.run("r1")
    other = ("--ledger-topic", f"{pipeline.ledger}-other")
    cli("init", *other, "--partitions", "2")
    options = ("--group", pipeline.spec.group_id, "--pipeline", pipeline.spec.pipeline, "--to", "earliest")
    for do_it in ((), ("--yes",)):
        code, refused = cli("reset-offsets", *options, "--topic", pipeline.source, *other, *do_it)
        assert (code, error_of(refused)[0]) == (1, "LedgerReplaced")
    assert pipeline.run("r1").found
    assert pipeline.output() == ["a", "b", "c"]


def test_status_of_a_mapped_cursor_has_no_empty_ends(
    cli: Cli, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its partitions have their own records: the group's record has no ends, and the table no such column."""
    group = pipeline.spec.group_id
    pipeline.publish(["a", "b"])
    pipeline.run("r1", source_partition=0)
    code, document = cli("status", "--group", group)
    assert (code, document["cursors"][group]["layout"]) == (0, "mapped")
    options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    assert main(["status", *options, "--prefix", "test", "--group", group]) == 0
    table = capsys.readouterr().out
    assert "mapped" in table
    assert "ends" not in table
    assert "{}" not in table


def test_reset_of_a_mapped_cursor_moves_each_partition(cli: Cli, pipeline: Pipeline) -> None:
    """Each partition under its own transactional id; the layout stays mapped."""
    group = pipeline.spec.group_id
    for partition in (0, 1):
        pipeline.publish(["a", "b"], partition=partition)
        pipeline.run("r1", source_partition=partition)
    assert cli("status", "--group", group)[1]["cursors"][group]["lag"] == 0
    move_group(pipeline, 1, partition=1)
    assert f"{pipeline.source}-1" in cli("status", "--group", group)[1]["cursors"][group]["unknown"]
    code, reset = cli("reset-offsets", "--group", group, "--to", "earliest", "--yes")
    assert (code, [row["new"] for row in reset["offsets"]]) == (0, [0, 0])
    assert [pipeline.run("r2", source_partition=partition).records_read for partition in (0, 1)] == [2, 2]
