"""The table in docs/retries.md under a real scheduler: each row, with all its columns.

The rows that need a JVM of their own are in ``test_runs_under_a_scheduler``, backfills in ``test_backfill``.
"""

from __future__ import annotations

import datetime as dt
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.ledger import keys
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment
from airflow_eos.operations.open_transactions import abort_transaction
from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.airflow import AirflowStandalone
from airflow_eos_testing.airflow_processes import parent_of, stopped
from tests.support.patience import eventually
from tests.system.collector import Collector
from tests.system.gate import Gate
from tests.system.lineage import lineage_of
from tests.system.retries_table import Pipeline, added, grown

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

RECORDS = 100


@pytest.fixture
def gate(folder: Path, request: pytest.FixtureRequest) -> Iterator[Gate]:
    """The gate that the test names; opened at the end in any case."""
    gate = Gate(folder, request.param)
    yield gate
    gate.open()


@pytest.fixture
def unlimited(kafka: EmbeddedKafka) -> Pipeline:
    return Pipeline(kafka, "unlimited", "unlimited.copy")


@pytest.mark.parametrize("gate", ["unlimited"], indirect=True)
def test_clear_of_an_old_run_and_a_second_run_at_once(
    airflow: AirflowStandalone, unlimited: Pipeline, gate: Gate, collector: Collector
) -> None:
    """A clear does not affect the live run. A twin on its cursor fences it; it retries, repeating nothing."""
    start = unlimited.look()
    old = unlimited.publish("old")
    first = airflow.trigger("unlimited")
    wait_success(airflow, "unlimited", first)
    before = unlimited.look()
    assert before == grown(start, old, runs=before.runs)
    assert added(start, before) == [(first, 1)]
    events = asset_events(airflow, first)

    new = unlimited.publish("new")
    gate.shut()
    live = airflow.trigger("unlimited")
    gate.wait()
    airflow.clear("unlimited", first, ["copy"])
    wait_success(airflow, "unlimited", first)
    again = airflow.xcom("unlimited", first, "copy")
    assert (again["found"], again["records_written"]) == (True, RECORDS)
    assert asset_events(airflow, first) == events * 2
    assert "Starting Spark" not in airflow.task_log("unlimited", first, "copy", 2)
    assert unlimited.look() == before
    task = airflow.task("unlimited", live, "copy")
    assert (task["state"], task["try_number"]) == ("running", 1)

    twin = airflow.trigger("unlimited")
    gate.wait(2)
    gate.open()
    wait_success(airflow, "unlimited", live)
    wait_success(airflow, "unlimited", twin)
    after = unlimited.look()
    assert after == grown(before, new, runs=after.runs)
    assert sorted(run for run, _ in added(before, after)) == sorted([live, twin])
    read = [airflow.xcom("unlimited", run, "copy")["records_read"] for run in (live, twin)]
    assert sorted(read) == [0, RECORDS]
    # The fenced run logged it and retried.
    logs = "".join(
        airflow.task_log("unlimited", run, "copy", number) for run in (live, twin) for number in (1, 2)
    )
    problems = "\n".join(line for line in logs.splitlines() if '"level":"info"' not in line)
    assert "RunFenced" in problems, problems
    eventually(
        lambda: collector.metrics("unlimited"), lambda seen: seen.get("airflow.eos.run.fenced", 0) >= 1
    )


def asset_events(airflow: AirflowStandalone, run_id: str) -> list[dict[str, Any]]:
    """Return the run's events about its outlet, each checked for ranges, counts and partitions."""
    events = airflow.api.call("GET", f"/assets/events?source_run_id={run_id}")["asset_events"]
    extras = [event["extra"]["airflow_eos"] for event in events]
    for extra in extras:
        assert extra["records_written"] == sum(extra["written"].values()) == RECORDS
        assert {place.rpartition("-")[0] for place in extra["written"]} == {"unlimited-out"}
        assert extra["records_read"] == sum(end - start for _, _, start, end in extra["ranges"]) == RECORDS
        assert (extra["pipeline"], extra["run_key"]) == (
            "unlimited.copy",
            keys.cursor_run_key("unlimited.copy", run_id),
        )
    return extras


