"""Sinks that are missing, shrink or vanish during a run: it fails at once, and reports no lost output."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from airflow_eos.engine import find_committed
from airflow_eos.exceptions import OutputLost, SinkChanged, UnknownTopic
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos.run.visibility import Visibility
from tests.support.local_runs import LocalDataPlane, Out, Pipeline
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until

COUNT = 20
AT_ONCE = 30.0
"""Seconds: adding missing partitions was once retried for 60 s, three times."""


class Unread(LocalDataPlane):
    def seal(self, plan):
        raise AssertionError("Spark has read for nothing")


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka)
    filled.publish([f"v{i}" for i in range(COUNT)])
    return filled


def delete(pipeline, topic):
    admin = pipeline.kafka.admin()
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=30).topics)


def at(state, act):
    """Return a call-back that acts once, when the run enters a state."""
    done = []

    def entered(now):
        if now is state and not done:
            done.append(now)
            act()

    return entered


def remade(pipeline, partitions):
    def act():
        delete(pipeline, pipeline.sink)
        pipeline.kafka.create_topic(pipeline.sink, partitions=partitions)

    return act


@pytest.mark.parametrize("records", [0, COUNT])
def test_a_missing_sink_is_found_before_anything_is_read(pipeline, records):
    """Together with the sources, not after Spark's work."""
    pipeline.spec = replace(pipeline.spec, sink_topic="no-such-sink")
    begun = time.monotonic()
    with missing_at_once(), pytest.raises(UnknownTopic, match=r"^sink topic 'no-such-sink' does not exist"):
        pipeline.run(data=Unread)
    assert time.monotonic() - begun < AT_ONCE


def test_a_missing_source_is_told_from_a_missing_sink(pipeline):
    """By its role, and by a suggestion of the topic that was meant."""
    near = pipeline.source[:-1]
    with missing_at_once():
        with pytest.raises(UnknownTopic, match=rf"^source topic '{near}' does not exist") as refused:
            pipeline.run(data=Unread, source_topics=(near,))
        assert refused.value.message.endswith(f"correct the name; did you mean {pipeline.source!r}?")
        with pytest.raises(UnknownTopic, match=rf"^sink topic '{near}' .*did you mean '{pipeline.source}'"):
            pipeline.run(data=Unread, sink_topic=near)


def test_a_sink_made_again_with_fewer_partitions_fails_at_once_and_the_next_try_fits(pipeline):
    """The sealed batches name missing partitions; sealed again they do not."""
    begun = time.monotonic()
    with pytest.raises(SinkChanged, match=r"has 1 partition.*sealed for partition 1") as failed:
        pipeline.run(on_state=at(State.SEALED, remade(pipeline, 1)))
    assert time.monotonic() - begun < AT_ONCE
    assert not is_final(failed.value)
    assert find_committed(pipeline.spec) is None
    assert pipeline.run(try_number=2).records_written == COUNT
    assert len(pipeline.output()) == COUNT


def test_a_sink_that_is_deleted_before_it_is_written_fails_at_once(pipeline):
    """The same for topics that rows choose."""
    other = f"{pipeline.sink}-other"
    pipeline.kafka.create_topic(other, partitions=1)

    class Elsewhere(LocalDataPlane):
        def transform(self, rows):
            return [Out(row.value, row.key, topic=other) for row in rows]

    begun = time.monotonic()
    with missing_at_once(), pytest.raises(UnknownTopic, match=other):
        pipeline.run(data=Elsewhere, on_state=at(State.SEALED, lambda: delete(pipeline, other)))
    assert time.monotonic() - begun < AT_ONCE
    assert find_committed(pipeline.spec) is None


@pytest.mark.parametrize("again", [True, False])
def test_a_sink_that_vanishes_before_the_commit_is_no_success(pipeline, again):
    """The commit cannot be undone: the task fails for good, and the error tells how to write again."""
    act = remade(pipeline, 2) if again else lambda: delete(pipeline, pipeline.sink)
    with nullcontext() if again else missing_at_once():
        with pytest.raises(OutputLost, match=rf"{pipeline.sink}.*reprocess") as failed:
            pipeline.run(on_state=at(State.PROVEN, act))
        assert is_final(failed.value)
        assert find_committed(pipeline.spec).records_written == COUNT
    if not again:
        pipeline.kafka.create_topic(pipeline.sink, partitions=2)
    assert pipeline.output() == []
    pipeline.run(clear_number=1, on_committed="reprocess")
    assert len(pipeline.output()) == COUNT


def test_a_sink_that_is_made_again_before_it_is_written_has_lost_nothing(pipeline):
    """The output is in the new topic, exactly once: writing it again would duplicate it."""
    record = pipeline.run(on_state=at(State.OPEN, remade(pipeline, 2)))
    assert record.records_written == len(pipeline.output()) == COUNT


def test_lost_rounds_of_a_run_that_goes_on_are_written_by_a_replay(pipeline):
    """A clear writes the rest: it cannot repeat a run that has not ended."""
    proofs = []

    def lose(state):
        if state is State.PROVEN:
            proofs.append(state)
            if len(proofs) == 2:
                remade(pipeline, 2)()

    rounds = {"ranges": Cursor(max_records=8, until_caught_up=True)}
    with pytest.raises(OutputLost, match=r"ranges of rounds/.*/1, .*a clear goes on with the next round"):
        pipeline.run(**rounds, on_state=lose)
    assert pipeline.run(**rounds, clear_number=1, on_committed="reprocess").mode == "cursor"
    assert len(pipeline.output()) == COUNT - 16
    lost = Explicit((OffsetRange(pipeline.source, 0, 0, 16),))
    pipeline.run("replay", pipeline="replay-of-rounds", ranges=lost)
    assert pipeline.output() == sorted(f"v{i}" for i in range(COUNT))


def test_a_deleted_sink_hides_nothing_of_the_others(embedded_kafka, config, cluster):
    """Output behind an open transaction is not visible, whatever happened to another topic of the run."""
    left, deleted = "sink-that-is-left", "sink-that-is-deleted"
    for topic in (left, deleted):
        embedded_kafka.create_topic(topic, 1)
    undecided = Producer({**config, "transactional.id": "left-open"})
    undecided.init_transactions(30)
    undecided.begin_transaction()
    output = Producer(config)
    for producer, topic in ((undecided, left), (output, left), (output, deleted)):
        producer.produce(topic, value=b"row")
        assert producer.flush(30) == 0
    receipts = [SimpleNamespace(topic=left, partition=0, records=1, last_offset=1)]
    receipts.append(SimpleNamespace(topic=deleted, partition=0, records=1, last_offset=0))
    record = SimpleNamespace(receipts=receipts, producer=ProducerIdentity("of-the-run", 2**40, 0))
    try:
        hidden = Visibility(cluster, None).missing(record)
        assert [text.partition(" ")[0] for text in hidden] == [f"{left}-0"]
        embedded_kafka.delete_topic(deleted)
        with missing_at_once():
            assert Visibility(cluster, None).missing(record) == hidden
    finally:
        undecided.abort_transaction(30)
