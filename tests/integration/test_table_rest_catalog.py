"""Runs through Iceberg's own REST catalog, a process that loses answers and is killed: each record once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import snapshots

from airflow_eos.exceptions import OutcomeUnknown
from airflow_eos.ledger import keys
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.table import PublishedRun, TableCommit, TableReceipt
from airflow_eos.run import publishing
from airflow_eos.run.states import State
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos_testing.faults.catalog_proxy import CatalogProxy
from airflow_eos_testing.iceberg_catalog import IcebergRestCatalog
from tests.support.patience import wait_until
from tests.support.publishing import PublishingAttempt
from tests.support.tables import TablePipeline, new_catalog, values_of


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    with IcebergRestCatalog(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture
def proxy(catalog):
    with CatalogProxy(catalog.address) as running:
        yield running


@pytest.fixture
def pipeline(embedded_kafka, catalog, proxy):
    return TablePipeline(embedded_kafka, properties=proxy.properties, look=catalog.properties)


def test_runs_go_through_a_rest_catalog(pipeline):
    """The table has the rows, the record has the table's receipt, the next run reads on."""
    pipeline.publish(["a", "b"])
    record = pipeline.run("r1")
    snapshot = pipeline.table.current_snapshot()
    assert record.details["table"]["snapshot"] == snapshot.snapshot_id
    assert snapshot.summary["eos.run-key"] == record.run_key
    pipeline.publish(["c"])
    pipeline.run("r2")
    assert pipeline.run("r1", try_number=2).found
    assert pipeline.values() == ["a", "b", "c"]


@pytest.mark.parametrize("of", ["Java", "a database"])
def test_java_reads_a_table_that_a_host_with_a_slow_clock_has_written(
    embedded_kafka, catalog, tmp_path, monkeypatch, of
):
    """Its snapshots are ordered by time, and the run does not wait for the clock to catch up."""
    properties = catalog.properties if of == "Java" else new_catalog(tmp_path)
    pipeline = TablePipeline(embedded_kafka, properties=properties)
    pipeline.publish(["a"])
    with monkeypatch.context() as ahead:
        ahead.setattr(snapshots, "time", SimpleNamespace(time=lambda: time.time() + 3600))
        pipeline.run("r1")
    for run_id in ("r2", "r3"):
        pipeline.publish([run_id])
        pipeline.run(run_id)
    assert pipeline.values() == ["a", "r2", "r3"]
    java = load_catalog("java", **catalog.properties)
    java.create_namespace_if_not_exists("registered")
    registered = java.register_table(f"registered.{pipeline.source}", pipeline.table.metadata_location)
    assert values_of(registered) == ["a", "r2", "r3"]
    times = [snapshot.timestamp_ms for snapshot in registered.snapshots()]
    assert times == sorted(set(times))


@pytest.mark.parametrize("fault", ["lose_response", "cut", "repeat"])
def test_a_commit_that_a_proxy_loses_or_repeats_is_looked_up(pipeline, proxy, fault):
    """Its answer is lost, it never arrives, or its retry is refused because it was committed."""
    pipeline.publish(["a", "b"])
    met = getattr(proxy, fault)()
    record = pipeline.run("r1")
    assert met.hits == 1
    assert record.details["table"]["rows"] == 2
    assert pipeline.values() == ["a", "b"]
    assert len(pipeline.table.snapshots()) == 1


def test_a_look_that_is_not_answered_is_repeated(pipeline, proxy):
    """Before the commit; an error while the plan is made fails the try instead: nothing is pinned yet."""
    pipeline.publish(["a"])

    def entered(state):
        if state is State.INTENT:
            looks.append(proxy.lose_response("GET", times=2))

    looks = []
    pipeline.run("r1", on_state=entered)
    assert looks[0].hits == 2
    assert pipeline.values() == ["a"]


@pytest.mark.parametrize("commit", ["is done", "is not done"])
def test_a_catalog_that_is_killed_at_the_commit_is_asked_when_it_is_back(pipeline, proxy, catalog, commit):
    """SIGKILL right after the commit, or before it arrives; the same try continues when it is back."""
    pipeline.publish(["a", "b"])

    def killed_and_back():
        catalog.kill()
        catalog.start()

    fault = proxy.lose_response if commit == "is done" else proxy.cut
    met = fault(then=killed_and_back)
    pipeline.run("r1")
    assert met.hits == 1
    assert pipeline.values() == ["a", "b"]
    assert len(pipeline.table.snapshots()) == 1


