"""Observability of a run under a real scheduler: metrics, spans, links."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_eos.ledger import keys
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.patience import eventually
from tests.system.collector import Collector
from tests.system.lineage import datasets, lineage_of
from tests.system.retries_table import Pipeline, added, grown

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

ORDER = ("asked", "fenced", "checked", "planned", "sealed", "open", "written", "staged", "proven")
DECIDED = ("unknown", "fenced")


def test_run_whose_answer_is_lost_commits_once_and_tells_of_it(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, collector: Collector, folder: Path
) -> None:
    """It emits metrics, a span per state in the task's trace, both links, and lineage with the ranges."""
    lost = Pipeline(kafka, "lost", "loses_its_answer.copy")
    before = lost.look()
    sent = lost.publish("lost")
    run_id = airflow.trigger("loses_its_answer")
    assert airflow.wait_for_run("loses_its_answer", run_id) == "success"
    after = lost.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 1)]

    resolved = "airflow.eos.run.resolved"
    metrics = eventually(lambda: collector.metrics("loses_its_answer"), lambda seen: resolved in seen)
    assert metrics.pop("airflow.eos.run.duration") > 0
    assert metrics == {
        "airflow.eos.run.records_read": 100,
        "airflow.eos.run.records_written": 100,
        "airflow.eos.run.lag": 0,
        "airflow.eos.run.undecided": 0,
        resolved: 1,
    }
    order = [f"eos.run.{state}" for state in (*ORDER, *DECIDED)]
    spans = eventually(lambda: collector.spans("loses_its_answer"), lambda seen: len(seen) >= len(order))
    assert [name for name, *_ in spans] == order
    assert all(then[1] == first[2] for first, then in pairwise(spans))
    assert len({trace for *_, trace in spans}) == 1

    events = eventually(
        lambda: lineage_of(folder, "loses_its_answer.copy", run_id), lambda seen: "COMPLETE" in seen
    )
    path = f"/dags/loses_its_answer/dagRuns/{run_id}/taskInstances/copy/links"
    links = airflow.api.call("GET", path)["extra_links"]
    key = quote(keys.run_record_key(keys.cursor_run_key("loses_its_answer.copy", run_id)), safe="")
    assert links["Ledger record"] == f"https://ui.example.com/airflow-eos-ledger?key={key}"
    assert links["Spark UI"].startswith("https://history.example.com/")
    application = after.runs[-1].details["versions"]["application_id"]
    assert links["Spark UI"] == f"https://history.example.com/{application}"

    assert set(events) == {"START", "COMPLETE"}
    cluster = f"kafka://{kafka.bootstrap_servers}"
    for event in events.values():
        assert datasets(event["inputs"]) == [(cluster, "lost-in")]
        assert datasets(event["outputs"]) == [(cluster, "lost-out")]
    (output,) = events["COMPLETE"]["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 100
    facet = events["COMPLETE"]["run"]["facets"]["airflowEos"]
    ranges = [
        [offsets["topic"], offsets["partition"], offsets["start"], offsets["end"]]
        for offsets in facet["offset_ranges"]
    ]
    assert ranges == [offsets.to_list() for offsets in after.runs[-1].ranges]