@pytest.mark.chaos
@pytest.mark.parametrize("gate", ["unlimited"], indirect=True)
def test_marked_success_while_it_runs(airflow: AirflowStandalone, unlimited: Pipeline, gate: Gate) -> None:
    """Airflow believes the mark, Kafka does not: nothing is written, and the next run reads the range."""
    before = unlimited.look()
    sent = unlimited.publish("marked")
    gate.shut()
    run_id = airflow.trigger("unlimited")
    (process,) = gate.wait()
    airflow.set_task_state("unlimited", run_id, "copy", "success")
    wait_until_gone(airflow, process)
    gate.open()
    assert airflow.wait_for_run("unlimited", run_id) == "success"
    assert unlimited.look() == before
    assert unlimited.uncommitted() == before.output.total()

    following = airflow.trigger("unlimited")
    wait_success(airflow, "unlimited", following)
    after = unlimited.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(following, 1)]


@pytest.mark.parametrize("gate", ["unlimited"], indirect=True)
def test_heartbeat_lost_while_the_old_process_lives(
    airflow: AirflowStandalone, unlimited: Pipeline, gate: Gate
) -> None:
    """The scheduler gives up the task and retries; the old process wakes up late and is ended: no effect."""
    before = unlimited.look()
    sent = unlimited.publish("zombie")
    gate.shut()
    run_id = airflow.trigger("unlimited")
    (old,) = gate.wait()
    with stopped([parent_of(old), old]):
        gate.wait(2)  # the second try has taken the epoch
        assert airflow.task("unlimited", run_id, "copy")["try_number"] == 2
    # Its supervisor learns that the try is over and sends SIGTERM: on_kill aborts only its own transaction.
    wait_until_gone(airflow, old)
    assert airflow.task("unlimited", run_id, "copy")["state"] == "running"
    gate.open()
    wait_success(airflow, "unlimited", run_id)
    after = unlimited.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


@pytest.mark.parametrize("gate", ["committed"], indirect=True)
def test_killed_after_its_commit(airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate) -> None:
    """The scheduler's retry finds the record of the try that could not report its commit."""
    late = Pipeline(kafka, "late", "reports_late.copy")
    before = late.look()
    sent = late.publish("late")
    gate.shut()
    run_id = airflow.trigger("reports_late")
    gate.wait()
    committed = late.look()
    airflow.kill_task("reports_late", run_id, "copy")
    gate.open()
    wait_success(airflow, "reports_late", run_id)
    xcom = airflow.xcom("reports_late", run_id, "copy")
    assert (xcom["found"], xcom["try_number"], xcom["records_written"]) == (True, 1, RECORDS)
    assert tries(airflow, "reports_late", run_id) == ["failed", "success"]
    assert committed == grown(before, sent, runs=committed.runs)
    assert added(before, committed) == [(run_id, 1)]
    assert late.look() == committed


@pytest.mark.parametrize("gate", ["open"], indirect=True)
def test_task_told_to_stop_ends_its_transaction(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate
) -> None:
    """SIGTERM with the transaction open: it is aborted within 5 s, and the next try does the work."""
    pipeline = Pipeline(kafka, "open", "stays_open.copy")
    before = pipeline.look()
    sent = pipeline.publish("open")
    gate.shut()
    run_id = airflow.trigger("stays_open")
    gate.wait()

    def state() -> str:
        name = keys.cursor_transactional_id(DEFAULT_PREFIX, "open")
        return abort_transaction(Deployment(kafka.client_config()), name, execute=False).state

    assert state() == "Ongoing"
    airflow.kill_task("stays_open", run_id, "copy", signal.SIGTERM)
    signalled = time.time()
    eventually(state, lambda seen: seen == "CompleteAbort")
    assert pipeline.look() == before
    # By the task's own clock, as the test's polling takes time, too.
    ended = eventually(lambda: logged_at(airflow, "stays_open", run_id, "killed: the transaction of"), bool)
    assert ended - signalled < 5
    gate.open()
    wait_success(airflow, "stays_open", run_id)
    assert tries(airflow, "stays_open", run_id) == ["failed", "success"]
    after = pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


@pytest.mark.parametrize("gate", ["timed"], indirect=True)
def test_task_time_out(airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate) -> None:
    """execution_timeout ends the try, which leaves nothing; the next try does the work."""
    timed = Pipeline(kafka, "timed", "timed.copy")
    before = timed.look()
    sent = timed.publish("timed")
    gate.shut()
    run_id = airflow.trigger("timed")
    # Not the state between two tries, which is short: the next one may already wait at the gate.
    eventually(lambda: tries(airflow, "timed", run_id), lambda seen: seen[:1] == ["failed"], seconds=180)
    assert timed.look() == before
    gate.open()
    wait_success(airflow, "timed", run_id)
    assert "AirflowTaskTimeout" in airflow.task_log("timed", run_id, "copy", 1)
    after = timed.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


