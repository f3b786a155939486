"""What sensors wait for, on a real broker: lag, the end of an interval, a committed run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_eos.engine.committed import find_committed_by_key
from airflow_eos.engine.lag import Unread, interval_waits_for, unread
from airflow_eos.exceptions import LedgerMissing, TopicRecreated, UnknownTopic
from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.model.ranges import Cursor, Interval, TopicPartition
from airflow_eos.model.spec import LedgerSettings
from tests.support.local_runs import Pipeline
from tests.support.markers import wait_for_markers
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=UTC)
HOUR = dt.timedelta(hours=1)


def ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.fixture
def pipeline(embedded_kafka: Any) -> Pipeline:
    return Pipeline(embedded_kafka)


@contextmanager
def open_transaction(pipeline: Pipeline, partition: int, timestamp: int) -> Iterator[None]:
    """Open a transaction with one record in the block, then commit it and wait for its marker."""
    producer = Producer({**pipeline.kafka.client_config(), "transactional.id": f"open-{pipeline.source}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(pipeline.source, value="pending", partition=partition, timestamp=timestamp)
    producer.flush(30)
    yield
    producer.commit_transaction(30)
    wait_for_markers(pipeline.kafka.client_config(), [TopicPartition(pipeline.source, partition)])


def test_lag_is_what_a_cursor_run_would_read(pipeline: Pipeline) -> None:
    """Before a run everything, after it nothing, then what came since; open transactions do not count."""
    spec = pipeline.spec

    def spans() -> list[tuple[int, int]]:
        lag = unread(spec.kafka, spec.group_id, spec.source_topics, ledger=spec.ledger)
        return [(r.start, r.end) for r in lag.ranges]

    pipeline.publish(["a", "b", "c"])
    pipeline.publish(["d"], partition=1)
    with missing_at_once():  # no ledger exists yet
        assert spans() == [(0, 3), (0, 1)]
    pipeline.run()
    assert spans() == [(3, 3), (1, 1)]
    pipeline.publish(["e"], partition=1)
    with open_transaction(pipeline, 0, ms(NOON)):
        assert spans() == [(3, 3), (1, 2)]
    assert spans() == [(3, 5), (1, 2)]  # the record and its marker


def test_position_comes_from_the_ledger_where_group_offsets_are_gone(pipeline: Pipeline) -> None:
    """Like the run itself: a group whose offsets expired need not read everything again."""
    spec = pipeline.spec
    pipeline.publish(["a", "b"])
    pipeline.run()
    admin = AdminClient(spec.kafka)
    admin.delete_consumer_groups([spec.group_id])[spec.group_id].result(30)
    arguments = (spec.kafka, spec.group_id, spec.source_topics)
    assert unread(*arguments, ledger=spec.ledger).offsets == 0
    with missing_at_once():  # by the group alone
        nowhere = LedgerSettings("nowhere")
        assert unread(*arguments, ledger=nowhere).offsets == 2
        at_the_end = unread(*arguments, start="latest", ledger=nowhere)
    assert at_the_end.offsets == 0
    assert {str(tp) for tp in at_the_end.without_position} == {
        f"{spec.source_topics[0]}-0",
        f"{spec.source_topics[0]}-1",
    }
    assert not unread(*arguments, start="latest", ledger=spec.ledger).without_position


def test_all_of_a_topic_that_was_made_again_is_unread(pipeline: Pipeline) -> None:
    """The sensor lets the run start, which reports the reason: the old position would hide the new head."""
    spec = pipeline.spec
    pipeline.publish(["a", "b", "c"])
    pipeline.run()
    admin = pipeline.kafka.admin()
    admin.delete_topics([pipeline.source])[pipeline.source].result()
    wait_until(lambda: pipeline.source not in admin.list_topics(timeout=30).topics)
    pipeline.kafka.create_topic(pipeline.source, partitions=3)
    pipeline.publish(["x", "y"])
    pipeline.publish(["z"], partition=2)
    lag = unread(spec.kafka, spec.group_id, spec.source_topics, ledger=spec.ledger)
    assert [(offsets.start, offsets.end) for offsets in lag.ranges] == [(0, 2), (0, 0), (0, 1)]
    assert (len(lag.without_position), lag.added) == (3, frozenset())
    with pytest.raises(TopicRecreated):
        pipeline.run("r2")


def test_run_that_begins_at_the_end_fixes_the_position(pipeline: Pipeline) -> None:
    """Until then nothing is unread; later, what arrived after the run, and all of an added partition."""
    spec = pipeline.spec

    def lag() -> Unread:
        arguments = (spec.kafka, spec.group_id, spec.source_topics)
        return unread(*arguments, start="latest", ledger=spec.ledger)

    pipeline.publish(["a", "b"])
    with missing_at_once():  # no ledger exists yet
        assert (lag().offsets, len(lag().without_position)) == (0, 2)
    assert pipeline.run(ranges=Cursor(start="latest")).records_read == 0
    assert (lag().offsets, len(lag().without_position)) == (0, 0)
    pipeline.publish(["c"])
    pipeline.add_partitions(pipeline.source, 3)
    pipeline.publish(["d"], partition=2)
    assert [(r.start, r.end) for r in lag().ranges] == [(2, 3), (0, 0), (0, 1)]
    assert not lag().without_position
    assert pipeline.run("r2", ranges=Cursor(start="latest")).records_read == 2


def test_unknown_topic_is_named(pipeline: Pipeline) -> None:
    """A sensor on a missing topic names it."""
    with missing_at_once(), pytest.raises(UnknownTopic, match="not-there"):
        unread(pipeline.spec.kafka, "g", ["not-there"], ledger=pipeline.spec.ledger)


def test_interval_is_over_when_every_partition_has_passed_its_end(pipeline: Pipeline) -> None:
    """It depends on the clock and on each partition, idle ones by policy, never past an open transaction."""
    spec = pipeline.spec
    interval = Interval(NOON - HOUR, NOON, dt.timedelta(minutes=5))

    def waiting(minutes: float, idle: Any = "allowed_lateness") -> int:
        now = NOON + dt.timedelta(minutes=minutes)
        with missing_at_once():  # no ledger exists
            return len(
                interval_waits_for(
                    spec.kafka, spec.source_topics, interval, idle=idle, ledger=spec.ledger, now=now
                )
            )

    pipeline.publish(["early"], timestamp=ms(NOON) - 1)
    assert waiting(-1) == 1
    assert waiting(1) == 2
    assert waiting(5) == 0
    assert waiting(5, idle="wait") == 2
    pipeline.publish(["at the end"], timestamp=ms(NOON))
    assert waiting(1) == 1
    with open_transaction(pipeline, 1, ms(NOON) + 1000):
        assert waiting(1) == 0  # its first record is at the interval's end: nothing before it is open
    with open_transaction(pipeline, 0, ms(NOON) - 2000):
        assert waiting(1) == 0  # after a record that ended the interval
    assert waiting(0, idle="wait") == 0


def test_interval_with_a_transaction_open_before_its_end_is_not_over(pipeline: Pipeline) -> None:
    """The run of this interval could not start: some of its records are undecided."""
    spec = pipeline.spec
    arguments = spec.kafka, spec.source_topics, Interval(NOON - HOUR, NOON, dt.timedelta(0))
    pipeline.publish(["x"], partition=1, timestamp=ms(NOON))
    with open_transaction(pipeline, 0, ms(NOON) - 2000):
        pipeline.publish(["after"], timestamp=ms(NOON) + 5)
        (waiting,) = interval_waits_for(*arguments, now=NOON + HOUR, ledger=spec.ledger)
        assert f"{pipeline.source}-0: a transaction is open" in waiting
    with missing_at_once():  # no ledger exists
        assert interval_waits_for(*arguments, now=NOON + HOUR, ledger=spec.ledger) == []


def test_committed_run_is_found_by_its_key(pipeline: Pipeline) -> None:
    """Nothing without a ledger, nothing before the commit, the record afterwards."""
    spec = pipeline.spec

    def record(run_id: str) -> Any:
        key = cursor_run_key(spec.pipeline, run_id)
        return find_committed_by_key(spec.deployment, pipeline=spec.pipeline, run_key=key)

    with missing_at_once(), pytest.raises(LedgerMissing):
        record("r1")
    pipeline.publish(["a"])
    committed = pipeline.run()
    stored = record("r1")
    assert (stored.summary(), stored.receipts) == (committed.summary(), committed.receipts)
    assert record("r2") is None
    pipeline.publish(["b", "c"])
    rounds = pipeline.run("r2", ranges=Cursor(max_records=1, until_caught_up=True))
    assert rounds.details["rounds"] > 1
    stored = record("r2")  # committed with its last round
    assert stored.run_key.endswith("/final")
