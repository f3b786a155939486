"""Runs over a cursor, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import (
    ConfigurationError,
    CursorMoved,
    GroupNotEmpty,
    GroupOwned,
    LedgerMissing,
    LedgerReplaced,
    NoStartingPoint,
    OffsetsOutOfRange,
    RangeUndecided,
    RunAlreadyCommitted,
    TopicRecreated,
    UnknownTopic,
)
from airflow_eos.ledger.keys import offset_metadata
from airflow_eos.model.ranges import Cursor
from airflow_eos.model.ranges import TopicPartition as ProductPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.queries import create_ledger
from airflow_eos.operators.retriable import is_final
from tests.support.brokers import foreign_transaction
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import Pipeline
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until


@pytest.fixture
def pipeline(embedded_kafka):
    return Pipeline(embedded_kafka)


def _spans(record):
    return {r.partition: (r.start, r.end) for r in record.ranges}


def test_output_offsets_and_record_are_committed_together(pipeline):
    """One run: every record is copied, offsets are at the ends, and the record describes the run."""
    pipeline.publish(["a", "b", "c"], partition=0)
    pipeline.publish(["d"], partition=1)
    record = pipeline.run()
    assert pipeline.output() == ["a", "b", "c", "d"]
    assert (record.state, record.records_read, record.records_written, record.found) == (
        "COMMITTED",
        4,
        4,
        False,
    )
    assert _spans(record) == {0: (0, 3), 1: (0, 1)}
    states = [state for state, _ in record.trace]
    assert states == [
        "ASKED", "FENCED", "CHECKED", "PLANNED", "SEALED", "OPEN", "WRITTEN", "STAGED", "PROVEN", "COMMITTED",
    ]  # fmt: skip
    consumer = Consumer({**pipeline.kafka.client_config(), "group.id": pipeline.spec.group_id})
    offsets = consumer.committed([TopicPartition(pipeline.source, p) for p in (0, 1)], timeout=60)
    consumer.close()
    assert [o.offset for o in offsets] == [3, 1]


def test_the_next_run_reads_only_what_came_since(pipeline):
    """The cursor moves; a retry of the first run gets its record from the ledger."""
    pipeline.publish(["a"])
    first = pipeline.run("r1")
    pipeline.publish(["b"])
    second = pipeline.run("r2")
    again = pipeline.run("r1", try_number=2)
    assert pipeline.output() == ["a", "b"]
    assert second.records_read == 1
    assert again.found
    assert (again.run_key, again.receipts, again.try_number) == (first.run_key, first.receipts, 1)


def test_notes_of_very_many_partitions_leave_room_in_the_record(pipeline, monkeypatch):
    """A note for each of thousands, as after the group's offsets expired, would make the record too large."""
    monkeypatch.setattr("airflow_eos.run.planner.MOST_NOTES", 4)
    pipeline.run("r0")
    pipeline.add_partitions(pipeline.source, 9)
    notes = pipeline.run("r1").details["notes"]
    assert notes[2] == "3 more notes, of other partitions"
    assert [note.split(":")[0] for note in (*notes[:2], *notes[3:])] == [
        f"{pipeline.source}-{number}" for number in (2, 3, 7, 8)
    ]


def test_an_empty_run_is_a_success_that_is_recorded(pipeline):
    """Without input a run commits nevertheless, and is found again."""
    record = pipeline.run("r1")
    assert (record.records_read, record.records_written, record.found) == (0, 0, False)
    assert pipeline.run("r1", try_number=2).found


def test_max_records_bounds_a_run_and_loses_nothing(pipeline):
    """A bounded run takes its share; the following ones take the rest."""
    pipeline.publish([f"a{i}" for i in range(5)], partition=0)
    pipeline.publish(["b"], partition=1)
    sizes = [pipeline.run(f"r{i}", ranges=Cursor(max_records=3)).records_read for i in range(3)]
    assert sizes == [3, 3, 0]
    assert len(pipeline.output()) == 6


@pytest.mark.parametrize(("start", "expected"), [("earliest", 2), ("latest", 0)])
def test_the_start_policy_counts_for_the_first_run_only(pipeline, start, expected):
    """Latest skips what was there before the first run, never what arrives after it."""
    pipeline.publish(["a", "b"])
    assert pipeline.run("r1", ranges=Cursor(start=start)).records_read == expected
    pipeline.publish(["c"])
    assert pipeline.run("r2", ranges=Cursor(start=start)).records_read == 1


def test_without_a_starting_point_fail_refuses(pipeline):
    """Start policy fail: nothing is guessed."""
    with pytest.raises(NoStartingPoint, match="earliest"):
        pipeline.run(ranges=Cursor(start="fail"))


def test_the_offsets_of_an_existing_consumer_group_are_adopted(pipeline):
    """Migration from a plain consumer: the first run starts at its offsets, and notes it."""
    pipeline.publish(["a", "b"])
    commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 1)
    record = pipeline.run()
    assert _spans(record)[0] == (1, 2)
    assert "adopting" in record.details["notes"][0]


