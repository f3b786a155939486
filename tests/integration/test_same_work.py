"""A record counts only for the work that it describes: other work is refused, with the differences."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from airflow_eos.engine import pipeline_name
from airflow_eos.engine.committed import find_committed, find_committed_by_key
from airflow_eos.exceptions import DifferentWork, GroupOwned, RunFenced
from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import DEFAULT_PREFIX
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.run.commit_entry import CommitEntry
from airflow_eos_testing.readers import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Pipeline

DAY = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
ROUNDS = Cursor(max_records=1, until_caught_up=True)


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka)
    filled.publish(["a", "b", "c"])
    return filled


@pytest.fixture
def other(pipeline):
    """Another topic."""
    name = f"other-{uuid.uuid4().hex[:8]}"
    pipeline.kafka.create_topic(name, partitions=2)
    return name


def held(pipeline, topic):
    """What a consumer sees in a topic."""
    return sorted(r.value.decode() for r in read_topic(pipeline.kafka.client_config(), topic))


def publish_to(pipeline, topic, *values):
    producer = Producer(pipeline.kafka.client_config())
    for value in values:
        producer.produce(topic, value=value, key=value, partition=0)
    assert producer.flush(30) == 0


def explicit(pipeline, start, end, **settings):
    return Explicit((OffsetRange(pipeline.source, 0, start, end),), **settings)


def interval(days=1):
    return Interval(DAY - dt.timedelta(days=days), DAY, dt.timedelta(0))


MODES = {
    "cursor": Cursor(),
    "rounds": ROUNDS,
    "interval": interval(),
    "partition": PartitionInterval("key", interval()),
}


# Each mode retried and cleared, with one of two policies each.
@pytest.mark.parametrize(
    ("mode", "on_committed", "clear_number"),
    rest_in_chaos(
        2 * len(MODES),
        [
            *product(MODES, ["skip"], [0]),
            *product(MODES, ["fail"], [1]),
            *product(MODES, ["skip"], [1]),
            *product(MODES, ["fail"], [0]),
        ],
    ),
)
def test_another_sink_is_refused(pipeline, other, mode, on_committed, clear_number):
    """Success with an empty sink would be false."""
    ranges = MODES[mode]
    pipeline.run(ranges=ranges)
    changes = {"sink_topic": other, "clear_number": clear_number, "on_committed": on_committed}
    with pytest.raises(DifferentWork, match=f"sink topic: recorded '{pipeline.sink}', asked '{other}'"):
        pipeline.run(ranges=ranges, **changes)
    assert held(pipeline, other) == []
    assert pipeline.run(ranges=ranges, clear_number=clear_number).found


def test_a_topic_that_was_not_read_is_not_reported_as_read(pipeline, other):
    """A run read {source, other}; the task was changed to {other, third}, of which third was never read."""
    third = f"third-{uuid.uuid4().hex[:8]}"
    pipeline.kafka.create_topic(third, partitions=1)
    publish_to(pipeline, third, "unread")
    pipeline.run(source_topics=(pipeline.source, other))
    with pytest.raises(DifferentWork, match=rf"source topics: .*{pipeline.source}.*asked .*{third}"):
        pipeline.run(source_topics=(other, third), clear_number=1)
    assert pipeline.run(source_topics=(other, pipeline.source), clear_number=1).found  # in any order
    assert pipeline.run("r2", source_topics=(other, third)).records_read == 1


@pytest.mark.parametrize("life", [{"try_number": 2}, {"clear_number": 1}], ids=["retry", "cleared"])
def test_given_ranges_that_were_edited_are_refused(pipeline, life):
    """By hand before a clear, or by a template before a retry: the record has other ranges."""
    pipeline.run(ranges=explicit(pipeline, 0, 1))
    with pytest.raises(DifferentWork, match=rf"ranges: recorded {pipeline.source}-0 \[0, 1\).*\[1, 3\)"):
        pipeline.run(ranges=explicit(pipeline, 1, 3), **life)
    assert pipeline.output() == ["a"]
    assert pipeline.run(ranges=explicit(pipeline, 0, 1), **life).found
    assert pipeline.run("r2", ranges=explicit(pipeline, 1, 3)).records_written == 2


def test_another_range_mode_is_refused(pipeline):
    """Given ranges that move the cursor, and the cursor: one run key, one transactional id, other work."""
    pipeline.run(ranges=explicit(pipeline, 0, 1, advance=True))
    with pytest.raises(DifferentWork, match="range mode: recorded 'explicit', asked 'cursor'"):
        pipeline.run(clear_number=1)
    assert pipeline.run("r2").records_read == 2


def test_another_length_of_a_partition_is_refused(pipeline):
    """A partition key names the run: its records must be the same."""
    pipeline.run(ranges=PartitionInterval("2026-11-19", interval()))
    with pytest.raises(DifferentWork, match=r"interval: recorded '2026-11-19T.*asked '2026-11-18T"):
        pipeline.run("r2", ranges=PartitionInterval("2026-11-19", interval(days=2)))


def test_settings_that_only_say_how_are_no_other_work(pipeline):
    """Limits, the start without a position, the lateness: a retry may change them."""
    pipeline.run(ranges=Cursor(max_records=2), origin="here")
    again = Cursor(start="latest")
    assert pipeline.run(ranges=again, clear_number=1, origin="here", compression="gzip").found
    patient = Interval(interval().start, DAY, dt.timedelta(minutes=7))
    pipeline.run("i", ranges=interval())
    assert pipeline.run("i2", ranges=patient).found


# -- two Airflows that share prefix, ledger and Dag ids ------------------------------------------------------


@pytest.mark.parametrize("on_committed", ["skip", "fail", "reprocess", "accept"])
@pytest.mark.parametrize("clear_number", [0, 1])
def test_two_airflows_are_told_apart(pipeline, other, clear_number, on_committed):
    """The second one's run does not count as done by the first's, whatever its on_committed is."""
    pipeline.run(origin="airflow-a.example.com")
    second = {"origin": "airflow-b.example.com", "on_committed": on_committed, "clear_number": clear_number}
    for sink in (other, pipeline.sink):
        with pytest.raises(DifferentWork, match=r"origin: .*airflow-a.*airflow-b.*\[eos\] origin"):
            pipeline.run(sink_topic=sink, **second)
    assert held(pipeline, other) == []
    assert pipeline.output() == ["a", "b", "c"]


def test_an_airflow_does_not_go_on_with_anothers_cursor(pipeline, other):
    """Run ids of manual runs differ: otherwise each Airflow's sink would have only a part of the input."""
    pipeline.run("manual-a", origin="a")
    pipeline.publish(["d"])
    with pytest.raises(GroupOwned, match=r"origin 'a', this run says 'b'.*\[eos\] origin"):
        pipeline.run("manual-b", origin="b", sink_topic=other)
    assert pipeline.run("manual-c", origin="a").records_read == 1
    assert pipeline.run("no origin").records_read == 0
    with pytest.raises(GroupOwned, match="origin 'a'"):  # a run without origin moves it, and it stays a's
        pipeline.run("manual-d", origin="b", sink_topic=other)


