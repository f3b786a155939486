"""Backfills by a real scheduler: daily intervals of the flights, concurrent, repeated, and backwards.

``make test`` backfills the Dag that loads a table: ``test_flights_table``.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.airflow import AirflowStandalone
from tests.system.backfills import FIRST, backfill, create, day_of, wait
from tests.system.flights_support import canonical, expected_output, flights_input
from tests.system.retries_table import Pipeline, added

from flights_input import publish  # isort: skip


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_days_are_backfilled_and_again_backwards(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """Every flight is written once; a concurrent cursor of the same pipeline keeps its offsets."""
    again = backfill(airflow, kafka, "four", days=4)
    again(2, "--reprocess-behavior", "completed", "--run-backwards")


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_all_ninety_days_are_backfilled_twice_and_backwards(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """All days with all flights are written once; repeated backfills, in either order, change nothing."""
    again = backfill(airflow, kafka, "ninety", days=90)
    again(1)  # Airflow's own rule: an existing run is not created again
    again(2, "--reprocess-behavior", "completed")
    again(3, "--reprocess-behavior", "completed", "--run-backwards")


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_partitions_are_found_though_a_backfill_names_new_runs(
    airflow: AirflowStandalone, kafka: EmbeddedKafka
) -> None:
    """A reprocess backfill of a partitioned Dag creates new runs: the partition key finds committed work."""
    days = 2
    messages = [
        message
        for message in flights_input()[1]
        if (day_of(message) - FIRST).days < days and message.key != b"XXX"
    ]
    publish(kafka.client_config(), "partitioned-in", messages)
    pipeline = Pipeline(kafka, "partitioned", "partitioned")
    before = pipeline.look()
    airflow.wait_for_dag("partitioned")
    airflow.api.unpause("partitioned")
    last = FIRST + dt.timedelta(days=days)
    create(airflow, "partitioned", last)
    xcoms = wait(airflow, "partitioned", days, tries=1)
    columns = pipeline.look()
    assert sorted(added(before, columns)) == sorted((run, 1) for run in xcoms)
    assert sum(summary["records_written"] for summary in xcoms.values()) == len(messages)
    assert {summary["mode"] for summary in xcoms.values()} == {"partition"}

    create(airflow, "partitioned", last, "--reprocess-behavior", "completed")
    both = wait(airflow, "partitioned", 2 * days, tries=1)
    again = [summary for run_id, summary in both.items() if run_id not in xcoms]
    assert sorted((summary["run_key"], summary["found"]) for summary in again) == sorted(
        (summary["run_key"], True) for summary in xcoms.values()
    )
    assert pipeline.look() == columns
    wanted, _ = expected_output(messages)
    flights = read_topic(kafka.client_config(), "partitioned-out")
    assert Counter((record.key, canonical(json.loads(record.value or b""))) for record in flights) == wanted
