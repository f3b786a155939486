"""Runs whose sink is a table, on a real broker and a real catalog: each record once in its history."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.cli.main import main
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    ConfigurationError,
    DifferentWork,
    OffsetsOutOfRange,
    RunFailed,
    RunFenced,
    TableReplaced,
    TableRewritten,
    UnknownTable,
)
from airflow_eos.ledger import keys
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.ranges import Cursor, Interval, OffsetRange
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.intent_dismissal import dismiss_intent
from airflow_eos.operations.queries import ledger_names
from airflow_eos.operations.verification import verify_output
from airflow_eos.run.kill import Kill
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.publishing import Publisher
from airflow_eos.run.states import State
from airflow_eos_testing.readers import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import Died, LocalDataPlane, Paused, die_at
from tests.support.patience import wait_until
from tests.support.tables import LocalTablePlane, TablePipeline


@pytest.fixture
def pipeline(embedded_kafka, tmp_path):
    return TablePipeline(embedded_kafka, tmp_path)


def committed(pipeline):
    """Return the group's committed offsets of partitions 0 and 1."""
    consumer = Consumer({**pipeline.kafka.client_config(), "group.id": pipeline.spec.group_id})
    try:
        places = [TopicPartition(pipeline.source, partition) for partition in (0, 1)]
        return [place.offset for place in consumer.committed(places, timeout=60)]
    finally:
        consumer.close()


def test_rows_offsets_and_record_belong_together(pipeline):
    """One run: the table has the rows, the ledger has the run with the table's receipt, the offsets agree."""
    pipeline.publish(["a", "b", "c"], partition=0)
    pipeline.publish(["d"], partition=1)
    record = pipeline.run()

    assert pipeline.values() == ["a", "b", "c", "d"]
    assert committed(pipeline) == [3, 1]
    assert (record.records_read, record.records_written) == (4, 4)
    snapshot = pipeline.table.current_snapshot()
    assert record.details["table"] == {
        "sink": "iceberg:c/db.t",
        "uuid": str(pipeline.table.metadata.table_uuid),
        "snapshot": snapshot.snapshot_id,
        "files": 1,
        "rows": 4,
    }
    assert snapshot.summary["eos.run-key"] == record.run_key
    assert snapshot.summary["eos.pipeline"] == pipeline.spec.pipeline
    assert snapshot.summary["eos.ranges"] == f'[["{pipeline.source}",0,0,3],["{pipeline.source}",1,0,1]]'
    assert [state for state, _ in record.trace] == [
        "ASKED", "FENCED", "CHECKED", "PLANNED", "SEALED", "INTENT",
        "FENCED", "CHECKED", "PLANNED", "PUBLISHED", "OPEN", "WRITTEN", "STAGED", "PROVEN", "COMMITTED",
    ]  # fmt: skip