def test_an_adopted_position_in_an_open_transaction_is_worth_another_try(pipeline):
    """A read_uncommitted consumer, the default, commits what is open: a reset would write it twice."""
    pipeline.publish(["a"])
    with foreign_transaction(pipeline.spec.kafka, pipeline.source, ("b", "b"), ("c", "c")) as foreign:
        commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 2)
        with pytest.raises(RangeUndecided, match=r"stands at 2 in .*offset 1 of .*'foreign-") as refused:
            pipeline.run()
        assert not is_final(refused.value)
        to_committed = Reset(
            pipeline.spec.group_id, "committed", topics=[pipeline.source], pipeline=pipeline.spec.pipeline
        )
        with pytest.raises(OffsetsOutOfRange, match=r"offset 2 is not between .*last stable offset 1"):
            reset_cursor(pipeline.spec.deployment, to_committed)
        foreign.commit_transaction(30)
    wait_until(lambda: pipeline.run(try_number=2).records_read == 1)
    assert pipeline.output() == ["c"]
    beyond = f"{pipeline.spec.group_id}-beyond"
    commit_offset(pipeline.spec.kafka, beyond, pipeline.source, 9)
    with pytest.raises(CursorMoved, match=r"stands at 9 in .*beyond the end of the log at 4"):
        pipeline.run("r2", group_id=beyond, pipeline=beyond)


def test_expired_group_offsets_are_restored_from_the_ledger(pipeline):
    """An idle group's offsets expired: the run continues from the cursor instead of repeating everything."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    admin = pipeline.kafka.admin()
    admin.delete_consumer_groups([pipeline.spec.group_id])[pipeline.spec.group_id].result()
    pipeline.publish(["b"])
    record = pipeline.run("r2")
    assert pipeline.output() == ["a", "b"]
    assert "expired" in record.details["notes"][0]


def test_offsets_moved_by_somebody_else_are_refused(pipeline):
    """Group and ledger differ: the error names both offsets, and neither is chosen."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 1)
    with pytest.raises(CursorMoved, match=r"committed offset is 1, the ledger's cursor 2"):
        pipeline.run("r2")
    assert pipeline.output() == ["a", "b"]


def test_offsets_that_lost_their_end_are_told_from_those_of_somebody_else(pipeline):
    """As after an unclean election of __consumer_offsets: it has an earlier run's offsets and metadata."""
    spec = pipeline.spec
    pipeline.publish(["a"])
    pipeline.run("r1")
    with Link(spec.kafka) as link:
        (earlier,) = (
            KafkaCluster(link).committed(spec.group_id, [ProductPartition(pipeline.source, 0)]).values()
        )
    pipeline.publish(["b"])
    pipeline.run("r2")
    commit_offset(spec.kafka, spec.group_id, pipeline.source, earlier.offset, metadata=earlier.metadata)
    with pytest.raises(CursorMoved, match=r"is 1, the ledger's cursor 2: an earlier run .*--to cursor"):
        pipeline.run("r3")
    reset_cursor(spec.deployment, Reset(spec.group_id, to="cursor"))
    pipeline.publish(["c"])
    pipeline.run("r3")
    assert pipeline.output() == ["a", "b", "c"]


def test_a_group_with_live_members_is_refused(pipeline):
    """A consumer of the group may commit at any moment."""
    pipeline.publish(["a"])
    consumer = Consumer({**pipeline.kafka.client_config(), "group.id": pipeline.spec.group_id})
    consumer.subscribe([pipeline.source])

    def joined():
        consumer.poll(0.2)
        return consumer.assignment()

    wait_until(joined, seconds=60)
    with pytest.raises(GroupNotEmpty, match="1 live member"):
        pipeline.run()
    consumer.close()
    with Link(pipeline.kafka.client_config()) as link:
        cluster = KafkaCluster(link)
        # close() waits 5 s for the answer; a member whose LeaveGroup was lost stays for its session of 45 s.
        wait_until(lambda: cluster.describe_group(pipeline.spec.group_id).members == 0, seconds=90)
    assert pipeline.run().records_read == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pipeline": "other"}, "pipeline"),
        ({"prefix": "other"}, "prefix"),
        ({"source_partition": 0}, "layout"),
    ],
)
def test_a_group_has_one_owner(pipeline, change, named):
    """A second pipeline, prefix or layout with the same group is refused, whichever comes second."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    with pytest.raises(GroupOwned, match=named):
        pipeline.run("r2", **change)


def test_a_mapped_cursor_moves_each_partition_by_itself(pipeline):
    """One task per partition, each with its own id and cursor, in one group."""
    pipeline.publish(["a"], partition=0)
    pipeline.publish(["b"], partition=1)
    first = pipeline.run("r1", source_partition=0)
    pipeline.publish(["c"], partition=0)
    second = pipeline.run("r1", source_partition=1)
    third = pipeline.run("r2", source_partition=0)
    assert [r.records_read for r in (first, second, third)] == [1, 1, 1]
    assert first.producer.transactional_id != second.producer.transactional_id
    assert pipeline.output() == ["a", "b", "c"]


def test_added_partitions_are_read_from_their_beginning(pipeline):
    """A partition the cursor does not know is new: policy latest must not skip its first records."""
    pipeline.run("r1", ranges=Cursor(start="latest"))
    pipeline.add_partitions(pipeline.source, 3)
    pipeline.publish(["new"], partition=2)
    record = pipeline.run("r2", ranges=Cursor(start="latest"))
    assert pipeline.output() == ["new"]
    assert "added" in record.details["notes"][0]


def test_a_topic_made_again_is_refused(pipeline):
    """Offsets of a deleted topic mean nothing in a new one of the same name."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.kafka.delete_topic(pipeline.source)
    pipeline.kafka.create_topic(pipeline.source, partitions=2)
    pipeline.publish(["b"])
    pipeline.publish(["c"], partition=1)
    with pytest.raises(TopicRecreated, match="deleted and recreated"):
        pipeline.run("r2")
    assert pipeline.output() == ["a"]
    # A start of "latest" would skip the records of a partition without a position.
    deployment, first = pipeline.spec.deployment, ProductPartition(pipeline.source, 0)
    with pytest.raises(ConfigurationError, match=f"{pipeline.source}-1: the topic was created again"):
        reset_cursor(deployment, Reset(pipeline.spec.group_id, offsets={first: 0}))
    second = ProductPartition(pipeline.source, 1)
    reset_cursor(deployment, Reset(pipeline.spec.group_id, offsets={first: 0, second: 0}))
    pipeline.run("r2", ranges=Cursor(start="latest"))
    assert pipeline.output() == ["a", "b", "c"]