def test_a_mapped_cursor_is_one_airflows(pipeline):
    """Its layout names the owner, for partitions that have no position yet."""
    pipeline.run("r1", origin="a", source_partition=0)
    with pytest.raises(GroupOwned, match="origin 'a'"):
        pipeline.run("r2", origin="b", source_partition=1)
    assert pipeline.run("r3", origin="a", source_partition=1).records_read == 0


def test_a_reset_leaves_the_cursor_to_its_airflow(pipeline):
    """A reset from a command line names no origin."""
    pipeline.run("r1", origin="a")
    spec = pipeline.spec
    reset = Reset(group=spec.group_id, to="earliest")
    reset_cursor(spec.deployment, reset)
    with pytest.raises(GroupOwned, match="origin 'a'"):
        pipeline.run("r2", origin="b")
    assert pipeline.run("r2", origin="a").records_read == 3


@pytest.mark.parametrize(("first", "second"), [("", "b"), ("a", "")])
def test_an_origin_that_is_not_known_is_not_compared(pipeline, first, second):
    """Records from before the setting, and look-ups from a command line, work as before."""
    pipeline.run(origin=first)
    assert pipeline.run(origin=second, clear_number=1).found


# -- the author changed the task on purpose ------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [Cursor(), ROUNDS, interval()], ids=["cursor", "rounds", "interval"])
def test_a_reprocessing_may_write_to_another_sink(pipeline, other, ranges):
    """The recorded ranges, once, to the task's present sink; later retries find that record."""
    pipeline.publish(["timed"], timestamp=int((DAY - dt.timedelta(hours=1)).timestamp() * 1000))
    written = pipeline.run(ranges=ranges).records_written
    moved = {"ranges": ranges, "sink_topic": other}
    again = pipeline.run(**moved, clear_number=1, on_committed="reprocess")
    assert (again.mode, again.found, again.records_written) == ("reprocess", False, written)
    assert len(held(pipeline, other)) == written
    assert pipeline.run(**moved, clear_number=1, on_committed="reprocess", try_number=2).found
    assert pipeline.run(**moved, clear_number=2).run_key == again.run_key
    assert pipeline.run(ranges=ranges, clear_number=3).run_key != again.run_key
    with pytest.raises(DifferentWork, match="sink topic"):  # a retry of a Dag run that reprocessed
        pipeline.run(ranges=ranges, clear_number=1, on_committed="reprocess")
    assert len(held(pipeline, other)) == written
    third = pipeline.run(**moved, clear_number=4, on_committed="reprocess")
    assert pipeline.run(**moved, clear_number=5).run_key == third.run_key  # the latest