def test_the_next_run_reads_on_and_a_retry_is_answered_from_the_ledger(pipeline):
    """Also if there is nothing to read: then the table gets no snapshot."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    pipeline.publish(["b"])
    pipeline.run("r2")
    snapshots = len(pipeline.table.snapshots())
    assert pipeline.run("r1", try_number=2).found
    assert pipeline.run("r3").records_written == 0
    assert pipeline.values() == ["a", "b"]
    assert len(pipeline.table.snapshots()) == snapshots == 2


STATES = [state for state in State if state not in (State.ABORTED, State.UNKNOWN)]
AROUND_COMMITS = (State.INTENT, State.PUBLISHED, State.PROVEN, State.COMMITTED)


# The next run at the states around both commits, a retry at every state.
@pytest.mark.parametrize(
    ("state", "run_id"),
    rest_in_chaos(
        len(STATES) + len(AROUND_COMMITS),
        [
            *((state, "r1") for state in STATES),
            *((state, "r2") for state in (*AROUND_COMMITS, *sorted({*STATES} - {*AROUND_COMMITS}))),
        ],
    ),
    ids=lambda value: value.value if isinstance(value, State) else value,
)
def test_whoever_comes_after_a_death_at_a_state_leaves_each_record_once(pipeline, state, run_id):
    """The run is retried, or the next run of the cursor follows, with more input."""
    pipeline.publish(["a", "b"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(state))
    pipeline.publish(["c"])
    pipeline.run(run_id, try_number=2)
    pipeline.run("r3")

    assert pipeline.values() == ["a", "b", "c"]
    assert committed(pipeline)[0] == 3


def test_a_retry_adopts_what_the_table_has(pipeline):
    """The rows are not written again, and the record has the ranges that they were read from."""
    pipeline.publish(["a", "b"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    assert pipeline.values() == ["a", "b"]
    assert committed(pipeline)[0] < 0
    pipeline.publish(["c"])
    published = pipeline.table.current_snapshot().snapshot_id

    record = pipeline.run("r1", try_number=2, data=Refusing)

    assert record.details["table"]["snapshot"] == published
    assert [(r.partition, r.start, r.end) for r in record.ranges] == [(0, 0, 2), (1, 0, 0)]
    assert committed(pipeline)[0] == 2


def test_a_group_that_was_moved_since_does_not_keep_the_record_back(pipeline):
    """The rows are in the table: the record has the offsets that they came from, and the group follows it."""
    pipeline.publish(["a", "b"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 1)
    pipeline.run("r1", try_number=2)
    assert committed(pipeline)[0] == 2
    pipeline.publish(["c"])
    pipeline.run("r2")
    assert pipeline.values() == ["a", "b", "c"]


class Refusing(LocalDataPlane):
    """Fails if anything is sealed."""

    def seal(self, plan, writer=None):
        raise AssertionError("the rows are in the table")


@pytest.mark.parametrize("run_id", ["r1", "r2"])
@pytest.mark.parametrize(
    "state", rest_in_chaos(2, [State.INTENT, State.PUBLISHED, State.SEALED, State.STAGED]), ids=str
)
def test_a_zombie_that_wakes_after_its_successor_adds_nothing(pipeline, state, run_id):
    """It finds the run in the ledger, or is fenced."""
    pipeline.publish(["a", "b"])
    zombie = Paused(pipeline, state)
    pipeline.publish(["c"])
    pipeline.run(run_id, try_number=2)
    zombie.resume()

    assert isinstance(zombie.error, RunFenced) or zombie.record.found
    pipeline.run("r3")
    assert pipeline.values() == ["a", "b", "c"]


@pytest.mark.parametrize("state", [State.INTENT, State.PUBLISHED], ids=str)
def test_a_run_that_is_killed_beside_the_table_is_taken_up_by_the_next_try(pipeline, state):
    """Kafka has no commit; the rows are in the table already, or only in files."""
    pipeline.publish(["a", "b"])
    kill = Kill()

    def entered(now):
        if now is state:
            kill.ask()

    with ControlPlane(pipeline.spec) as control:
        collaborators = control.collaborators(LocalTablePlane(pipeline.spec))
        with pytest.raises(RunFailed, match="killed"):
            RunProtocol(pipeline.spec, collaborators, entered, kill).execute()
    assert pipeline.values() == (["a", "b"] if state is State.PUBLISHED else [])
    assert committed(pipeline)[0] < 0
    pipeline.run("r1", try_number=2)
    assert pipeline.values() == ["a", "b"]


@pytest.mark.parametrize("barred", [True, False], ids=["barred", "the counter-test: not barred"])
def test_a_zombie_that_passed_its_last_fence_is_stopped_by_the_table(pipeline, monkeypatch, barred):
    """It publishes after the next run has settled its INTENT and read the record, but not published it."""
    pipeline.publish(["a"])
    zombie = Paused(pipeline, State.INTENT)
    publish, following = Publisher.publish, []

    def late(publisher, claim, files):
        if not following:
            following.append(Paused(pipeline, State.SEALED, "r2"))
        return publish(publisher, claim, files)

    monkeypatch.setattr(Publisher, "publish", late)
    if not barred:
        monkeypatch.setattr(Publisher, "settle", lambda *_: None)
    zombie.resume()
    following[0].resume()

    assert isinstance(zombie.error, RunFenced)
    assert pipeline.values() == (["a"] if barred else ["a", "a"])


def test_rounds_are_published_one_by_one(pipeline):
    """Each round is a snapshot; a run that died between two is continued."""
    pipeline.publish([f"v{i}" for i in range(7)])
    ranges = Cursor(until_caught_up=True, max_records=3)
    with pytest.raises(Died):
        pipeline.run("r1", ranges=ranges, on_state=die_at(State.PUBLISHED, 2))
    record = pipeline.run("r1", ranges=ranges, try_number=2)

    assert pipeline.values() == [f"v{i}" for i in range(7)]
    assert record.records_read == 7
    assert len(pipeline.table.snapshots()) == 3


def test_a_reprocessing_appends_the_recorded_ranges_once_more(pipeline):
    """On purpose, and once whatever dies."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    again = {"clear_number": 1, "on_committed": "reprocess"}
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED), **again)
    pipeline.run("r1", try_number=2, **again)
    assert pipeline.values() == ["a", "a"]


