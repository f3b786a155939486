"""Backfills by a real scheduler: daily intervals of the flights, several at once, again, and backwards."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.airflow import AirflowStandalone
from tests.system.flights_support import canonical, expected_output, flights_input
from tests.system.retries_table import Pipeline, added

from flights_input import Message, publish  # isort: skip

FIRST = dt.date(2001, 1, 1)


@pytest.mark.timeout(900)
def test_days_are_backfilled_and_again_backwards(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """Every flight of the days once; a cursor of the same pipeline beside them keeps its offsets."""
    again = _backfill(airflow, kafka, "four", days=4)
    again(2, "--reprocess-behavior", "completed", "--run-backwards")


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_all_ninety_days_are_backfilled_twice_and_backwards(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """As the few days, with every flight there is; once more as it was, in each order."""
    again = _backfill(airflow, kafka, "ninety", days=90)
    again(1)  # Airflow's own rule: a run that exists is not made again
    again(2, "--reprocess-behavior", "completed")
    again(3, "--reprocess-behavior", "completed", "--run-backwards")


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_partitions_are_found_though_a_backfill_names_new_runs(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """A reprocess backfill of a partitioned Dag makes new runs: the partition key finds what is committed."""
    days = 2
    messages = [one for one in flights_input()[1] if (_day(one) - FIRST).days < days and one.key != b"XXX"]
    publish(kafka.client_config(), "partitioned-in", messages)
    pipeline = Pipeline(kafka, "partitioned", "partitioned")
    before = pipeline.look()
    airflow.wait_for_dag("partitioned")
    airflow.api.unpause("partitioned")
    last = FIRST + dt.timedelta(days=days)
    _create(airflow, "partitioned", last)
    made = _wait(airflow, "partitioned", days, tries=1)
    columns = pipeline.look()
    assert sorted(added(before, columns)) == sorted((run, 1) for run in made)
    assert sum(one["records_written"] for one in made.values()) == len(messages)
    assert {one["mode"] for one in made.values()} == {"partition"}

    _create(airflow, "partitioned", last, "--reprocess-behavior", "completed")
    both = _wait(airflow, "partitioned", 2 * days, tries=1)
    again = [one for run_id, one in both.items() if run_id not in made]
    assert sorted((one["run_key"], one["found"]) for one in again) == sorted(
        (one["run_key"], True) for one in made.values()
    )
    assert pipeline.look() == columns
    wanted, _ = expected_output(messages)
    flights = read_topic(kafka.client_config(), "partitioned-out")
    assert Counter((one.key, canonical(json.loads(one.value or b""))) for one in flights) == wanted


def _backfill(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, dag_id: str, *, days: int
) -> Callable[..., None]:
    """Backfill the days, with a cursor beside them; return what backfills again and finds all unchanged."""
    source, given = flights_input()
    print(source)
    last = FIRST + dt.timedelta(days=days)
    messages = [one for one in given if FIRST <= _day(one) < last]
    publish(kafka.client_config(), f"{dag_id}-in", messages)
    wanted, dead = expected_output(messages)
    airflow.wait_for_dag(dag_id)
    airflow.api.unpause(dag_id)

    pipeline = Pipeline(kafka, dag_id, dag_id)
    before = pipeline.look()
    _create(airflow, dag_id, last)
    cursor = airflow.trigger(f"{dag_id}_cursor")  # while the intervals are at work
    first = _wait(airflow, dag_id, days, tries=1)
    assert airflow.wait_for_run(f"{dag_id}_cursor", cursor) == "success"
    assert sum(one["records_written"] for one in first.values()) == len(messages)
    assert {one["mode"] for one in first.values()} == {"interval"}
    _check(kafka, dag_id, wanted, dead, messages)

    assert airflow.xcom(f"{dag_id}_cursor", cursor, "classify")["records_read"] == len(messages)
    columns = pipeline.look()
    assert columns.offset == before.offset + len(messages)
    assert sorted(added(before, columns)) == sorted((run, 1) for run in (*first, cursor))

    def again(tries: int, *options: str) -> None:
        _create(airflow, dag_id, last, *options)
        seen = _wait(airflow, dag_id, days, tries=tries)
        assert seen == {run_id: {**one, "found": tries > 1} for run_id, one in first.items()}
        assert pipeline.look() == columns, "what is committed stays, and intervals never move offsets"

    return again


def _create(airflow: AirflowStandalone, dag_id: str, last: dt.date, *options: str) -> None:
    command = [
        *("backfill", "create", "--dag-id", dag_id, "--max-active-runs", "3"),
        *("--from-date", FIRST.isoformat(), "--to-date", (last - dt.timedelta(days=1)).isoformat()),
        *options,
    ]
    _wait_for_the_last_one(airflow, dag_id)
    with airflow.standing_still():
        done = airflow.cli(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def _wait_for_the_last_one(airflow: AirflowStandalone, dag_id: str) -> None:
    """Wait until no backfill of the Dag runs: the scheduler looks for ended ones every half minute."""
    deadline = time.monotonic() + 120
    while True:
        known = airflow.api.call("GET", f"/backfills?dag_id={dag_id}")["backfills"]
        open_ones = [one["id"] for one in known if one["completed_at"] is None]
        if not open_ones:
            return
        assert time.monotonic() < deadline, f"{open_ones} do not end; {airflow.condition()}\n{airflow.logs()}"
        time.sleep(0.5)


def _wait(airflow: AirflowStandalone, dag_id: str, days: int, *, tries: int) -> dict[str, dict]:
    """Wait until the task of every day has succeeded in that try; return its XCom by run."""
    deadline = time.monotonic() + 60 + 30 * days
    while True:
        runs = airflow.api.call("GET", f"/dags/{dag_id}/dagRuns?limit=100&run_type=backfill")["dag_runs"]
        found = {run["dag_run_id"]: run["state"] for run in runs}
        if len(found) == days and set(found.values()) == {"success"}:
            numbers = {run: airflow.task(dag_id, run, "classify")["try_number"] for run in found}
            if min(numbers.values()) >= tries:
                assert set(numbers.values()) == {tries}, _failed_tries(airflow, numbers, tries, dag_id)
                return {run: airflow.xcom(dag_id, run, "classify") for run in found}
        assert "failed" not in found.values(), _failed(airflow, found, dag_id)
        assert time.monotonic() < deadline, f"{found}; {airflow.condition()}\n{airflow.logs()}"
        time.sleep(0.5)


def _failed_tries(airflow: AirflowStandalone, numbers: dict[str, int], tries: int, dag_id: str) -> str:
    logs = [
        f"--- {run}, try {number} ---\n{airflow.task_log(dag_id, run, 'classify', number)[-4000:]}"
        for run, last in numbers.items()
        for number in range(tries, last)
    ]
    return "\n".join(logs)


def _failed(airflow: AirflowStandalone, found: dict[str, str], dag_id: str) -> str:
    run = next(run for run, state in found.items() if state == "failed")
    return airflow.task_log(dag_id, run, "classify", airflow.task(dag_id, run, "classify")["try_number"])[
        -6000:
    ]


def _check(kafka: EmbeddedKafka, name: str, wanted: Counter, dead: Counter, messages: list[Message]) -> None:
    flights = read_topic(kafka.client_config(), f"{name}-out")
    assert Counter((one.key, canonical(json.loads(one.value or b""))) for one in flights) == wanted
    # The cursor's run wrote the same dead letters, once more.
    letters = read_topic(kafka.client_config(), f"{name}-dead")
    assert Counter(one.value for one in letters) == dead + dead
    assert len(flights) + dead.total() == len(messages)


def _day(message: Message) -> dt.date:
    return dt.datetime.fromtimestamp(message.timestamp / 1000, dt.timezone.utc).date()
