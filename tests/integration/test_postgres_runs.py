"""Runs whose sink is a PostgreSQL table, on a real broker and server: each record once, counted by psql."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_eos.exceptions import (
    ConfigurationError,
    RunFenced,
    StagedRowsLost,
    TableRefused,
    TableReplaced,
)
from airflow_eos.model.ranges import Cursor, OffsetRange
from airflow_eos.run.states import State
from airflow_eos.sinks.postgres_sink import PostgresSink
from airflow_eos_testing.postgres import PostgresServer
from tests.integration.test_table_runs import (
    dismiss,
    # These run here, too, with the pipeline of this module.
    test_a_reprocessing_without_rows_takes_out_what_the_run_wrote,  # noqa: F401
    test_a_zombie_of_a_replacement_changes_nothing,  # noqa: F401
    test_a_zombie_that_passed_its_last_fence_is_stopped_by_the_table,  # noqa: F401
    test_an_intent_of_a_table_that_can_no_longer_be_written_is_given_up_by_a_command,  # noqa: F401
    test_rows_of_a_table_that_can_no_longer_be_written_are_adopted,  # noqa: F401
    test_the_table_is_replaced_in_whatever_it_is_called,  # noqa: F401
    test_what_is_open_is_not_read_again_by_another_group,  # noqa: F401
)
from tests.support.local_runs import Died, LocalDataPlane, Paused, Pipeline, die_at
from tests.support.postgres_tables import Database
from tests.support.tables import LocalFiles, LocalTablePlane

COLUMNS = 'value text NOT NULL, "offset" bigint'


class PostgresPipeline(Pipeline):
    """A pipeline on a real broker that writes to a table of its own, with the columns value and offset."""

    def __init__(self, kafka, database, **sink):
        super().__init__(kafka)
        self.database = database
        self.spec = replace(self.spec, sink_topic=None, sink=database.sink(**sink))

    def run(self, run_id="r1", **changes):
        return super().run(run_id, **{"data": LocalTablePlane, **changes})

    def killed(self, state):
        """Run r1 until it enters a state, and end like a killed process, without clean-up."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PostgresSink, "close", lambda _: None)
            with pytest.raises(Died):
                self.run("r1", on_state=die_at(state))

    def values(self):
        return self.database.values("value")

    def raise_format(self):
        """Make the table one that runs do not write."""
        self.database.sql(f"ALTER TABLE {self.database.table} SET UNLOGGED")

    def renamed(self, sink):
        return replace(sink, connection="other")

    def make_again(self):
        self.database.sql(f"DROP TABLE {self.database.table}")
        self.database.create(COLUMNS)

    def left(self):
        """Return the number of remaining staging tables of these runs."""
        return len(self.database.staging())


@pytest.fixture
def pipeline(embedded_kafka, postgres_server):
    database = Database(postgres_server)
    database.create(COLUMNS)
    return PostgresPipeline(embedded_kafka, database)


def committed(pipeline):
    """Return the group's committed offset of partition 0."""
    consumer = Consumer({**pipeline.kafka.client_config(), "group.id": pipeline.spec.group_id})
    try:
        (place,) = consumer.committed([TopicPartition(pipeline.source, 0)], timeout=60)
        return place.offset
    finally:
        consumer.close()


class Refusing(LocalDataPlane):
    """Fails if anything is sealed."""

    def seal(self, plan, writer=None):
        raise AssertionError("the rows are in the table")


def test_rows_offsets_and_record_belong_together(pipeline):
    """The transaction id in the record identifies the rows, and no staged rows are left."""
    pipeline.publish(["a", "b", "c"])
    record = pipeline.run()

    table = record.details["table"]
    assert pipeline.values() == ["a", "b", "c"]
    assert committed(pipeline) == 3
    assert (table["sink"], table["files"], table["rows"]) == (f"postgres:c/{pipeline.database.table}", 1, 3)
    written_by = f"xmin::text::bigint = {table['snapshot']} % (1::bigint << 32)"
    assert pipeline.database.sql(f"SELECT count(*) FROM {pipeline.database.table} WHERE {written_by}") == [
        ["3"]
    ]
    noted = pipeline.database.sql("SELECT last_run->>'eos.ranges' FROM airflow_eos.published")
    assert [f'[["{pipeline.source}",0,0,3],["{pipeline.source}",1,0,0]]'] in noted
    assert pipeline.left() == 0


@pytest.mark.parametrize("run_id", ["r1", "r2"])
@pytest.mark.parametrize("state", [State.SEALED, State.INTENT, State.PUBLISHED, State.PROVEN], ids=str)
def test_whoever_comes_after_a_death_at_a_state_leaves_each_record_once(pipeline, state, run_id):
    """The run is retried, or the next run of the cursor follows, with more input."""
    pipeline.publish(["a", "b"])
    pipeline.killed(state)
    assert pipeline.left() == (state in (State.SEALED, State.INTENT))
    pipeline.publish(["c"])
    pipeline.run(run_id, try_number=2)
    pipeline.run("r3")

    assert pipeline.values() == ["a", "b", "c"]
    assert committed(pipeline) == 3


def test_a_retry_adopts_what_was_published_though_others_have_deleted_it(pipeline):
    """The rows are not written again, and the record has the ranges that they were read from."""
    pipeline.publish(["a", "b"])
    pipeline.killed(State.PUBLISHED)
    assert pipeline.values() == ["a", "b"]
    pipeline.publish(["c"])
    pipeline.database.sql(f"DELETE FROM {pipeline.database.table} WHERE value = 'a'")

    record = pipeline.run("r1", try_number=2, data=Refusing)

    assert pipeline.values() == ["b"]
    assert record.details["table"]["rows"] == 2
    assert committed(pipeline) == 2