class Corrected(LocalTablePlane):
    """The corrected function."""

    def rows(self, values):
        return [value.upper() for value in values]


class Nothing(LocalTablePlane):
    """A function that returns no rows."""

    def seal(self, plan, writer=None):
        return replace(super().seal(plan, writer), files=())


AGAIN = {"clear_number": 1, "on_committed": "reprocess", "data": Corrected}


def replacing(pipeline):
    """The pipeline's table, in which a reprocessing replaces the earlier rows."""
    return {**AGAIN, "sink": replace(pipeline.spec.sink, reprocess="replace")}


@pytest.mark.parametrize(
    "state",
    rest_in_chaos(3, (*AROUND_COMMITS[:3], *sorted({*STATES} - {*AROUND_COMMITS}))),
    ids=lambda state: state.value,
)
def test_a_reprocessing_that_replaces_leaves_each_record_once(pipeline, state):
    """A death at a state, then a retry; rows of earlier and later runs stay."""
    records = {}
    for run_id, value in (("r0", "a"), ("r1", "b"), ("r2", "c")):
        pipeline.publish([value])
        records[run_id] = pipeline.run(run_id)
    again = replacing(pipeline)
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(state), **again)
    assert pipeline.values() in (["a", "b", "c"], ["B", "a", "c"])
    record = pipeline.run("r1", try_number=2, **again)

    assert pipeline.values() == ["B", "a", "c"]
    assert committed(pipeline)[0] == 3
    assert record.details["table"]["replaced"] == [records["r1"].details["table"]["snapshot"]]
    third = pipeline.run("r1", **{**again, "clear_number": 2})
    assert third.details["table"]["replaced"] == [record.details["table"]["snapshot"]]
    assert pipeline.values() == ["B", "a", "c"]


@pytest.mark.parametrize("state", [State.SEALED, State.INTENT, State.PUBLISHED], ids=str)
def test_a_zombie_of_a_replacement_changes_nothing(pipeline, state):
    """It wakes up after the retry has replaced the rows."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    again = replacing(pipeline)
    zombie = Paused(pipeline, state, **again)
    pipeline.run("r1", try_number=2, **again)
    zombie.resume()
    assert isinstance(zombie.error, RunFenced) or zombie.record.found
    assert pipeline.values() == ["A", "B"]


def test_rows_that_were_rewritten_are_not_replaced(pipeline):
    """Refused before anything is read or written; the ledger's record does not change."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    pipeline.table.delete("value == 'a'")
    with pytest.raises(TableRewritten, match="of the 1 data files"):
        pipeline.run("r1", **{**replacing(pipeline), "data": Refusing})
    assert pipeline.values() == ["b"]