@pytest.mark.parametrize("commit", ["is done", "is not done"])
def test_a_catalog_that_stays_away_is_asked_by_the_next_try(pipeline, proxy, catalog, monkeypatch, commit):
    """The try ends without an answer. The next one adopts the rows, or bars the INTENT and writes again."""
    monkeypatch.setattr(publishing, "MAX_LOOKS", 3)
    pipeline.publish(["a", "b"])
    fault = proxy.lose_response if commit == "is done" else proxy.cut
    met = fault(then=catalog.kill)
    try:
        with pytest.raises(OutcomeUnknown, match="A retry finds out"):
            pipeline.run("r1")
    finally:
        catalog.start()
    assert met.hits == 1
    pipeline.publish(["c"])
    pipeline.run("r2")
    pipeline.run("r3")
    assert pipeline.values() == ["a", "b", "c"]
    appends = [
        snapshot
        for snapshot in pipeline.table.snapshots()
        if "eos.barred" not in snapshot.summary.additional_properties
    ]
    assert len(appends) == (2 if commit == "is done" else 1)


@pytest.mark.parametrize("apart", [True, False], ids=["a property each", "the counter-test: one for both"])
def test_what_a_run_says_of_one_branch_is_not_written_over_from_another(catalog, apart):
    """A REST catalog compares only the branch's head: both commits succeed, and set a property.

    From format version 2 on, the snapshots' sequence numbers make it refuse the second one nevertheless.
    """
    own = load_catalog("c", **catalog.properties)
    own.create_namespace_if_not_exists("db")
    name = f"db.branches_{apart}"
    schema = pa.schema([("value", pa.string())])
    table = own.create_table(name, schema=schema, properties={"format-version": "1"})
    table.append(pa.table({"value": ["first"]}))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    sinks = {
        branch: IcebergSink(
            IcebergTable(name, catalog="c", branch=branch, properties=catalog.properties),
            keys.table_property("ledger", "group", branch if apart else None),
        )
        for branch in (None, "audit")
    }
    looked_at = {branch: sink.load() for branch, sink in sinks.items()}
    for branch, version in looked_at.items():
        run = PublishedRun(f"run/p/{branch}", 10, TableReceipt(0, 0, 0), lasting=True)
        published = version.published.with_run(str(branch), run)
        sinks[branch].commit(version, TableCommit(str(branch), published))

    assert ("None" in sinks[None].load().published.runs) is apart
    assert "audit" in sinks["audit"].load().published.runs


def test_a_commit_to_another_branch_costs_a_look(catalog):
    """After it, Java refuses the snapshot's sequence number with a 400, as an error that no retry changes."""
    own = load_catalog("c", **catalog.properties)
    own.create_namespace_if_not_exists("db")
    table = own.create_table("db.overtaken", schema=pa.schema([("value", pa.string())]))
    table.append(pa.table({"value": ["first"]}))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    sink = IcebergSink(
        IcebergTable("db.overtaken", catalog="c", branch="audit", properties=catalog.properties), "eos.1"
    )
    attempt = PublishingAttempt(sink, "run/p/1", "cursor", 10, lasting=True)
    attempt.before_commit = lambda: table.append(pa.table({"value": ["other"]}))
    receipt = attempt.publish()
    assert attempt.commits == 2
    assert sink.load().published.runs["cursor"].receipt == receipt


@pytest.mark.chaos
def test_a_catalog_that_is_killed_amid_commits_takes_commits_again(catalog):
    """Its database has the journal of an unfinished commit."""
    own = load_catalog("own", **catalog.properties)
    own.create_namespace_if_not_exists("db")
    own.create_table("db.killed", schema=pa.schema([("id", pa.int64())]))
    over, tries = threading.Event(), Counter()

    def commit_on(name):
        while not over.is_set():
            tries[name] += 1
            with suppress(Exception), own.load_table("db.killed").transaction() as transaction:
                transaction.set_properties({name: str(tries[name])})

    threads = [threading.Thread(target=commit_on, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(tries[name] for name in "abc") > 2)
    catalog.kill()
    catalog.start()
    before = tries.total()
    wait_until(lambda: tries.total() > before + 9)
    over.set()
    for thread in threads:
        thread.join()
    for number in range(5):
        with own.load_table("db.killed").transaction() as transaction:
            transaction.set_properties({"number": str(number)})
    assert own.load_table("db.killed").properties["number"] == "4"
