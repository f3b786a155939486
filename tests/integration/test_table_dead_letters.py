"""Dead letters of a run whose sink is a table: written once, in the transaction after the table's commit."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from airflow_eos.exceptions import RunFenced, UnknownTopic
from airflow_eos.model.ranges import Cursor
from airflow_eos.run.states import State
from airflow_eos.run.table_steps import TableSteps
from airflow_eos_testing.readers import read_topic
from tests.support.local_runs import Died, Paused, die_at
from tests.support.missing_topics import missing_at_once
from tests.support.tables import LocalTablePlane, TablePipeline

STATES = [State.INTENT, State.PUBLISHED, State.WRITTEN, State.STAGED]
"""States around the commit of the table and of the letters; the search of interleavings has the others."""


class Parses(LocalTablePlane):
    """Raises on values that begin with an x."""

    def rows(self, values):
        if values[0].startswith("x"):
            raise ValueError(f"no number: {values[0]}")
        return values


@pytest.fixture
def pipeline(embedded_kafka, tmp_path):
    return LetterPipeline(embedded_kafka, tmp_path)


class LetterPipeline(TablePipeline):
    """A table, and a topic for dead letters."""

    def __init__(self, kafka, folder):
        super().__init__(kafka, folder)
        self.letter_topic = f"dead-{self.source}"
        kafka.create_topic(self.letter_topic, partitions=2)
        self.spec = self.changed(dead_letter_topic=self.letter_topic)

    def run(self, run_id="r1", **changes):
        return super().run(run_id, **{"data": Parses, **changes})

    def letters(self, isolation="read_committed"):
        """Return value and place of each dead letter, sorted."""
        letters = read_topic(self.kafka.client_config(), self.letter_topic, isolation)
        return sorted((letter.value, dict(letter.headers)["source.offset"]) for letter in letters)


def test_letters_and_the_record_of_the_run_are_one_transaction(pipeline):
    """A letter is the record with place and error; the run's record has a receipt for it."""
    pipeline.publish(["a", "x1", "b"])
    record = pipeline.run()

    assert pipeline.values() == ["a", "b"]
    (letter,) = read_topic(pipeline.kafka.client_config(), pipeline.letter_topic)
    assert (letter.key, letter.value) == (b"x1", b"x1")
    assert dict(letter.headers) == {
        "error": b"no number: x1",
        "source.topic": pipeline.source.encode(),
        "source.partition": b"0",
        "source.offset": b"1",
    }
    assert (record.records_read, record.records_written, record.dead_letters) == (3, 3, 1)
    assert sum(receipt.records for receipt in record.receipts) == 1
    assert record.details["table"]["rows"] == 2


@pytest.mark.parametrize("run_id", ["r1", "r2"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
def test_whoever_comes_after_a_death_leaves_each_row_and_each_letter_once(pipeline, state, run_id):
    """A retry, or the next run of the cursor, whose function no longer raises."""
    pipeline.publish(["a", "x1", "b", "x2"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(state))
    pipeline.publish(["c", "x3"])
    pipeline.run(run_id, try_number=2)
    pipeline.run("r3")

    assert pipeline.values() == ["a", "b", "c"]
    assert pipeline.letters() == [(b"x1", b"1"), (b"x2", b"3"), (b"x3", b"5")]


def test_the_letters_of_what_is_adopted_are_those_of_the_intent(pipeline):
    """The code was fixed between the table's commit and the retry: the rows are not written again."""
    pipeline.publish(["a", "x1"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    assert (pipeline.values(), pipeline.letters("read_uncommitted")) == (["a"], [])

    record = pipeline.run("r1", try_number=2, data=LocalTablePlane, dead_letter_topic=None)

    assert (pipeline.values(), pipeline.letters()) == (["a"], [(b"x1", b"1")])
    assert (record.dead_letters, record.records_written) == (1, 2)


def test_without_the_letters_in_the_intent_a_retry_loses_them(pipeline, monkeypatch):
    """Counter-test: nothing tells any more which records they were."""
    monkeypatch.setattr(TableSteps, "letters_due", lambda *_: None)
    pipeline.publish(["a", "x1"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    pipeline.run("r1", try_number=2)
    assert (pipeline.values(), pipeline.letters()) == (["a"], [])


@pytest.mark.parametrize("state", [State.SEALED, State.INTENT, State.PUBLISHED, State.STAGED], ids=str)
def test_a_zombie_adds_no_letter(pipeline, state):
    """It wakes when its successor has committed the run."""
    pipeline.publish(["a", "x1"])
    zombie = Paused(pipeline, state)
    pipeline.run("r1", try_number=2)
    zombie.resume()
    assert isinstance(zombie.error, RunFenced) or zombie.record.found
    assert (pipeline.values(), pipeline.letters()) == (["a"], [(b"x1", b"1")])


def test_a_run_of_dead_letters_alone_leaves_the_table_as_it_is(pipeline):
    """No snapshot, no INTENT: the letters are in the run's transaction."""
    pipeline.publish(["x1", "x2"])
    record = pipeline.run()
    assert pipeline.table.snapshots() == []
    assert pipeline.letters() == [(b"x1", b"0"), (b"x2", b"1")]
    assert (record.dead_letters, record.records_written) == (2, 2)
    assert pipeline.run(try_number=2).found


def test_rounds_have_letters_of_their_own(pipeline):
    """The run dies between the table's commit of the second round and the round's transaction."""
    pipeline.publish(["a", "x1", "b", "x2", "c"])
    ranges = Cursor(until_caught_up=True, max_records=2)
    with pytest.raises(Died):
        pipeline.run("r1", ranges=ranges, on_state=die_at(State.PUBLISHED, 2))
    record = pipeline.run("r1", ranges=ranges, try_number=2)
    assert pipeline.values() == ["a", "b", "c"]
    assert pipeline.letters() == [(b"x1", b"1"), (b"x2", b"3")]
    assert record.dead_letters == 2


def test_a_record_that_was_deleted_meanwhile_has_a_letter_with_its_place(pipeline):
    """Retention deletes it between a death and the retry; the run commits nevertheless."""
    pipeline.publish(["a", "x1", "x2"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    deleted = pipeline.kafka.admin().delete_records([TopicPartition(pipeline.source, 0, 2)])
    for future in deleted.values():
        future.result(30)
    pipeline.run("r1", try_number=2)

    letters = read_topic(pipeline.kafka.client_config(), pipeline.letter_topic)
    by_offset = {dict(letter.headers)["source.offset"]: letter for letter in letters}
    assert sorted(by_offset) == [b"1", b"2"]
    assert (by_offset[b"1"].value, by_offset[b"2"].value) == (None, b"x2")
    assert dict(by_offset[b"1"].headers)["source.cut"] == b"record"
    assert dict(by_offset[b"1"].headers)["error"] == b"no number: x1"


def test_without_the_topic_of_the_letters_the_run_waits_for_it(pipeline):
    """The rows are in the table; the record is committed once the letters can be written."""
    pipeline.publish(["a", "x1"])
    with pytest.raises(Died):
        pipeline.run("r1", on_state=die_at(State.PUBLISHED))
    for future in pipeline.kafka.admin().delete_topics([pipeline.letter_topic]).values():
        future.result(30)
    with missing_at_once(), pytest.raises(UnknownTopic, match=pipeline.letter_topic):
        pipeline.run("r1", try_number=2)
    pipeline.kafka.create_topic(pipeline.letter_topic, partitions=2)
    pipeline.run("r1", try_number=3)
    assert (pipeline.values(), pipeline.letters()) == (["a"], [(b"x1", b"1")])
