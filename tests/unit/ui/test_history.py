"""The memory that the runs of a ledger take is bounded, whatever the ledger has. No broker is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.coverage.coverage import coverage_of
from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from tests.support.hand_reader import RUN, HandReader, history_by_hand


@pytest.fixture
def make_history():
    """A history of a few runs, and the reader that it uses."""

    def make(**bounds):
        reader = HandReader()
        return history_by_hand(reader, **bounds), reader

    return make


def test_of_each_pipeline_the_newest_runs_are_kept(make_history):
    """Of older runs only the ranges are kept."""
    history, reader = make_history(runs_kept=3)
    for number in range(10):
        reader.put_run(number)
    history.refresh()
    kept = history.pipelines["p"]
    assert [record.run_id for record in kept.runs.values()] == ["7", "8", "9"]
    assert kept.earlier.runs == 7
    assert [list(spans) for spans in kept.earlier.read.values()] == [[(0, 7)]]


def test_together_they_are_bounded_too(make_history):
    """The pipeline with the most records drops its oldest."""
    history, reader = make_history(characters_kept=3_000)
    for number in range(20):
        reader.put_run(number, "large")
    reader.put_run(0, "small")
    history.refresh()
    sizes = [pipeline.characters for pipeline in history.pipelines.values()]
    assert 2_000 < sum(sizes) <= 3_000
    assert sum(sizes) == history._characters
    assert len(history.pipelines["small"].runs) == 1
    assert len(history.pipelines["large"].runs) + history.pipelines["large"].earlier.runs == 20


def test_a_dismissed_record_goes(make_history):
    """With its last record, the pipeline goes, too."""
    history, reader = make_history()
    key = reader.put_run(1)
    history.refresh()
    reader.put(keys.run_record_key(key), None)
    history.refresh()
    assert history.pipelines == {}
    assert (history._characters, reader.starts) == (0, 0)


def test_a_dismissed_record_that_was_forgotten_costs_one_more_reading(make_history):
    """Its ranges cannot be separated from the others': everything is read again, once."""
    history, reader = make_history(runs_kept=2)
    run_keys = [reader.put_run(number) for number in range(6)]
    history.refresh()
    reader.put(keys.run_record_key(run_keys[1]), None)
    history.refresh()
    kept = history.pipelines["p"]
    assert [list(spans) for spans in kept.earlier.read.values()] == [[(0, 1), (2, 4)]]
    assert reader.starts == 1
    history.refresh()
    assert reader.starts == 1


@pytest.mark.parametrize("value", ["no JSON", "{}", '{"v": 99}'])
def test_what_cannot_be_read_is_said_and_left_out(make_history, value):
    """The other records are shown."""
    history, reader = make_history()
    reader.put("run:run/p/bad", value)
    reader.put("reset:g/then", value)
    reader.put_run(1)
    history.refresh()
    assert len(history.unreadable) == 2
    assert len(history.pipelines["p"].runs) == 1


def test_a_record_under_another_runs_key_is_left_out(make_history):
    """Otherwise it would count for work that it did not do."""
    history, reader = make_history()
    reader.put("run:run/p/2", replace(RUN, run_key="run/p/1").to_json())
    history.refresh()
    assert history.pipelines == {}
    assert "is of another run" in history.unreadable[0]


def test_resets_are_taken_with_their_moment(make_history):
    """Whichever comes first, the reset or the pipeline's runs."""
    history, reader = make_history()
    key = keys.reset_key("g", "2026-01-01T00:00:00.500Z")
    reader.put(key, '{"v":1,"group":"g","pipeline":"p","changes":[["t-0",5,5,2]]}')
    reader.put_run(1)
    history.refresh()
    (reset,) = history.pipelines["p"].resets
    assert reset.moment == "2026-01-01T00:00:00.500Z"
    assert {str(partition): change for partition, change in reset.changes.items()} == {"t-0": (5, 2)}