def test_a_reprocessing_reads_nothing_else_than_the_run_did(pipeline, other):
    """The author did not ask for recorded ranges of other topics, or other ranges than the given ones."""
    pipeline.run()
    with pytest.raises(DifferentWork, match=r"source topics.*start a new run"):
        pipeline.run(source_topics=(other,), clear_number=1, on_committed="reprocess")
    pipeline.run("given", ranges=explicit(pipeline, 0, 1))
    changed = explicit(pipeline, 1, 3)
    with pytest.raises(DifferentWork, match=r"ranges.*start a new run"):
        pipeline.run("given", ranges=changed, clear_number=1, on_committed="reprocess")


def test_an_interval_has_one_name_in_every_dag_run(pipeline, other):
    """A new Dag run would be refused like the first one: another pipeline reads the interval again."""
    first = pipeline.run(ranges=interval())
    for changes in ({"sink_topic": other}, {"prefix": "another"}):
        with pytest.raises(DifferentWork, match=r"give it another pipeline"):
            pipeline.run("r2", ranges=interval(), **changes)
    anew = pipeline.run(pipeline=f"{pipeline.spec.pipeline}-anew", ranges=interval(), sink_topic=other)
    assert (anew.found, anew.ranges) == (False, first.ranges)


def test_a_cursor_of_another_group_leaves_its_old_runs(pipeline):
    """A clear of an old run is refused; a new run begins at the new group's cursor."""
    pipeline.run()
    moved = {"group_id": f"{pipeline.spec.group_id}-moved"}
    with pytest.raises(DifferentWork, match="start a new run"):
        pipeline.run(clear_number=1, **moved)
    assert pipeline.run("r2", **moved).records_read == 3


def test_a_retry_never_reprocesses(pipeline, other):
    """Two tasks that share a pipeline: the second one is refused, not added to the first."""
    pipeline.run(on_committed="reprocess")
    with pytest.raises(DifferentWork, match="its own pipeline"):
        pipeline.run(sink_topic=other, on_committed="reprocess")
    assert held(pipeline, other) == []


def test_a_fenced_repetition_waits_for_the_newer_attempt(pipeline):
    """The record of the original run is not the repetition's: retried at once, two would fence each other."""
    pipeline.run()
    repetition = pipeline.changed(clear_number=1, on_committed="reprocess")
    task = SimpleNamespace(build_spec=lambda _: repetition)
    policy = TransactionRetryPolicy()

    def waits():
        return policy.evaluate(RunFenced("by epoch 7"), 1, 9, {"task": task}).retry_delay

    assert waits() == policy.delay(1)
    pipeline.run(clear_number=1, on_committed="reprocess")
    assert waits() == dt.timedelta(0)


def test_accept_lets_the_record_stand(pipeline, other):
    """The author's decision: old runs stay as they were; a new run follows the new definition."""
    pipeline.run()
    accepted = {"sink_topic": other, "on_committed": "accept"}
    assert pipeline.run(**accepted, clear_number=1).found
    assert find_committed(pipeline.changed(**accepted, clear_number=1)).found
    pipeline.run("given", ranges=explicit(pipeline, 0, 1))
    edited = explicit(pipeline, 1, 3)
    assert pipeline.run("given", ranges=edited, clear_number=1, on_committed="accept").found
    assert held(pipeline, other) == []
    pipeline.publish(["d"])
    assert pipeline.run("r2", **accepted).records_written == 1
    assert held(pipeline, other) == ["d"]


# -- rounds --------------------------------------------------------------------------------------------------


class Dies(Exception):
    """The process ends."""


def rounds_that_stop_after(pipeline, count, **changes):
    """Commit this many rounds and die."""
    seen = []

    def die(state):
        seen.append(state)
        if seen.count(type(state).COMMITTED) == count:
            raise Dies

    with pytest.raises(Dies):
        pipeline.run(ranges=ROUNDS, on_state=die, **changes)