@pytest.mark.parametrize("gate", ["one"], indirect=True)
def test_second_run_of_a_cursor_waits_and_a_moved_cursor_fails_at_once(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate, folder: Path
) -> None:
    """Runs take turns, and read each record once. reset-offsets and a clear repair a moved cursor."""
    pipeline = Pipeline(kafka, "one", "one_at_a_time.copy")
    before = pipeline.look()
    sent = pipeline.publish("one")
    gate.shut()
    first = airflow.trigger("one_at_a_time")
    gate.wait()
    second = airflow.trigger("one_at_a_time")
    airflow.wait_for_run("one_at_a_time", second, ["running"])
    # The scheduler examines it repeatedly, and leaves it waiting.
    airflow.wait_for_task("one_at_a_time", second, "copy", ["scheduled"])
    gate.open()
    for run_id in (first, second):
        wait_success(airflow, "one_at_a_time", run_id)
    after = pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(first, 1), (second, 1)]
    assert [run.records_read for run in after.runs[-2:]] == [RECORDS, 0]

    more = pipeline.publish("moved")
    pipeline.moved_by_somebody_else(0)
    moved = pipeline.look()
    run_id = airflow.trigger("one_at_a_time")
    assert airflow.wait_for_run("one_at_a_time", run_id) == "failed"
    assert tries(airflow, "one_at_a_time", run_id) == ["failed"]
    log = airflow.task_log("one_at_a_time", run_id, "copy", 1)
    assert log.count("docs/errors.md#cursormoved") == 1, log
    events = eventually(lambda: lineage_of(folder, "one_at_a_time.copy", run_id), lambda seen: "FAIL" in seen)
    assert events["FAIL"]["run"]["facets"]["airflowEos"]["run_key"] == keys.cursor_run_key(
        "one_at_a_time.copy", run_id
    )
    assert pipeline.look() == moved
    done = airflow.cli("eos", "reset-offsets", "--group", "one", "--to", "cursor", "--yes")
    assert done.returncode == 0, done.stderr
    assert pipeline.look() == after
    airflow.clear("one_at_a_time", run_id, ["copy"])
    wait_success(airflow, "one_at_a_time", run_id)
    settled = pipeline.look()
    assert settled == grown(after, more, runs=settled.runs)
    assert added(after, settled) == [(run_id, 2)]