def test_the_summary_says_what_the_records_say(make_history):
    """After each change: a new run, one dropped from memory, one dismissed."""
    history, reader = make_history(runs_kept=3)
    bounds, ids = {TopicPartition("t", 0): LogBounds(0, 20)}, {"t": "id"}

    def sentences():
        history.refresh()
        kept = history.pipelines["p"]
        whole = coverage_of(kept.runs.values(), bounds, ids, earlier=kept.earlier)
        return whole.sentence, coverage_of((), bounds, ids, earlier=kept.summary).sentence

    run_keys = [reader.put_run(number) for number in range(3)]
    assert sentences() == ("3 runs tile offsets [0, 3) of t-0 without gap or overlap",) * 2
    reader.put_run(3)
    assert sentences() == ("4 runs tile offsets [0, 4) of t-0 without gap or overlap",) * 2
    reader.put(keys.run_record_key(run_keys[2]), None)
    assert sentences() == ("1 gap in what 3 runs read: offset 2 of t-0 was read by no run",) * 2
    again = replace(RUN, run_key=f"{run_keys[1]}#1", mode="reprocess", ranges=(OffsetRange("t", 0, 1, 2),))
    reader.put(keys.run_record_key(again.run_key), again.to_json())
    reader.put_run(2)
    whole = "4 runs tile offsets [0, 4) of t-0 without gap or overlap"
    assert sentences() == (f"{whole}; 1 run read some of it again, on purpose",) * 2


def test_a_refresh_changes_nothing_that_a_question_looks_at(make_history):
    """Runs, resets, dismissals and the memory limit change a copy; the view that a query has stays."""
    history, reader = make_history(runs_kept=3)
    bounds, ids = {TopicPartition("t", 0): LogBounds(0, 20)}, {"t": "id"}
    keys_of = [reader.put_run(number) for number in range(3)]
    reader.put_run(0, "other")
    history.refresh()
    before = history.as_of_now(history.ask_brokers, ())
    shown = before.pipelines["p"]

    def sentence_of(pipeline):
        records, others = pipeline.copy().drawn  # computed again
        return coverage_of(records, bounds, ids, earlier=others).sentence

    sentence = sentence_of(shown)
    reader.put_run(3)
    reader.put(keys.run_record_key(keys_of[1]), None)
    reader.put(
        keys.reset_key("g", "2026-01-01T00:00:00.500Z"), '{"v":1,"group":"g","pipeline":"p","changes":[]}'
    )
    reader.put_run(0, "new")
    reader.put("run:x", "no record")
    history.refresh()
    assert [record.run_id for record in shown.runs.values()] == ["0", "1", "2"]
    assert (sentence_of(shown), shown.copy().summary.runs) == (sentence, 3)
    assert (shown.resets, shown.earlier.runs, shown.characters) == ((), 0, sum(shown.sizes.values()))
    assert (list(before.pipelines), list(before.unreadable)) == (["p", "other"], [])
    now = history.pipelines["p"]
    assert [record.run_id for record in now.runs.values()] == ["2", "3"]
    assert (len(now.resets), len(history.unreadable), sorted(history.pipelines)) == (
        1,
        1,
        ["new", "other", "p"],
    )
    assert history.pipelines["other"] is before.pipelines["other"]


def test_what_is_drawn_after_a_refresh_is_drawn_of_all_runs(make_history):
    """Run by run, with a query between any two of them."""
    history, reader = make_history(runs_kept=4)
    bounds, ids = {TopicPartition("t", 0): LogBounds(0, 20)}, {"t": "id"}
    for number in range(10):
        reader.put_run(number)
        history.refresh()
        pipeline = history.pipelines["p"]
        records, others = pipeline.drawn
        coverage = coverage_of(records, bounds, ids, earlier=others)
        assert (coverage.runs, coverage.is_whole, pipeline.summary.runs) == (number + 1, True, number + 1)
