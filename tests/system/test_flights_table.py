"""The example Dag that loads a table, under a real scheduler: killed, retried, backfilled, cleared."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos.ledger import keys
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually
from tests.support.tables import held_catalog, rows_of
from tests.system.backfills import FIRST, create, day_of
from tests.system.flights_support import expected, flights_input
from tests.system.lineage import datasets, lineage_of

from flights_input import Message, publish  # isort: skip

DAG, TASK = "flights_table", "load"
SINK = "iceberg:iceberg_default/lake.flights"
DAYS = 3


@pytest.mark.timeout(900)
def test_days_are_in_the_table_once_though_a_task_is_killed_and_all_are_backfilled_again(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, lake: dict[str, str], folder: Path
) -> None:
    """A task is killed after it has written its files and before it publishes them; retries do the rest."""
    messages = [message for message in flights_input()[1] if (day_of(message) - FIRST).days < DAYS]
    publish(kafka.client_config(), "table-in", messages)
    airflow.wait_for_dag(DAG)
    airflow.api.unpause(DAG)
    last = FIRST + dt.timedelta(days=DAYS)
    table = load_catalog("iceberg_default", **lake).load_table("lake.flights")
    with held_catalog(lake, table) as held:
        create(airflow, DAG, last)
        held.wait_for(DAYS)
        runs = airflow.api.call("GET", f"/dags/{DAG}/dagRuns?run_type=backfill")["dag_runs"]
        killed = str(runs[1]["dag_run_id"])
        airflow.kill_task(DAG, killed, TASK)
        assert rows_of(table.refresh(), "select count(*) from rows") == [(0,)]
    xcoms = _xcoms(airflow, runs, tries=1)
    tries = [attempt["state"] for attempt in airflow.api.tries(DAG, killed, TASK)]
    assert tries == ["failed", "success"]

    _check_rows(table.refresh(), messages)
    snapshots = {snapshot.snapshot_id: snapshot.summary for snapshot in table.snapshots()}
    for summary in xcoms.values():
        assert summary["written"] == {SINK: summary["records_read"]}
        assert snapshots[summary["table"]["snapshot"]]["eos.run-key"] == summary["run_key"]
    assert sum(summary["records_written"] for summary in xcoms.values()) == len(messages)
    _check_what_airflow_shows(airflow, kafka, folder, killed, xcoms[killed])

    create(airflow, DAG, last, "--reprocess-behavior", "completed", "--run-backwards")
    assert _xcoms(airflow, runs, tries=2) == {
        run: {**summary, "found": True} for run, summary in xcoms.items()
    }
    assert {snapshot.snapshot_id for snapshot in table.refresh().snapshots()} == set(snapshots)
    _check_rows(table, messages)


def _xcoms(airflow: AirflowStandalone, runs: list[dict[str, Any]], *, tries: int) -> dict[str, Any]:
    """Wait until each task has succeeded in a try of at least that number; return its XCom by run."""
    xcoms = {}
    for run_id in (run["dag_run_id"] for run in runs):
        eventually(
            lambda run_id=run_id: airflow.task(DAG, run_id, TASK),
            lambda task: task["state"] == "success" and task["try_number"] >= tries,
            seconds=240,
        )
        xcoms[run_id] = airflow.xcom(DAG, run_id, TASK)
    return xcoms


def _check_rows(table: Any, messages: list[Message]) -> None:
    """Assert that DuckDB, which shares no code with the writer, finds each record once, broken ones raw."""
    twice = "select source_partition, source_offset from rows group by all having count(*) > 1"
    assert rows_of(table, twice) == []
    columns = "epoch_ms(departure), origin, delay, malformed"
    flights = Counter(rows_of(table, f"select {columns} from rows"))
    wanted = Counter(
        (message.timestamp, None, None, message.value)
        if expected(message.value) is None
        else (message.timestamp, message.key.decode(), json.loads(message.value).get("delay"), None)
        for message in messages
    )
    assert flights == wanted


def _check_what_airflow_shows(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path, run_id: str, summary: dict[str, Any]
) -> None:
    links = airflow.api.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/{TASK}/links")["extra_links"]
    assert quote(keys.run_record_key(summary["run_key"]), safe="") in links["Ledger record"]

    events = airflow.api.call("GET", f"/assets/events?source_dag_id={DAG}&source_run_id={run_id}")
    (event,) = events["asset_events"]
    assert event["extra"]["airflow_eos"]["table"] == summary["table"]
    assert event["extra"]["airflow_eos"]["written"] == summary["written"]

    lineage = eventually(lambda: lineage_of(folder, f"{DAG}.{TASK}", run_id), lambda seen: "COMPLETE" in seen)
    assert datasets(lineage["COMPLETE"]["inputs"]) == [(f"kafka://{kafka.bootstrap_servers}", "table-in")]
    assert datasets(lineage["COMPLETE"]["outputs"]) == [("iceberg://iceberg_default", "lake.flights")]
    (output,) = lineage["COMPLETE"]["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == summary["records_written"]
