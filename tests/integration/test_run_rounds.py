"""A cursor that reads until it has caught up, on a real broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.engine import find_committed
from airflow_eos.exceptions import RunAlreadyCommitted, RunFenced
from airflow_eos.model.ranges import Cursor, OffsetRange
from airflow_eos.operations.preview import preview
from airflow_eos.run.states import State
from tests.support.local_runs import Died, LocalDataPlane, Paused, Pipeline, die_at

ROUNDS = Cursor(max_records=4, until_caught_up=True)


@pytest.fixture
def pipeline(embedded_kafka):
    pipeline = Pipeline(embedded_kafka)
    pipeline.publish([f"a{i}" for i in range(6)], partition=0)
    pipeline.publish([f"b{i}" for i in range(3)], partition=1)
    return pipeline


def _spans(record):
    return {r.partition: (r.start, r.end) for r in record.ranges}


def test_rounds_go_on_until_nothing_is_left(pipeline):
    """9 records, at most 4 per round: three transactions, one record that covers them all."""
    record = pipeline.run(ranges=ROUNDS)
    assert len(pipeline.output()) == 9
    assert (record.records_read, record.records_written, record.details["rounds"]) == (9, 9, 3)
    assert _spans(record) == {0: (0, 6), 1: (0, 3)}
    assert record.summary()["rounds"] == 3


def test_a_finished_run_is_found_whole_and_reads_nothing_new(pipeline):
    """What arrived since the last round is left to the next run; the answer is the same as the first."""
    first = pipeline.run(ranges=ROUNDS)
    pipeline.publish(["late"])
    again = pipeline.run(ranges=ROUNDS, clear_number=1)
    assert again.found
    assert replace(again, found=False) == replace(first, trace=again.trace, details=again.details)
    assert len(pipeline.output()) == 9
    assert find_committed(replace(pipeline.spec, ranges=ROUNDS)).records_read == 9
    with pytest.raises(RunAlreadyCommitted, match="final"):
        pipeline.run(ranges=ROUNDS, clear_number=2, on_committed="fail")
    assert pipeline.run("r2", ranges=ROUNDS).records_read == 1


def test_a_retry_continues_after_the_last_committed_round(pipeline):
    """The first try dies in its second round: its first round is kept, and not repeated."""

    class DiesInRoundTwo(LocalDataPlane):
        seals = 0

        def seal(self, plan):
            DiesInRoundTwo.seals += 1
            if DiesInRoundTwo.seals == 2:
                raise KeyboardInterrupt
            return super().seal(plan)

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(ranges=ROUNDS, data=DiesInRoundTwo)
    assert len(pipeline.output()) == 4
    record = pipeline.run(ranges=ROUNDS, try_number=2)
    assert len(pipeline.output()) == 9
    assert (record.records_read, record.details["rounds"], record.try_number) == (9, 3, 2)


def test_reprocessing_repeats_the_rounds_as_one(pipeline):
    """All rounds' ranges again, in one transaction; the cursor stays."""
    pipeline.run(ranges=ROUNDS)
    again = pipeline.run(ranges=ROUNDS, clear_number=1, on_committed="reprocess")
    assert (again.mode, again.records_read) == ("reprocess", 9)
    assert len(pipeline.output()) == 18
    assert pipeline.run("r2", ranges=ROUNDS).records_read == 0


def test_max_rounds_ends_a_run_that_never_catches_up(pipeline):
    """The last round allowed is the final one; the next run takes the rest."""
    record = pipeline.run(ranges=replace(ROUNDS, max_rounds=2))
    assert (record.records_read, record.details["rounds"]) == (8, 2)
    assert pipeline.run(ranges=replace(ROUNDS, max_rounds=2), clear_number=1).found
    assert pipeline.run("r2", ranges=ROUNDS).records_read == 1


def test_an_attempt_replaced_between_rounds_never_fences_its_successor(pipeline):
    """It wakes up after its first round: the broker reports it as superseded; the successor is unaffected."""
    slow = Paused(pipeline, State.COMMITTED, ranges=ROUNDS)
    live = Paused(pipeline, State.OPEN, ranges=ROUNDS, try_number=2)
    slow.resume()
    assert isinstance(slow.error, RunFenced)
    live.resume()
    assert live.error is None
    assert live.record.records_read == 9
    assert len(pipeline.output()) == 9


def test_a_run_made_before_rounds_were_asked_for_is_found(pipeline):
    """Turning until_caught_up on does not make finished runs read again."""
    pipeline.run("r1")
    pipeline.publish(["new"])
    assert pipeline.run("r1", ranges=ROUNDS, clear_number=1).found
    assert len(pipeline.output()) == 9


@pytest.mark.parametrize("single", [Cursor(), Cursor(max_records=4)], ids=["whole", "bounded"])
def test_a_run_in_rounds_is_found_though_its_author_does_without_them_now(pipeline, single):
    """A clear reads nothing new, and a reprocessing reads the ranges of the rounds."""
    pipeline.run(ranges=ROUNDS)
    pipeline.publish(["late"])
    assert pipeline.run(ranges=single, try_number=2).records_read == 9
    planned = preview(pipeline.changed(ranges=single)).committed
    assert planned is not None
    assert planned.details["lag"] == 0
    again = pipeline.run(ranges=single, clear_number=1, on_committed="skip")
    assert (again.found, again.records_read) == (True, 9)
    assert len(pipeline.output()) == 9
    repeated = pipeline.run(ranges=single, clear_number=2, on_committed="reprocess")
    assert (repeated.mode, repeated.records_read) == ("reprocess", 9)
    assert pipeline.run("r2", ranges=single).records_read == 1
    assert len(pipeline.output()) == 19


def test_a_run_that_was_finished_without_rounds_is_still_all_of_its_rounds(pipeline):
    """Given up after a try died between two of them: a clear answers for, and repeats, all."""
    with pytest.raises(Died):
        pipeline.run(ranges=ROUNDS, on_state=die_at(State.COMMITTED))
    assert pipeline.run(ranges=Cursor(), try_number=2).records_read == 5
    record = pipeline.run(ranges=Cursor(), clear_number=1)
    assert (record.found, record.records_read, record.details["rounds"]) == (True, 9, 2)
    again = pipeline.run(ranges=Cursor(), clear_number=2, on_committed="reprocess")
    assert (again.records_read, len(pipeline.output())) == (9, 18)
    assert pipeline.run("r2", ranges=Cursor()).records_read == 0


def test_a_skipped_record_of_any_round_is_in_the_answer(pipeline):
    """The first round skips it; the last one does not know it."""
    skip = (OffsetRange(pipeline.source, 0, 1, 2),)
    record = pipeline.run(ranges=ROUNDS, skip_offsets=skip)
    (loss,) = record.details["accepted_loss"]
    assert (loss["start"], loss["end"]) == (1, 2)
    assert len(pipeline.output()) == 8
