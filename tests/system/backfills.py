"""Backfills of the flights' days, checked by independent consumers; shared by tests on several Airflows."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.airflow import AirflowStandalone
from tests.system.flights_support import canonical, expected_output, flights_input
from tests.system.retries_table import Pipeline, added

from flights_input import Message, publish  # isort: skip

FIRST = dt.date(2001, 1, 1)


def backfill(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, dag_id: str, *, days: int, at_once: int = 3
) -> Callable[..., None]:
    """Backfill the days, with a concurrent cursor; return a function that backfills again and checks all.

    :param at_once: number of concurrent Dag runs.
    """
    source, given = flights_input()
    print(source)
    last = FIRST + dt.timedelta(days=days)
    messages = [message for message in given if FIRST <= day_of(message) < last]
    publish(kafka.client_config(), f"{dag_id}-in", messages)
    wanted, dead = expected_output(messages)
    airflow.wait_for_dag(dag_id)
    airflow.api.unpause(dag_id)

    pipeline = Pipeline(kafka, dag_id, dag_id)
    before = pipeline.look()
    create(airflow, dag_id, last, at_once=at_once)
    cursor = airflow.trigger(f"{dag_id}_cursor")  # while the intervals run
    first = wait(airflow, dag_id, days, tries=1)
    assert airflow.wait_for_run(f"{dag_id}_cursor", cursor) == "success"
    assert sum(summary["records_written"] for summary in first.values()) == len(messages)
    assert {summary["mode"] for summary in first.values()} == {"interval"}
    _check(kafka, dag_id, wanted, dead, messages)

    assert airflow.xcom(f"{dag_id}_cursor", cursor, "classify")["records_read"] == len(messages)
    columns = pipeline.look()
    assert columns.offset == before.offset + len(messages)
    assert sorted(added(before, columns)) == sorted((run, 1) for run in (*first, cursor))
    _check_tiles(run for run in columns.runs if run.mode == "interval")

    def again(tries: int, *options: str, forgotten: bool = False) -> None:
        create(airflow, dag_id, last, *options, at_once=at_once)
        seen = wait(airflow, dag_id, days, tries=tries)
        assert seen == {run: {**summary, "found": tries > 1 or forgotten} for run, summary in first.items()}
        assert pipeline.look() == columns, "what is committed stays, and intervals never move offsets"

    return again


def create(airflow: AirflowStandalone, dag_id: str, last: dt.date, *options: str, at_once: int = 3) -> None:
    """Create a backfill of the days before ``last`` with Airflow's command."""
    command = [
        *("backfill", "create", "--dag-id", dag_id, "--max-active-runs", str(at_once)),
        *("--from-date", FIRST.isoformat(), "--to-date", (last - dt.timedelta(days=1)).isoformat()),
        *options,
    ]
    _wait_until_none_runs(airflow, dag_id)
    with airflow.standing_still():
        done = airflow.cli(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def _wait_until_none_runs(airflow: AirflowStandalone, dag_id: str) -> None:
    """Wait until no backfill of the Dag runs: the scheduler checks for ended ones every half minute."""
    deadline = time.monotonic() + 120
    while True:
        backfills = airflow.api.call("GET", f"/backfills?dag_id={dag_id}")["backfills"]
        running = [entry["id"] for entry in backfills if entry["completed_at"] is None]
        if not running:
            return
        assert time.monotonic() < deadline, f"{running} do not end; {airflow.condition()}\n{airflow.logs()}"
        time.sleep(0.5)


def wait(airflow: AirflowStandalone, dag_id: str, days: int, *, tries: int) -> dict[str, dict]:
    """Wait until every day's task has succeeded in try ``tries``; return its XComs by run."""
    deadline = time.monotonic() + 60 + 30 * days
    while True:
        runs = airflow.api.call("GET", f"/dags/{dag_id}/dagRuns?limit=100&run_type=backfill")["dag_runs"]
        states = {run["dag_run_id"]: run["state"] for run in runs}
        if len(states) == days and set(states.values()) == {"success"}:
            numbers = {run: airflow.task(dag_id, run, "classify")["try_number"] for run in states}
            if min(numbers.values()) >= tries:
                assert set(numbers.values()) == {tries}, _failed_tries(airflow, numbers, tries, dag_id)
                return {run: airflow.xcom(dag_id, run, "classify") for run in states}
        assert "failed" not in states.values(), _failed(airflow, states, dag_id)
        assert time.monotonic() < deadline, f"{states}; {airflow.condition()}\n{airflow.logs()}"
        time.sleep(0.5)


def _failed_tries(airflow: AirflowStandalone, numbers: dict[str, int], tries: int, dag_id: str) -> str:
    logs = [
        f"--- {run}, try {number} ---\n{airflow.task_log(dag_id, run, 'classify', number)[-4000:]}"
        for run, last in numbers.items()
        for number in range(tries, last)
    ]
    return "\n".join(logs)


def _failed(airflow: AirflowStandalone, states: dict[str, str], dag_id: str) -> str:
    run = next(run for run, state in states.items() if state == "failed")
    return airflow.task_log(dag_id, run, "classify", airflow.task(dag_id, run, "classify")["try_number"])[
        -6000:
    ]


def _check(kafka: EmbeddedKafka, name: str, wanted: Counter, dead: Counter, messages: list[Message]) -> None:
    flights = read_topic(kafka.client_config(), f"{name}-out")
    assert Counter((record.key, canonical(json.loads(record.value or b""))) for record in flights) == wanted
    # The cursor's run wrote the same dead letters again.
    letters = read_topic(kafka.client_config(), f"{name}-dead")
    assert Counter(record.value for record in letters) == dead + dead
    assert len(flights) + dead.total() == len(messages)


def _check_tiles(runs: Iterable[RunRecord]) -> None:
    """Assert that the ranges of all runs are contiguous in each partition, from its first record on."""
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for r in (r for run in runs for r in run.ranges):
        ranges[r.partition].append((r.start, r.end))
    for spans in map(sorted, ranges.values()):
        assert spans[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(spans)), spans


def day_of(message: Message) -> dt.date:
    """Return the day of a flight."""
    return dt.datetime.fromtimestamp(message.timestamp / 1000, dt.timezone.utc).date()