def test_replay_writes_once_more_what_somebody_confirmed(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """Unconfirmed, it fails at once. Confirmed, it writes, moves no offset; the ledger says who and why."""
    replayed = Pipeline(kafka, "one", "replayed.replay", sink="replayed-out")
    replayed.publish("replayed")
    source = read_topic(kafka.client_config(), "one-in")
    counts = Counter(record.partition for record in source)
    ranges = [["one-in", partition, 0, count] for partition, count in sorted(counts.items())]
    before = replayed.look()
    conf = {"ranges": ranges, "reason": "the sink was lost", "confirm": False}
    refused = airflow.trigger("replayed", conf=conf)
    confirmed = airflow.trigger("replayed", conf={**conf, "confirm": True})
    assert airflow.wait_for_run("replayed", refused) == "failed"
    assert len(airflow.api.tries("replayed", refused, "replay")) == 1
    assert airflow.wait_for_run("replayed", confirmed) == "success"
    after = replayed.look()
    assert after.output == before.output + Counter(record.value for record in source)
    assert after.offset == before.offset
    assert added(before, after) == [(confirmed, 1)]
    audit = after.runs[-1].details["audit"]
    assert (audit["reason"], audit["replay"], audit["dag_id"]) == (conf["reason"], ranges, "replayed")

    airflow.clear("replayed", confirmed, ["replay"])
    assert airflow.wait_for_run("replayed", confirmed) == "success"
    assert airflow.xcom("replayed", confirmed, "replay")["found"] is True
    assert replayed.look() == after


@pytest.mark.chaos
@pytest.mark.parametrize("gate", ["narrow"], indirect=True)
def test_pool_and_max_active_runs_let_runs_wait(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate
) -> None:
    """A pool with one slot, a Dag with one active run: waiting runs hold no epoch and lose nothing."""
    airflow.api.call("POST", "/pools", {"name": "single", "slots": 1})
    pipelines = [
        Pipeline(kafka, f"narrow{n}", f"narrow.copy{n}", source="narrow-in", sink="narrow-out")
        for n in (1, 2)
    ]
    sent = pipelines[0].publish("narrow")
    gate.shut()
    first, second = airflow.trigger("narrow"), airflow.trigger("narrow")
    gate.wait()
    states = sorted(str(airflow.task("narrow", first, f"copy{n}")["state"]) for n in (1, 2))
    assert states == ["running", "scheduled"]
    assert airflow.run_state("narrow", second) == "queued"
    gate.open()
    for run_id in (first, second):
        assert airflow.wait_for_run("narrow", run_id) == "success"
    for pipeline in pipelines:
        columns = pipeline.look()
        assert [(run.run_id, run.try_number) for run in columns.runs] == [(first, 1), (second, 1)]
        assert columns.offset == RECORDS
        assert columns.output == sent + sent  # two pipelines, each record once


@pytest.mark.parametrize("gate", ["rounds"], indirect=True)
def test_killed_between_two_rounds(airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate) -> None:
    """The retry continues after the last committed round."""
    rounds = Pipeline(kafka, "rounds", "rounds.copy")
    before = rounds.look()
    sent = rounds.publish("rounds")
    gate.shut()
    run_id = airflow.trigger("rounds")
    gate.wait(2)  # the first round is committed, the second one waits
    between = rounds.look()
    assert (between.output.total(), between.offset) == (40, 40)
    assert added(before, between) == [(run_id, 1)]
    airflow.kill_task("rounds", run_id, "copy")
    gate.open()
    wait_success(airflow, "rounds", run_id)
    after = rounds.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(between, after) == [(run_id, 2), (run_id, 2)]
    assert after.runs[-1].run_key.endswith("/final")
    xcom = airflow.xcom("rounds", run_id, "copy")
    assert (xcom["records_read"], xcom["rounds"]) == (RECORDS, 3)


def test_on_committed_decides_what_a_clear_means(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """``reprocess`` writes the recorded ranges again and moves no offset; ``fail`` fails at once."""
    again = Pipeline(kafka, "again", "cleared.again", source="cleared-in", sink="cleared-again")
    never = Pipeline(kafka, "never", "cleared.never", source="cleared-in", sink="cleared-never")
    sent = again.publish("first")
    run_id = airflow.trigger("cleared")
    assert airflow.wait_for_run("cleared", run_id) == "success"
    first, only = again.look(), never.look()
    assert first.output == only.output == sent

    again.publish("second")  # not part of the recorded ranges
    airflow.clear("cleared", run_id, ["again", "never"])
    assert airflow.wait_for_run("cleared", run_id) == "failed"
    assert airflow.task("cleared", run_id, "again")["state"] == "success"
    after = again.look()
    assert (after.output, after.offset) == (sent + sent, first.offset)
    assert added(first, after) == [(run_id, 2)]
    assert after.runs[-1].run_key == f"{first.runs[-1].run_key}#1"
    assert after.runs[-1].ranges == first.runs[-1].ranges

    failed = airflow.task("cleared", run_id, "never")
    assert (failed["state"], failed["try_number"]) == ("failed", 2)
    assert "RunAlreadyCommitted" in airflow.task_log("cleared", run_id, "never", 2)
    assert never.look() == only


@pytest.mark.chaos
def test_run_made_again_under_its_id_is_the_same_work(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """A deleted and recreated run is not a clear: neither repeated nor refused, whatever on_committed is."""
    again = Pipeline(kafka, "again", "cleared.again", source="cleared-in", sink="cleared-again")
    never = Pipeline(kafka, "never", "cleared.never", source="cleared-in", sink="cleared-never")
    again.publish("deleted")
    run_id = airflow.trigger("cleared")
    assert airflow.wait_for_run("cleared", run_id) == "success"
    before = [again.look(), never.look()]
    airflow.api.call("DELETE", f"/dags/cleared/dagRuns/{run_id}")
    assert airflow.trigger("cleared", run_id) == run_id
    assert airflow.wait_for_run("cleared", run_id) == "success"
    for task_id in ("again", "never"):
        task = airflow.xcom("cleared", run_id, task_id)
        assert (task["found"], task["try_number"]) == (True, 1)
    assert [again.look(), never.look()] == before


def test_mapped_tasks_have_a_cursor_each(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """One task per source partition; clearing one, or the whole run, writes nothing again."""
    mapped = Pipeline(kafka, "mapped", "mapped.copy")
    before = mapped.look()
    sent = mapped.publish("mapped")
    run_id = airflow.trigger("mapped")
    assert airflow.wait_for_run("mapped", run_id) == "success"
    first = [airflow.xcom("mapped", run_id, "copy", map_index=index) for index in (0, 1)]
    assert [[r[:2] for r in xcom["ranges"]] for xcom in first] == [
        [["mapped-in", 0]],
        [["mapped-in", 1]],
    ]
    assert sum(xcom["records_written"] for xcom in first) == RECORDS
    for index, xcom in enumerate(first):
        assert xcom["run_key"].startswith(keys.run_key_prefixes("mapped.copy"))
        assert f"/mapped-in-{index}/" in xcom["run_key"]
    after = mapped.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 1), (run_id, 1)]

    airflow.clear("mapped", run_id, [["copy", 0]])
    airflow.wait_for_task("mapped", run_id, "copy", ["success"], try_number=2, map_index=0)
    assert airflow.xcom("mapped", run_id, "copy", map_index=0) == {**first[0], "found": True}
    assert airflow.task("mapped", run_id, "copy", 1)["try_number"] == 1

    airflow.clear_run("mapped", run_id)
    for index, number in ((0, 3), (1, 2)):
        airflow.wait_for_task("mapped", run_id, "copy", ["success"], try_number=number, map_index=index)
        assert airflow.xcom("mapped", run_id, "copy", map_index=index)["found"] is True
    assert mapped.look() == after


@pytest.mark.chaos
@pytest.mark.parametrize("gate", ["listed1"], indirect=True)
def test_element_of_a_list_that_changed_its_order_is_not_left_out(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, gate: Gate, folder: Path
) -> None:
    """The retry of the first index gets the element that the second one did, and fails; a clear does both."""
    pipelines = [Pipeline(kafka, name, name) for name in ("listed1", "listed2")]
    sent = [pipeline.publish("listed") for pipeline in pipelines]
    gate.shut()
    run_id = airflow.trigger("listed")
    gate.wait()
    airflow.wait_for_task("listed", run_id, "copy", ["success"], map_index=1)
    reordered = folder / "listed.reversed"
    reordered.touch()
    try:
        airflow.kill_task("listed", run_id, "copy", map_index=0)
        gate.open()
        assert airflow.wait_for_run("listed", run_id) == "failed"
        failure = airflow.xcom("listed", run_id, "copy", "airflow_eos_failure", map_index=0)
        assert (failure["try_number"], failure["error"]) == (2, "DifferentWork")
        airflow.clear("listed", run_id, ["copy"])
        assert airflow.wait_for_run("listed", run_id) == "success"
    finally:
        reordered.unlink()
    assert [pipeline.look().output for pipeline in pipelines] == sent


def tries(airflow: AirflowStandalone, dag_id: str, run_id: str) -> list[str]:
    """Return the states of all tries."""
    return [ti["state"] for ti in airflow.api.tries(dag_id, run_id, "copy")]


def logged_at(airflow: AirflowStandalone, dag_id: str, run_id: str, text: str) -> float:
    """Return the time of a text in the first try's log, in seconds since 1970; 0 if it is not there yet."""
    for line in airflow.task_log(dag_id, run_id, "copy", 1).splitlines():
        if text in line and line.endswith("}"):  # a line may be half written
            moment = json.loads(line)["timestamp"].replace("Z", "+00:00")
            return dt.datetime.fromisoformat(moment).timestamp()
    return 0.0


def wait_success(airflow: AirflowStandalone, dag_id: str, run_id: str) -> None:
    """Wait for the run's success; a failure shows the task's log."""
    state = airflow.wait_for_run(dag_id, run_id)
    number = airflow.task(dag_id, run_id, "copy")["try_number"]
    assert state == "success", airflow.task_log(dag_id, run_id, "copy", number)[-6000:]


def wait_until_gone(airflow: AirflowStandalone, process: int) -> None:
    """Wait for the end of a task's process, which learns of its state by Airflow's heartbeat."""
    eventually(airflow.processes, lambda seen: process not in seen, seconds=90)