def test_a_reprocessing_without_rows_takes_out_what_the_run_wrote(pipeline):
    """Also when it dies between the table and the ledger."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    again = {**replacing(pipeline), "data": Nothing}
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED), **again)
    record = pipeline.run("r1", try_number=2, **again)
    assert (record.records_read, record.records_written) == (2, 0)
    assert pipeline.values() == []


def test_the_table_is_replaced_in_whatever_it_is_called(pipeline):
    """Its connection was renamed since, or its folder has another spelling: the earlier rows are its own."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1")
    again = replacing(pipeline)
    pipeline.run("r1", **{**again, "sink": pipeline.renamed(again["sink"])})
    assert pipeline.values() == ["A", "B"]


@pytest.mark.parametrize(("given_up", "commits"), [(False, 3), (True, 2)])
def test_all_rounds_of_a_run_are_replaced(pipeline, given_up, commits):
    """By one commit: a reprocessing has no rounds. Also if a retry did the rest without rounds."""
    pipeline.publish([f"v{i}" for i in range(5)])
    ranges = Cursor(until_caught_up=True, max_records=2)
    if given_up:
        with pytest.raises(Died):
            pipeline.run("r1", ranges=ranges, on_state=die_at(State.COMMITTED))
        ranges = Cursor()
        pipeline.run("r1", ranges=ranges, try_number=2)
    else:
        pipeline.run("r1", ranges=ranges)
    record = pipeline.run("r1", ranges=ranges, **replacing(pipeline))
    assert len(record.details["table"]["replaced"]) == commits
    assert pipeline.values() == [f"V{i}" for i in range(5)]


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "500",
}


def compacted(pipeline):
    """Whether the cleaner has left at most one record of the run's six."""
    pipeline.publish(["a"])  # rolls the segment
    records = read_topic(pipeline.kafka.client_config(), pipeline.source, "read_committed")
    return sum(record.offset < 6 for record in records) < 2


def test_records_that_compaction_has_removed_keep_their_rows(embedded_kafka, tmp_path):
    """The log starts where the ranges do, but lacks records that the run has read."""
    pipeline = TablePipeline(embedded_kafka, tmp_path, source_config=COMPACTED)
    pipeline.publish(["a"] * 6)
    pipeline.run("r1")
    wait_until(lambda: compacted(pipeline), seconds=90)
    lost = rf"{pipeline.source}-0: the run read 6 records, its reprocessing \d"
    with pytest.raises(OffsetsOutOfRange, match=lost):
        pipeline.run("r1", **replacing(pipeline))
    assert pipeline.values() == ["a"] * 6


def test_a_replacement_does_not_accept_deleted_records(pipeline):
    """The Dag has `accept_deleted` for its other intervals; appending does, since it removes nothing."""
    began = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
    ranges = Interval(began, began + dt.timedelta(hours=1), accept_deleted=True)
    for value, minute in (("a", 1), ("b", 2), ("c", 90)):
        moment = began + dt.timedelta(minutes=minute)
        pipeline.publish([value], timestamp=int(moment.timestamp() * 1000))
    pipeline.run("r1", ranges=ranges)
    admin = pipeline.kafka.admin()
    deleted = admin.delete_records([TopicPartition(pipeline.source, 0, 1)])
    deleted[TopicPartition(pipeline.source, 0)].result()
    with pytest.raises(OffsetsOutOfRange, match="accept_deleted=True appends"):
        pipeline.run("r1", ranges=ranges, **{**replacing(pipeline), "data": Refusing})
    assert pipeline.values() == ["a", "b"]
    pipeline.run("r1", ranges=ranges, **AGAIN)
    assert pipeline.values() == ["B", "a", "b"]