def test_rounds_are_not_continued_to_another_sink(pipeline, other):
    """A run is one piece of work: it must not be split between two topics."""
    rounds_that_stop_after(pipeline, 1)
    for on_committed in ("skip", "reprocess"):
        with pytest.raises(DifferentWork, match="sink topic"):
            pipeline.run(ranges=ROUNDS, sink_topic=other, clear_number=1, on_committed=on_committed)
    assert held(pipeline, other) == []
    pipeline.run(ranges=ROUNDS, sink_topic=other, clear_number=1, on_committed="accept")
    assert (pipeline.output(), held(pipeline, other)) == (["a"], ["b", "c"])
    for sink in (pipeline.sink, other):  # neither topic holds all of it
        with pytest.raises(DifferentWork, match="sink topic"):
            pipeline.run(ranges=ROUNDS, sink_topic=sink, clear_number=2)


# -- records of earlier versions -----------------------------------------------------------------------------


@pytest.fixture
def older(monkeypatch):
    """Write records as before they described their work."""
    record = CommitEntry.record

    def without(self, *arguments):
        described = record(self, *arguments)
        return replace(described, details={k: v for k, v in described.details.items() if k != "work"})

    monkeypatch.setattr(CommitEntry, "record", without)


def test_a_record_that_does_not_name_its_work_answers_as_before(pipeline, other, older):
    """It does not name its sink and origin: upgraded pipelines go on."""
    assert "work" not in pipeline.run(origin="a").details
    assert pipeline.run(sink_topic=other, clear_number=1, origin="a").found
    with pytest.raises(DifferentWork, match="other work with the same name"):
        pipeline.run(source_topics=(other,), clear_number=1)


def test_the_record_names_its_work_and_nothing_secret(pipeline):
    """The JSON is small and readable."""
    record = pipeline.run(origin="airflow.example.com")
    assert record.details["work"] == {
        "topics": [pipeline.source],
        "sink": pipeline.sink,
        "mode": "cursor",
        "origin": "airflow.example.com",
    }
    assert len(json.dumps(record.details["work"])) < 200


# -- sensors of a run, and default prefixes --


def test_a_run_that_read_other_topics_is_not_the_one_waited_for(pipeline, other):
    """The sensor names the topics that it expects."""
    pipeline.run()

    def waited_for(topic):
        spec = pipeline.spec
        key = cursor_run_key(spec.pipeline, "r1")
        return find_committed_by_key(
            spec.deployment, pipeline=spec.pipeline, run_key=key, work={"topics": [topic]}
        )

    assert waited_for(pipeline.source).records_read == 3
    with pytest.raises(DifferentWork, match="source topics"):
        waited_for(other)


@pytest.mark.parametrize(("prefix", "warned"), [(DEFAULT_PREFIX, True), ("test", False)])
def test_the_first_run_warns_of_a_prefix_that_everybody_has(pipeline, caplog, prefix, warned):
    """A later change is expensive: transactional ids and records contain the prefix."""
    for run_id in ("r1", "r2"):
        with caplog.at_level("WARNING", "airflow_eos.ledger.topic_check"):
            pipeline.run(run_id, prefix=prefix)
    assert ("default prefix" in caplog.text) is warned
    assert caplog.text.count("default prefix") <= 1


def task_of(dag_id):
    return {"dag_id": dag_id, "task_id": "load", "map_index": -1, "run_id": "r"}


@pytest.mark.parametrize(
    ("name", "dag_id", "warned"),
    [
        ("shared", "theirs", True),
        ("shared", "ours", False),
        ("theirs.load", "theirs", False),  # the default, of no other Dag
        ("ours.eu.load", "ours.eu", True),  # the default, also of task eu.load of Dag ours
    ],
)
def test_a_run_warns_of_a_name_that_another_dag_uses(pipeline, caplog, name, dag_id, warned):
    """Both are one pipeline on the page and in `status`, and over intervals one run."""
    pipeline.run("r1", pipeline=name, task=task_of("ours"))
    with caplog.at_level("WARNING", pipeline_name.__name__):
        pipeline.run("r2", pipeline=name, task=task_of(dag_id))
    warnings = [text for logger, _, text in caplog.record_tuples if logger == pipeline_name.__name__]
    beginning = f"pipeline {name!r} is also the name of runs of Dag 'ours'"
    assert [text.startswith(beginning) for text in warnings] == [True] * warned
