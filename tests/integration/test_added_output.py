"""What a run writes beside its function's output: dead letters, and headers that name the run."""

from __future__ import annotations

import pytest

from airflow_eos import arrow_process
from airflow_eos.engine import RunAttempt
from airflow_eos.exceptions import ConfigurationError, ProcessFailed, UnknownTopic
from airflow_eos.model.ranges import Cursor
from airflow_eos.operations.verification import verify_output
from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.support.local_runs import Pipeline
from tests.support.missing_topics import missing_at_once

BAD = {"a3", "a7", "b0"}


@arrow_process
def parse(batch):
    """Raise on some records, as a function does that was not written for them."""
    for value in batch["value"].to_pylist():
        if value.decode() in BAD:
            raise ValueError(f"not an order: {value!r}")
    return batch.select(["key", "value"])


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    """Twenty records in two partitions, three of them bad, and a topic for those."""
    filled = Pipeline(embedded_kafka)
    for partition, letter in enumerate("ab"):
        filled.publish([f"{letter}{n}" for n in range(10)], partition=partition)
    filled.spec = filled.changed(dead_letter_topic=embedded_kafka.create_topic(f"dead-{filled.source}"))
    return filled


def dead_letters(pipeline, isolation="read_committed"):
    return read_topic(pipeline.kafka.client_config(), pipeline.spec.dead_letter_topic, isolation)


def test_dead_letters_are_committed_with_the_run_that_found_them(spark, pipeline):
    """Each is written once, however often the run is retried; cursor, ledger and verification count them."""
    record = RunAttempt(spark, pipeline.changed("r1"), parse).execute()
    again = RunAttempt(spark, pipeline.changed("r1"), parse).execute()
    following = RunAttempt(spark, pipeline.changed("r2"), parse).execute()
    assert (again.found, following.records_read) == (True, 0)
    assert pipeline.output() == sorted({f"{x}{n}" for x in "ab" for n in range(10)} - BAD)
    letters = dead_letters(pipeline)
    assert sorted(letter.value.decode() for letter in letters) == sorted(BAD)
    for letter in letters:
        headers = {key: value.decode() for key, value in letter.headers}
        assert headers["error"].startswith(f"ValueError: not an order: {letter.value!r} (")
        assert headers["source.topic"] == pipeline.source
        place = (headers["source.partition"], headers["source.offset"])
        assert place == (str("ab".index(letter.value.decode()[0])), letter.value.decode()[1])
    assert (record.records_read, record.records_written, record.dead_letters) == (20, 20, 3)
    assert (again.summary()["dead_letters"], following.summary()["dead_letters"]) == (3, 0)
    assert {finding.outcome for finding in verify_output(pipeline.spec.kafka, record)} == {"ok"}


def test_beyond_the_bound_nothing_is_written_and_a_larger_one_does_the_work(spark, pipeline):
    """The bound applies to the whole run: no single task exceeds it."""
    with pytest.raises(ProcessFailed, match=r"failed on 3 records or more, and max_dead_letters is 2"):
        RunAttempt(spark, pipeline.changed("r1", max_dead_letters=2), parse).execute()
    assert pipeline.output("read_uncommitted") == []
    assert dead_letters(pipeline, "read_uncommitted") == []
    assert RunAttempt(spark, pipeline.changed("r1", max_dead_letters=3), parse).execute().dead_letters == 3
    assert len(dead_letters(pipeline, "read_uncommitted")) == 3


def test_rounds_have_their_own_dead_letters(spark, pipeline):
    """The bound applies to each round, and no round finds a letter again."""
    ranges = Cursor(max_records=5, until_caught_up=True)
    record = RunAttempt(spark, pipeline.changed("r1", ranges=ranges, max_dead_letters=2), parse).execute()
    assert record.dead_letters == 3
    assert sorted(letter.value.decode() for letter in dead_letters(pipeline)) == sorted(BAD)


def test_what_cannot_work_is_refused_before_spark_starts(pipeline):
    """A dead-letter topic that is missing, or is a source."""

    def never(_):
        raise AssertionError("Spark was asked for")

    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-dead-letters"):
        RunAttempt(never, pipeline.changed("r1", dead_letter_topic="no-such-dead-letters"), parse).execute()
    with pytest.raises(ConfigurationError, match="is read by the run"):
        pipeline.changed(dead_letter_topic=pipeline.source)


@arrow_process
def with_its_headers(batch):
    """Pass records on, some of which have headers."""
    return batch.select(["key", "value", "headers"])


def headers_of(pipeline):
    """Return headers of the sink, the oldest output first."""
    return [
        dict(record.headers) for record in sorted(read_topic(pipeline.spec.kafka, pipeline.sink), key=place)
    ]


def place(record):
    return record.offset


@pytest.mark.parametrize("process", [with_its_headers, lambda df: df.select("key", "value", "headers")])
def test_what_a_reprocessing_writes_names_run_and_number_where_that_is_asked_for(
    spark, embedded_kafka, process
):
    """The first run adds no header; each repetition adds its number."""
    pipeline = Pipeline(embedded_kafka, partitions=1)
    pipeline.publish(["a", "b"])
    first = RunAttempt(spark, pipeline.changed("r1", mark_output="reprocessed"), process).execute()
    for clear in (1, 2):
        spec = pipeline.changed("r1", mark_output="reprocessed", on_committed="reprocess", clear_number=clear)
        record = RunAttempt(spark, spec, process).execute()
        assert record.run_key == f"{first.run_key}#{clear}"
    unasked = pipeline.changed("r1", on_committed="reprocess", clear_number=3)
    RunAttempt(spark, unasked, process).execute()
    assert headers_of(pipeline) == [
        *[{}] * 2,
        *[{"eos.run": f"{first.run_key}#1".encode(), "eos.reprocessing": b"1"}] * 2,
        *[{"eos.run": f"{first.run_key}#2".encode(), "eos.reprocessing": b"2"}] * 2,
        *[{}] * 2,
    ]


def test_dead_letters_and_output_name_their_run_where_all_output_shall(spark, pipeline):
    """They have no repetition number, since the run is not a repetition."""
    record = RunAttempt(spark, pipeline.changed("r1", mark_output="always"), parse).execute()
    assert headers_of(pipeline) == [{"eos.run": record.run_key.encode()}] * 17
    for letter in dead_letters(pipeline):
        assert dict(letter.headers)["eos.run"] == record.run_key.encode()
