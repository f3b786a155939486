"""Old run records are pruned from a real ledger; their runs are refused, and no run is repeated."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from airflow_eos.cli.main import main
from airflow_eos.coverage.lanes import Kind
from airflow_eos.engine.committed import find_committed, find_committed_by_key
from airflow_eos.engine.run import Run, RunAttempt
from airflow_eos.exceptions import ConfigurationError, GroupOwned, LedgerPruned
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operations import upkeep as ledger_upkeep
from airflow_eos.operations.deployment_status import deployment_status
from airflow_eos.operations.queries import ledger_names, ledger_records
from airflow_eos.ui.history import RunHistory
from tests.support.brokers import unique

DAY = dt.timedelta(days=1)
SECRET = "a-ledgers-secret-of-some-length"


@pytest.fixture(params=["", SECRET], ids=["unsigned", "signed"])
def spec(request, embedded_kafka, kafka_topic):
    """A run without input: it commits without Spark."""
    name = unique("pruned")
    return RunSpec(
        kafka=embedded_kafka.client_config(),
        pipeline=name,
        run_id="r0",
        source_topics=(kafka_topic(),),
        group_id=name,
        prefix="eos",
        ledger=LedgerSettings(
            topic=unique("ledger"), partitions=1, replication_factor=1, create=True, key=request.param
        ),
    )


@pytest.fixture
def young(monkeypatch):
    """Let records be pruned at any age."""
    monkeypatch.setattr(ledger_upkeep, "MIN_AGE", -DAY)


def run(spec, run_id="r0", **changes):
    return RunAttempt(None, replace(spec, run_id=run_id, **changes), lambda df: df).execute()


def prune(spec, *, execute=True, **changes):
    before = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)
    pruned = ledger_upkeep.prune_ledger(spec.deployment, before, execute=execute, **changes)
    return pruned.to_dict()["pipelines"]


def records(spec, kind):
    listed = ledger_records(spec.deployment)
    return [record.to_dict() for record in listed if record.key.startswith(kind)]


def test_a_pruned_run_is_refused_and_new_ones_go_on(spec, young):
    """The run, a sensor and a look-up are refused. The last run and the cursor stay."""
    for number in range(4):
        run(spec, f"r{number}")
    assert prune(spec, execute=False) == {spec.pipeline: {"runs": 3, "records": 3}}
    assert len(records(spec, keys.RUN_RECORDS)) == 4
    assert prune(spec) == {spec.pipeline: {"runs": 3, "records": 3}}
    assert [record["value"]["run_id"] for record in records(spec, keys.RUN_RECORDS)] == ["r3"]
    assert len(records(spec, keys.CURSORS)) == 1

    for clear in (0, 1):
        with pytest.raises(LedgerPruned, match=r"was committed before .* it is not done again"):
            run(spec, "r1", clear_number=clear)
    with pytest.raises(LedgerPruned):
        find_committed(replace(spec, run_id="r2"))
    with pytest.raises(LedgerPruned):
        find_committed_by_key(
            spec.deployment, pipeline=spec.pipeline, run_key=keys.cursor_run_key(spec.pipeline, "r0")
        )
    assert find_committed(replace(spec, run_id="r3")) is not None
    assert find_committed(replace(spec, run_id="never")) is None
    assert not run(spec, "r4").found
    assert run(spec, "r4").found

    assert prune(spec) == {spec.pipeline: {"runs": 1, "records": 1}}
    assert prune(spec) == {}
    with pytest.raises(LedgerPruned):
        run(spec, "r3")
    status = deployment_status(spec.deployment, runs=[[(spec.pipeline, "r0")], [(spec.pipeline, "x")]])
    assert status.to_dict()["runs"] == {
        f"{spec.pipeline}/r0": {"state": "PRUNED", "run_id": "r0"},
        f"{spec.pipeline}/x": None,
    }


def test_a_pruned_run_is_written_again_as_its_refusal_says(spec, young):
    """Another Dag run with the same interval writes it; another pipeline may not move the group's cursor."""
    end = dt.datetime.now(dt.timezone.utc) - DAY
    hours = [Interval(end - 2 * DAY, end - DAY), Interval(end - DAY, end)]
    for number, interval in enumerate(hours):
        run(spec, f"i{number}", ranges=interval)
        run(spec, f"r{number}")
    prune(spec)
    mapped_since = {"run_id": "i0", "source_partition": 0}
    for changes in ({"run_id": "i0"}, {"run_id": "another"}, mapped_since):
        with pytest.raises(
            LedgerPruned, match=r"use ReplayOffsetRangesOperator, or for an interval a task of"
        ):
            run(spec, ranges=hours[0], **changes)
    with pytest.raises(GroupOwned):
        run(spec, "r0", pipeline=f"{spec.pipeline}-again")
    assert not run(spec, "i0", pipeline=f"{spec.pipeline}-again", ranges=hours[0]).found
    given = Explicit((OffsetRange(spec.source_topics[0], 0, 0, 0),))
    assert not run(spec, "replay", ranges=given).found


