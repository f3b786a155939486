"""Input that a run cannot read yet, or skips, is reported: in its record, by status, by the doctor."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_eos.cli.status import gauges, status
from airflow_eos.engine.lag import unread
from airflow_eos.exceptions import IntervalNotReady
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.deployment_status import deployment_status
from airflow_eos.operations.doctor import DoctorOptions, examine
from tests.support.local_runs import Pipeline
from tests.support.markers import wait_for_markers

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=UTC)
HOUR = dt.timedelta(hours=1)


def ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.fixture
def pipeline(embedded_kafka: Any) -> Pipeline:
    return Pipeline(embedded_kafka, partitions=1)


@contextmanager
def foreign_transaction(
    pipeline: Pipeline, records: int = 1, *, timestamp: int = 0, partition: int = 0, abort: bool = False
) -> Iterator[str]:
    """Another client's transaction, open in the block."""
    name = f"theirs-{uuid.uuid4().hex[:8]}"
    producer = Producer({**pipeline.kafka.client_config(), "transactional.id": name, "linger.ms": 20})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(pipeline.source, b"%d" % number, partition=partition, timestamp=timestamp)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(60)
    try:
        yield name
    finally:
        (producer.abort_transaction if abort else producer.commit_transaction)(30)
        wait_for_markers(pipeline.kafka.client_config(), [TopicPartition(pipeline.source, partition)])


def status_of(pipeline: Pipeline, **limits: Any) -> tuple[int, Any]:
    """Return exit code and findings of `airflow eos status` for the pipeline's group."""
    options = Namespace(
        **{
            "group": [pipeline.spec.group_id],
            "run": [],
            "max_lag": None,
            "max_open": None,
            "max_gaps": None,
            "send_metrics": False,
            **limits,
        }
    )
    target = Deployment(pipeline.spec.kafka, pipeline.spec.ledger, pipeline.spec.prefix)
    outcome = status(target, options)
    return outcome.code, outcome


@pytest.mark.parametrize("source_partition", [None, 0])
def test_a_cursor_says_what_waits_behind_an_open_transaction(pipeline, caplog, source_partition):
    """The run succeeds, as it should, but reports it: task log, record, summary, status, doctor."""
    spec = pipeline.spec = replace(pipeline.spec, source_partition=source_partition)
    pipeline.publish(["a", "b"])
    assert pipeline.run("r0").summary()["undecided"] == 0
    with foreign_transaction(pipeline) as name:
        pipeline.publish(["c", "d", "e", "f"])
        with caplog.at_level(logging.WARNING):
            summary = pipeline.run().summary()
        (note,) = summary["notes"]
        assert note.startswith(
            f"offsets 2 to 6 of {pipeline.source}-0 wait behind a transaction that is open since 20"
        )
        assert note.endswith(f"(transactional id {name!r})")
        assert note in caplog.text
        assert (summary["records_read"], summary["lag"], summary["undecided"]) == (0, 0, 5)

        left = unread(spec.kafka, spec.group_id, spec.source_topics, ledger=spec.ledger)
        assert (left.offsets, left.offsets_to_end) == (0, 5)
        code, outcome = status_of(pipeline)
        cursor = outcome.data["cursors"][spec.group_id]
        assert (code, cursor["lag"], cursor["lag_to_end"]) == (0, 0, 5)
        (waiting,) = cursor["waiting"]
        assert (waiting["start"], waiting["end"], waiting["transactional_id"]) == (2, 7, name)
        assert status_of(pipeline, max_lag=4)[0] == status_of(pipeline, max_open=0)[0] == 3
        assert status_of(pipeline, max_lag=5)[0] == status_of(pipeline, max_open=600)[0] == 0
        state = deployment_status(spec.deployment, groups=[spec.group_id])
        assert ("eos.group.undecided", 5, {"group": spec.group_id}) in gauges(state, spec.prefix)

        options = DoctorOptions(
            Deployment(spec.kafka, spec.ledger, spec.prefix), group=spec.group_id, sinks=[pipeline.sink]
        )
        checks = {check.name: check for check in examine(options)}
        assert checks[f"end of topic {pipeline.source}"].status == "warn"
        assert note in checks[f"end of topic {pipeline.source}"].found
    summary = pipeline.run("r2").summary()
    assert (summary["records_read"], summary["undecided"], summary["notes"]) == (5, 0, [])
    assert status_of(pipeline, max_lag=0, max_open=0)[0] == 0
    checks = {check.name: check for check in examine(options)}
    assert checks[f"end of topic {pipeline.source}"].status == "ok"


