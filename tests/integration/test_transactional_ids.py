"""Names that a user chooses never fence an active run, on a real broker."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.cli.main import main
from airflow_eos.model.ranges import Cursor, Interval, PartitionInterval
from airflow_eos.run.states import State
from tests.support.local_runs import Paused, Pipeline

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
DAY = Interval(LONG_AGO, LONG_AGO + dt.timedelta(days=1))
HELD = (State.FENCED, State.WRITTEN)
"""States with the epoch taken, and with an open transaction that has the output."""


def a_pipeline(kafka: Any, **names: Any) -> Pipeline:
    """Return a pipeline with its own prefix: the names are the same in each test."""
    return Pipeline(kafka, prefix=f"test-{uuid.uuid4().hex[:8]}", **names)


def finish_undisturbed(pipeline: Pipeline, held: Paused) -> None:
    """Check that the paused attempt itself commits, with the epoch it took, and each record once."""
    held.resume()
    assert held.error is None, held.error
    assert held.record is not None
    assert held.record.try_number == 1
    assert [state for state, _ in held.record.trace].count(State.FENCED.name) == 1
    assert pipeline.output() == ["a", "b"]


@pytest.mark.parametrize("state", HELD)
def test_doctor_does_not_fence_a_run_of_the_group_doctor(
    embedded_kafka: Any, capsys: pytest.CaptureFixture[str], state: State
) -> None:
    """To check its permission, it initialises an id of the prefix that no run can have."""
    pipeline = a_pipeline(embedded_kafka, group_id="doctor")
    pipeline.publish(["a", "b"])
    held = Paused(pipeline, state)
    flags = ["--bootstrap-servers", embedded_kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    main(["doctor", *flags, "--prefix", pipeline.spec.prefix, "--output", "json"])
    checks = {check["name"]: check["status"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["transactional id"] == "ok"
    finish_undisturbed(pipeline, held)


@pytest.mark.parametrize("state", HELD)
@pytest.mark.parametrize("kind", ["partition key", "mapped cursor"])
def test_names_that_meet_between_dots_do_not_fence_each_other(
    embedded_kafka: Any, kind: str, state: State
) -> None:
    """Pipeline "a" with key "b", group "a" with partition 0 of a topic; and a group of the same name."""
    other = a_pipeline(embedded_kafka)
    other.publish(["c"])
    shared = {"prefix": other.spec.prefix, "ledger": other.spec.ledger}
    if kind == "partition key":
        changes: dict[str, Any] = {"pipeline": "a", "ranges": PartitionInterval("b.c", DAY)}
        group = "a.b.c"
    else:
        changes = {"group_id": "a", "source_partition": 0, "ranges": Cursor()}
        group = f"a.{other.source}-0"
    pipeline = Pipeline(embedded_kafka, group_id=group)
    pipeline.spec = replace(pipeline.spec, **shared)
    pipeline.publish(["a", "b"])
    held = Paused(pipeline, state)
    other.run(**changes)
    assert other.output() == ([] if kind == "partition key" else ["c"])
    finish_undisturbed(pipeline, held)