def test_rounds_go_together_with_their_last_one(spec, young):
    """A run in rounds is one run; it is refused with rounds and without."""
    loops = Cursor(max_records=10, until_caught_up=True)
    Run(None, replace(spec, run_id="loop", ranges=loops), lambda df: df).execute()
    run(spec, "last")
    assert prune(spec) == {spec.pipeline: {"runs": 1, "records": 1}}
    for ranges in (loops, Cursor()):
        with pytest.raises(LedgerPruned):
            find_committed(replace(spec, run_id="loop", ranges=ranges))


def test_pruned_intervals_and_offsets_are_no_gaps(spec, young):
    """`status` and the page know which intervals were covered; a gap stays a gap."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)

    def day(number):
        return Interval(start + number * DAY, start + (number + 1) * DAY)

    for number in (1, 2, 0, 4):  # 3 is missing; the oldest is not the first to be committed
        run(spec, f"d{number}", ranges=day(number))
    before = ledger_names(spec.deployment).gaps
    assert [(gap.start[:10], gap.end[:10]) for gap in before] == [("2026-01-04", "2026-01-05")]
    with RunHistory(spec.deployment) as history:
        history.refresh()
        seen = history.coverage(history.pipelines[spec.pipeline])
        assert prune(spec) == {spec.pipeline: {"runs": 3, "records": 3}}
        assert ledger_names(spec.deployment).gaps == before
        history.refresh()
        after = history.coverage(history.pipelines[spec.pipeline])
    with RunHistory(spec.deployment) as fresh:
        fresh.refresh()
        again = fresh.coverage(fresh.pipelines[spec.pipeline])
    for coverage in (after, again):
        assert (coverage.runs, coverage.sentence) == (seen.runs, seen.sentence)
        assert not any(segment.kind is Kind.GAP for lane in coverage.lanes for segment in lane.segments)
    with pytest.raises(LedgerPruned):
        run(spec, "d2", ranges=day(2))
    assert not run(spec, "d3", ranges=day(3)).found  # old, and never run


def test_records_that_may_be_needed_are_not_pruned(spec):
    """They are less than a day old, so that a retry may need them."""
    run(spec, "r0")
    run(spec, "r1")
    with pytest.raises(ConfigurationError, match="less than a day ago"):
        prune(spec)
    old = dt.datetime.now(dt.timezone.utc) - 2 * DAY
    pruned = ledger_upkeep.prune_ledger(spec.deployment, old)
    assert pruned.pipelines == {}


def test_the_command_says_first_what_it_would_do(spec, young, capsys, monkeypatch):
    """Without --yes nothing is written."""
    spec = replace(spec, ledger=replace(spec.ledger, key=""))  # the command accepts a key from a file only
    for number in range(3):
        run(spec, f"r{number}")
    common = ["prune", "--before", "2100-01-01", "--bootstrap-servers", spec.kafka["bootstrap.servers"]]
    common += ["--ledger-topic", spec.ledger.topic, "--prefix", spec.prefix, "--output", "json"]
    monkeypatch.setattr(ledger_upkeep, "MIN_AGE", -dt.timedelta(days=50_000))
    assert main(common) == 0
    assert json.loads(capsys.readouterr().out)["done"] is False
    assert len(records(spec, keys.RUN_RECORDS)) == 3
    assert main([*common, "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["pipelines"] == {spec.pipeline: {"runs": 2, "records": 2}}
    assert len(records(spec, keys.RUN_RECORDS)) == 1
    flags = [*common[3:]]
    assert main(["verify", "--pipeline", spec.pipeline, *flags]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["runs"], verified["pruned"]) == (1, 2)
    run_key = keys.cursor_run_key(spec.pipeline, "r0")
    assert main(["verify", "--pipeline", spec.pipeline, "--run-key", run_key, *flags]) == 1
    assert "its record was pruned" in capsys.readouterr().err