def test_an_interval_names_what_it_waits_for(pipeline):
    """Before the boundary it is why the interval is not ready; after it, the interval reports nothing."""
    interval = Interval(NOON - HOUR, NOON)
    pipeline.publish(["a"], timestamp=ms(NOON - HOUR))
    with foreign_transaction(pipeline, timestamp=ms(NOON - HOUR / 2)) as name:
        pipeline.publish(["c"], timestamp=ms(NOON + HOUR))
        with pytest.raises(IntervalNotReady, match=rf"offset 1 of {pipeline.source}-0 waits behind .*{name}"):
            pipeline.run(ranges=interval)
    assert pipeline.run(ranges=interval).records_read == 2
    with foreign_transaction(pipeline, timestamp=ms(NOON + 2 * HOUR)):
        record = pipeline.run("r2", ranges=replace(interval, start=NOON - 2 * HOUR, end=NOON - HOUR))
        assert record.details["notes"] == []


def test_an_interval_that_ends_at_the_last_stable_offset_says_what_waits_there(pipeline):
    """At an idle partition's boundary: the open transaction's records belong to a later interval."""
    pipeline.publish(["a"], timestamp=ms(NOON - HOUR))
    with foreign_transaction(pipeline, timestamp=ms(NOON - HOUR / 2)):
        note, *_ = pipeline.run(ranges=Interval(NOON - HOUR, NOON)).details["notes"]
        assert note.startswith(f"offset 1 of {pipeline.source}-0 waits behind a transaction")


def test_given_ranges_that_end_before_it_say_nothing(pipeline):
    """They were not meant to include it."""
    pipeline.publish(["a", "b"])
    with foreign_transaction(pipeline):
        record = pipeline.run(ranges=Explicit((OffsetRange(pipeline.source, 0, 0, 1),)))
        assert (record.records_read, record.details["notes"]) == (1, [])


@pytest.mark.parametrize("limit", [None, 3])
def test_a_bounded_cursor_passes_over_offsets_that_hold_nothing(pipeline, limit):
    """30,000 aborted records cost no rounds: max_records counts from the first readable record."""
    pipeline.publish(["first"])
    with foreign_transaction(pipeline, 30_000, abort=True):
        pass
    pipeline.publish(["last"])
    rounds = Cursor(max_records=100, until_caught_up=True, **({} if limit is None else {"max_rounds": limit}))
    record = pipeline.run(ranges=rounds)
    assert pipeline.output() == ["first", "last"]
    assert record.summary()["rounds"] <= 2
    assert (record.summary()["lag"], record.summary()["notes"]) == (0, [])


def test_a_run_that_does_not_catch_up_says_so(pipeline, caplog):
    """The last round allowed leaves a note, a warning and the lag."""
    pipeline.publish([f"v{number}" for number in range(10)])
    with caplog.at_level(logging.WARNING):
        summary = pipeline.run(ranges=Cursor(max_records=2, until_caught_up=True, max_rounds=3)).summary()
    assert (summary["records_read"], summary["lag"], summary["rounds"]) == (6, 4, 3)
    (note,) = summary["notes"]
    assert note.startswith("not caught up: 3 rounds (max_rounds) of 2 offsets (max_records) leave 4 offsets")
    assert note in caplog.text


def test_a_mapped_cursor_says_that_its_topic_grew(pipeline, caplog):
    """Each mapped run and status report it, until a mapped task reads the partition."""

    def mapped(run_id: str, partition: int) -> Any:
        return pipeline.run(run_id, source_partition=partition)

    pipeline.publish(["a"])
    assert mapped("r1", 0).details["notes"] == []
    pipeline.add_partitions(pipeline.source, 3)
    pipeline.publish(["b"], partition=1)
    with caplog.at_level(logging.WARNING):
        (note,) = mapped("r2", 0).summary()["notes"]
    assert note == (
        f"{pipeline.source} has 3 partitions, 1 when this cursor began; no mapped task has read "
        "partition 1, 2: expand source_partition over all of them"
    )
    assert note in caplog.text
    cursor = status_of(pipeline)[1].data["cursors"][pipeline.spec.group_id]
    assert cursor["not_mapped"] == [f"{pipeline.source}-1", f"{pipeline.source}-2"]
    assert mapped("r3", 1).records_read == 1
    (note,) = mapped("r3", 0).details["notes"]
    assert "no mapped task has read partition 2:" in note
    mapped("r3", 2)
    assert mapped("r4", 0).details["notes"] == []
    assert "not_mapped" not in status_of(pipeline)[1].data["cursors"][pipeline.spec.group_id]