def test_skipped_offsets_that_the_run_has_read_keep_their_rows(pipeline):
    """Offsets that the run skipped itself are not in its ranges, and do not matter."""
    pipeline.publish([f"v{i}" for i in range(5)])
    skipped = {"skip_offsets": (OffsetRange(pipeline.source, 0, 1, 2),)}
    pipeline.run("r1", **skipped)
    pipeline.run("r1", **skipped, **replacing(pipeline))
    assert pipeline.values() == ["V0", "V2", "V3", "V4"]
    skipped = {"skip_offsets": (OffsetRange(pipeline.source, 0, 1, 3),)}
    with pytest.raises(OffsetsOutOfRange, match="read 4 records, its reprocessing 3"):
        pipeline.run("r1", **{**replacing(pipeline), **skipped, "clear_number": 2})
    assert pipeline.values() == ["V0", "V2", "V3", "V4"]


NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.timezone.utc)
HOUR = Interval(NOON, NOON + dt.timedelta(hours=1), dt.timedelta(0))


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, ["a"]),
        ({"ranges": HOUR}, ["a"]),
        ({"clear_number": 1, "on_committed": "reprocess"}, ["a", "a"]),
    ],
    ids=["cursor", "interval", "reprocessing"],
)
def test_what_is_open_in_one_table_is_not_read_on_into_another_sink(pipeline, changes, rows):
    """Sink or prefix was changed between a death and the next try: only the first table knows the outcome."""
    pipeline.publish(["a"], timestamp=int(NOON.timestamp() * 1000))
    for _ in rows[1:]:
        pipeline.run("r1")
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED), **changes)
    pipeline.catalog.create_table("db.u", schema=pipeline.table.schema())
    other = IcebergTable("db.u", catalog="c", properties=pipeline.properties)
    with pytest.raises(DifferentWork, match=r"iceberg:c/db\.t"):
        pipeline.run("r1", sink=other, **changes)
    with pytest.raises(DifferentWork, match=r"iceberg:c/db\.t"):
        pipeline.run("r1", sink=None, sink_topic=pipeline.sink, data=LocalDataPlane, **changes)
    with pytest.raises(DifferentWork, match=pipeline.spec.prefix):
        pipeline.run("r1", prefix="moved", **changes)
    assert pipeline.output() == []
    pipeline.run("r1", try_number=2, **changes)
    assert pipeline.values() == rows


@pytest.mark.parametrize(("before", "now"), [(1, None), (None, 0)], ids=["no longer", "since"])
def test_what_is_open_is_not_read_again_by_a_task_that_is_mapped_otherwise(pipeline, before, now):
    """The mapping was changed between a death and the next try, so the transactional id differs."""
    for partition, value in enumerate("ab"):
        pipeline.publish([value], partition=partition, timestamp=int(NOON.timestamp() * 1000))
    with pytest.raises(Died):
        pipeline.run("r1", ranges=HOUR, source_partition=before, on_state=die_at(State.PUBLISHED))
    with pytest.raises(DifferentWork, match="run the task once as it was then"):
        pipeline.run("r1", ranges=HOUR, source_partition=now)
    pipeline.run("r1", ranges=HOUR, source_partition=before)
    assert pipeline.values() == (["a", "b"] if before is None else ["b"])


def test_what_is_open_is_not_read_again_by_another_group(pipeline):
    """The group of an interval was changed between a death and the next try: a table's notes are by group."""
    pipeline.publish(["a"], timestamp=int(NOON.timestamp() * 1000))
    with pytest.raises(Died):
        pipeline.run("r1", ranges=HOUR, on_state=die_at(State.PUBLISHED))
    with pytest.raises(DifferentWork, match=f"group '{pipeline.spec.group_id}'"):
        pipeline.run("r1", ranges=HOUR, group_id=f"{pipeline.spec.group_id}-moved", try_number=2)
    pipeline.run("r1", ranges=HOUR, try_number=3)
    assert pipeline.values() == ["a"]