def test_deleted_records_are_a_loss_and_refused(pipeline):
    """The log starts above the cursor: the error names both offsets and the remedy."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b", "c", "d"])
    tp = TopicPartition(pipeline.source, 0, 3)
    pipeline.kafka.admin().delete_records([tp])[tp].result()
    with pytest.raises(OffsetsOutOfRange, match=r"log starts at 3, the range at 1.*reset-offsets"):
        pipeline.run("r2")


@pytest.mark.parametrize("which", ["source_topics", "sink_topic"])
def test_an_unknown_topic_is_named(pipeline, which):
    """A misspelt name creates neither source nor sink."""
    pipeline.publish(["a"])
    name = "no-such-topic"
    with missing_at_once(), pytest.raises(UnknownTopic, match=name):
        pipeline.run(**{which: (name,) if which == "source_topics" else name})


def test_a_ledger_made_again_is_refused(pipeline):
    """An empty ledger would report every run as not committed."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.kafka.delete_topic(pipeline.ledger)
    with missing_at_once(), pytest.raises(LedgerMissing, match="init"):
        pipeline.run("r1", try_number=2)
    create_ledger(Deployment(pipeline.spec.kafka, pipeline.spec.ledger, "another"))
    with pytest.raises(LedgerReplaced, match="start over with a new group_id"):
        pipeline.run("r2")
    assert pipeline.output() == ["a"]


def test_a_cursor_goes_on_when_offsets_that_a_mirror_copied_are_deleted(pipeline):
    """MirrorMaker (tried: 4.3.1) overwrites the offsets of a group without members, with their metadata."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b", "c"])
    group, spec = pipeline.spec.group_id, pipeline.spec
    copied = offset_metadata("run of the other cluster", 0, "sYEMPCOlTU6R1zcRIf-asw")
    commit_offset(spec.kafka, group, pipeline.source, 3, metadata=copied)
    with pytest.raises(LedgerReplaced, match="MirrorMaker copied the offsets"):
        pipeline.run("r2")
    with pytest.raises(LedgerReplaced, match="MirrorMaker does not copy"):
        reset_cursor(spec.deployment, Reset(group, "cursor"))
    pipeline.kafka.admin().delete_consumer_groups([group])[group].result()
    assert pipeline.run("r2").records_read == 2
    assert pipeline.output() == ["a", "b", "c"]


def test_a_clear_is_answered_by_on_committed(pipeline):
    """A cleared run: skip returns its record, fail refuses, reprocess writes it again."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b"])
    assert pipeline.run("r1", clear_number=1).found
    with pytest.raises(RunAlreadyCommitted, match="reprocess"):
        pipeline.run("r1", clear_number=1, on_committed="fail")
    assert pipeline.output() == ["a"]
    again = pipeline.run("r1", clear_number=1, on_committed="reprocess")
    assert (again.mode, again.run_key.endswith("#1"), again.records_read) == ("reprocess", True, 1)
    assert pipeline.output() == ["a", "a"]
    assert pipeline.run("r1", clear_number=1, on_committed="reprocess", try_number=2).found
    assert pipeline.run("r1", clear_number=2, on_committed="reprocess").run_key.endswith("#2")
    assert pipeline.run("r2").records_read == 1
    assert pipeline.output() == ["a", "a", "a", "b"]