def test_a_table_made_again_is_refused_until_somebody_has_looked(pipeline):
    """A table restored from a dump is another table, too, although it has the rows: no command can tell."""
    pipeline.publish(["a"])
    pipeline.killed(State.PUBLISHED)
    pipeline.make_again()
    with pytest.raises(TableReplaced):
        pipeline.run("r1", try_number=2)
    with pytest.raises(ConfigurationError, match=r"is another table now.*say --table-gone"):
        dismiss(pipeline)
    assert dismiss(pipeline, check_table=False).done
    pipeline.run("r1", try_number=3)
    assert pipeline.values() == ["a"]


@pytest.mark.parametrize("state", [State.SEALED, State.INTENT, State.PUBLISHED], ids=str)
def test_a_zombie_that_wakes_after_its_successor_adds_nothing(pipeline, state):
    """Its staged rows are its own: they do not mix with its successor's, which has dropped them."""
    pipeline.publish(["a", "b"])
    zombie = Paused(pipeline, state)
    pipeline.publish(["c"])
    pipeline.run("r1", try_number=2)
    zombie.resume()

    assert isinstance(zombie.error, RunFenced) or zombie.record.found
    pipeline.run("r2")
    assert pipeline.values() == ["a", "b", "c"]
    assert pipeline.left() == 0


class TwiceStaged(LocalTablePlane):
    """Stages rows twice and does not count the first COPY, as after a repeated task."""

    def seal(self, plan, writer=None):
        super().seal(plan, writer)
        return super().seal(plan, writer)


class NoRows(LocalTablePlane):
    """The process returns no rows."""

    def seal(self, plan, writer=None):
        sealed = super().seal(plan, writer)
        return LocalFiles(sealed.manifest, [])


def test_rows_of_a_repeated_task_are_there_once_and_a_run_without_rows_leaves_nothing(pipeline):
    """Staged rows that were not counted are removed with the attempt."""
    pipeline.publish(["a", "b"])
    pipeline.run("r1", data=TwiceStaged)
    assert pipeline.values() == ["a", "b"]
    pipeline.publish(["c"])
    pipeline.run("r2", data=NoRows)
    assert pipeline.values() == ["a", "b"]
    assert committed(pipeline) == 3
    assert pipeline.left() == 0


def test_a_violated_constraint_fails_the_run_until_the_record_is_left_out(pipeline):
    """At once, with the constraint's name; the next try settles the INTENT, as the operator decides."""
    pipeline.database.sql(f"ALTER TABLE {pipeline.database.table} ADD CONSTRAINT no_b CHECK (value <> 'b')")
    pipeline.publish(["a", "b"])
    for number in (1, 2):
        with pytest.raises(TableRefused, match="no_b"):
            pipeline.run("r1", try_number=number)
        assert pipeline.values() == []
        assert committed(pipeline) < 0
    pipeline.run("r1", try_number=3, skip_offsets=(OffsetRange(pipeline.source, 0, 1, 2),))
    assert pipeline.values() == ["a"]
    assert committed(pipeline) == 2


def test_upserts_of_runs_and_rounds_leave_the_last_value_of_each_key(embedded_kafka, postgres_server):
    """A key occurs several times in a round, in two rounds and in two runs, with deaths in between."""
    database = Database(postgres_server)
    database.create('value text PRIMARY KEY, "offset" bigint')
    pipeline = PostgresPipeline(embedded_kafka, database, mode="upsert", key=["value"])
    pipeline.publish(["a", "b", "a", "c", "a", "b"])
    ranges = Cursor(until_caught_up=True, max_records=4)
    with pytest.raises(Died):
        pipeline.run("r1", ranges=ranges, on_state=die_at(State.PUBLISHED, 2))
    pipeline.run("r1", ranges=ranges, try_number=2)
    offsets = f'SELECT value, "offset" FROM {database.table} ORDER BY value'
    assert database.sql(offsets) == [["a", "4"], ["b", "5"], ["c", "3"]]
    pipeline.publish(["c", "c"])
    record = pipeline.run("r2")
    assert database.sql(offsets) == [["a", "4"], ["b", "5"], ["c", "7"]]
    assert (record.records_read, record.details["table"]["rows"]) == (2, 1)


def test_a_crash_of_the_server_loses_no_record_and_doubles_none(embedded_kafka):
    """Between INTENT and PUBLISHED it empties the staging tables; after PUBLISHED it keeps the rows."""
    with PostgresServer() as server:
        database = Database(server)
        database.create('value text NOT NULL, "offset" bigint')
        pipeline = PostgresPipeline(embedded_kafka, database)
        pipeline.publish(["a", "b"])
        crash = {State.INTENT: 1, State.PUBLISHED: 2}

        def crash_at(state):
            def entered(now):
                if now is state and crash.pop(state, None):
                    server.crash()

            return entered

        with pytest.raises(StagedRowsLost, match="2 rows"):
            pipeline.run("r1", on_state=crash_at(State.INTENT))
        assert pipeline.values() == []
        record = pipeline.run("r1", try_number=2, on_state=crash_at(State.PUBLISHED))
        assert crash == {}
        assert pipeline.values() == ["a", "b"]
        assert record.details["table"]["rows"] == 2
        assert pipeline.run("r1", try_number=3).found
        other = replace(pipeline.spec.sink, properties={**database.properties, "host": "/nowhere"})
        pipeline.publish(["c"])
        pipeline.run("r2")
        assert pipeline.run("r2", sink=other, try_number=2).found
        assert pipeline.values() == ["a", "b", "c"]