def dismiss(pipeline, *, routing=None, check_table=True, execute=True):
    return dismiss_intent(
        pipeline.spec.deployment,
        keys.intent_key(keys.transactional_id(pipeline.spec)),
        (lambda _: pipeline.spec.sink) if check_table else None,
        routing=routing or pipeline.spec.group_id,
        execute=execute,
    )


def test_a_table_made_again_is_refused_until_the_intent_is_taken_back(pipeline):
    """No run can tell whether the old table had the rows; while the old table exists, the INTENT stays."""
    pipeline.publish(["a"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    with pytest.raises(ConfigurationError, match="has the run's rows"):
        dismiss(pipeline)
    pipeline.make_again()
    with pytest.raises(TableReplaced):
        pipeline.run("r1", try_number=2)
    assert pipeline.values() == []
    assert dismiss(pipeline).done
    pipeline.run("r1", try_number=3)
    assert pipeline.values() == ["a"]


def routing_of_another_partition(pipeline):
    """Return a name whose records are in another ledger partition than those of the pipeline's group."""
    with Link(pipeline.spec.kafka) as link:
        ledger = KafkaLedger(link, pipeline.spec.ledger)
        own = ledger.partition_for(pipeline.spec.group_id)
        return next(name for name in map(str, count()) if ledger.partition_for(name) != own)


def test_an_intent_whose_table_is_gone_is_taken_back_by_a_command(pipeline):
    """A zombie that wakes afterwards adds nothing to the new table; the next run reads the records again."""
    pipeline.publish(["a"])
    zombie = Paused(pipeline, State.INTENT)
    with pytest.raises(ConfigurationError, match="can tell whether it did"):
        dismiss(pipeline)
    with pytest.raises(ConfigurationError, match="check --key and --routing"):
        dismiss(pipeline, routing=routing_of_another_partition(pipeline))
    schema = pipeline.table.schema()
    pipeline.catalog.drop_table("db.t")
    assert not dismiss(pipeline, execute=False).done
    pipeline.catalog.create_table("db.t", schema=schema)
    with pytest.raises(
        TableReplaced, match=f"airflow eos dismiss --key intent:.* --routing {pipeline.spec.group_id}"
    ):
        pipeline.run("r1", try_number=2)

    taken_back = dismiss(pipeline)
    zombie.resume()

    assert taken_back.done
    assert taken_back.to_dict()["ranges"] == [[pipeline.source, 0, 0, 1], [pipeline.source, 1, 0, 0]]
    assert isinstance(zombie.error, TableReplaced | RunFenced)
    assert pipeline.values() == []
    pipeline.run("r1", try_number=3)
    assert pipeline.values() == ["a"]


def test_a_table_that_cannot_be_written_is_there_and_can_tell(pipeline):
    """An INTENT is taken back only if the catalog reports that the table does not exist."""
    pipeline.publish(["a"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    with pipeline.table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    with pytest.raises(ConfigurationError, match="it has the run's rows"):
        dismiss(pipeline)
    arguments = ["dismiss", "--table-gone", "--yes", "--output", "json", "--prefix", pipeline.spec.prefix]
    arguments += [
        "--bootstrap-servers",
        pipeline.kafka.bootstrap_servers,
        "--routing",
        pipeline.spec.group_id,
    ]
    arguments += ["--ledger-topic", pipeline.ledger]
    arguments += ["--key", keys.intent_key(keys.transactional_id(pipeline.spec))]
    assert main(arguments) == 0
    with pytest.raises(ConfigurationError, match="no open INTENT"):
        dismiss(pipeline, check_table=False)


def test_rows_of_a_table_that_can_no_longer_be_written_are_adopted(pipeline):
    """Its format was upgraded after PUBLISHED; the next run is refused until it has another sink."""
    pipeline.publish(["a"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    pipeline.raise_format()
    record = pipeline.run("r1", try_number=2, data=Refusing)
    assert record.details["table"]["rows"] == 1
    pipeline.publish(["b"])
    with pytest.raises(UnknownTable):
        pipeline.run("r2")
    pipeline.run("r2", try_number=2, sink=None, sink_topic=pipeline.sink, data=LocalDataPlane)
    assert pipeline.values() == ["a"]


def test_an_intent_of_a_table_that_can_no_longer_be_written_is_given_up_by_a_command(pipeline):
    """The table does not have the rows, and no run will publish them."""
    pipeline.publish(["a"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.INTENT))
    pipeline.raise_format()
    with pytest.raises(UnknownTable):
        pipeline.run("r1", try_number=2)
    with pytest.raises(UnknownTable, match=r"does not have the run's rows.*say --table-gone"):
        dismiss(pipeline)
    assert dismiss(pipeline, check_table=False).done
    topics = {"sink": None, "sink_topic": pipeline.sink, "data": LocalDataPlane}
    assert pipeline.run("r1", try_number=3, **topics).records_written == 1


def test_a_reset_waits_until_an_open_intent_is_settled(pipeline):
    """A reset to the beginning would read again records that the table may have."""
    pipeline.publish(["a"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    reset = Reset(
        pipeline.spec.group_id, to="earliest", topics=(pipeline.source,), pipeline=pipeline.spec.pipeline
    )
    with pytest.raises(DifferentWork, match="run the task once"):
        reset_cursor(pipeline.spec.deployment, reset)
    pipeline.run("r1", try_number=2)
    reset_cursor(pipeline.spec.deployment, reset)
    pipeline.run("r2")
    assert pipeline.values() == ["a", "a"]


def test_rows_of_a_table_are_compared_with_the_ledger(pipeline):
    """Without access to the catalog the result says so: no finding would look like success."""
    pipeline.publish(["a", "b"])
    record = pipeline.run()
    (finding,) = verify_output(
        pipeline.spec.kafka, record, connected=lambda table: replace(table, properties=pipeline.properties)
    )
    assert (finding.topic, finding.outcome, finding.found) == ("iceberg:c/db.t", "ok", 2)
    (finding,) = verify_output(pipeline.spec.kafka, record)
    assert (finding.topic, finding.outcome, finding.recorded) == ("iceberg:c/db.t", "table", 2)
    assert str(record.details["table"]["snapshot"]) in finding.detail


def test_the_commands_know_what_a_dead_run_left_of_a_table(pipeline):
    """Status: the table, its last snapshot, the open INTENT. Doctor: files that no snapshot references."""
    pipeline.publish(["a"])
    record = pipeline.run("r1")
    pipeline.publish(["b"])
    with pytest.raises(Died):
        pipeline.run("r2", on_state=die_at(State.INTENT))

    spec = pipeline.spec
    names = ledger_names(spec.deployment)
    assert names.in_tables[spec.pipeline].details["table"] == record.details["table"]
    (intent,) = (intent for intent in names.intents if intent.pipeline == spec.pipeline)
    assert (intent.table, intent.transactional_id) == ("iceberg:c/db.t", keys.transactional_id(spec))

    options = DoctorOptions(Deployment(spec.kafka, spec.ledger, spec.prefix), tables=[spec.sink])
    checks = {check.name: check for check in examine(options)}
    assert checks["table iceberg:c/db.t"].status == "ok"
    left = checks["table iceberg:c/db.t unnamed files"]
    assert left.status == "warn"
    assert f"of {intent.run_key}: 00000-0-" in left.found

    pipeline.run("r2", try_number=2)
    assert not [
        intent for intent in ledger_names(spec.deployment).intents if intent.pipeline == spec.pipeline
    ]


def test_the_ledger_keeps_no_intent_of_a_run_that_is_over(pipeline):
    """The transaction of the run's record removes it."""
    pipeline.publish(["a"])
    pipeline.run()
    with ControlPlane(pipeline.spec) as control:
        key = keys.intent_key(keys.transactional_id(pipeline.spec))
        assert control.authority.peek([key], routing=pipeline.spec.group_id) == {}
