"""Which offsets the runs of a pipeline have read, and the sentence about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.lanes import Kind, LogBounds, Reset
from airflow_eos.coverage.offset_set import Spans
from airflow_eos.ledger.records.reset import ResetRecord
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from tests.support.run_records import run_record

A, B = TopicPartition("src", 0), TopicPartition("src", 1)
IDS = {"src": "id"}


def run(number: int, *ranges: tuple[int, int, int], **changes) -> RunRecord:
    """A run over ranges of ``src``, each as partition, start and end."""
    fields = {
        "run_key": f"run/p/{number}",
        "run_id": str(number),
        "ranges": tuple(OffsetRange("src", *bounds) for bounds in ranges),
        "producer": ProducerIdentity("airflow-eos.cursor.g", 1, number),
        "staged_at": f"2026-01-01T00:00:{number:02}Z",
        "details": {"topic_ids": IDS},
    }
    return run_record(**{**fields, **changes})


def cover(*records: RunRecord, start: int = 0, stable: int = 100, **options) -> Coverage:
    return coverage_of(records, {A: LogBounds(start, stable)}, IDS, **options)


def kinds(coverage: Coverage) -> list[tuple[int, int, Kind]]:
    return [(segment.start, segment.end, segment.kind) for segment in coverage.lanes[0].segments]


def test_runs_that_tile_say_so_in_one_sentence():
    """Each offset by one run; later ones are not read yet."""
    coverage = cover(run(1, (0, 0, 40)), run(2, (0, 40, 90)))
    assert coverage.sentence == "2 runs tile offsets [0, 90) of src-0 without gap or overlap"
    assert kinds(coverage) == [(0, 40, Kind.READ), (40, 90, Kind.READ), (90, 100, Kind.UNREAD)]
    assert coverage.is_whole
    assert coverage.unread == 10


def test_each_partition_has_its_own_range():
    """For many partitions the offsets are counted: a single range would be true of none."""
    two = cover(run(1, (0, 3, 40), (1, 1_438, 2_162)))
    assert two.sentence == (
        "1 run tiles offsets [3, 40) of src-0 and [1,438, 2,162) of src-1 without gap or overlap"
    )
    many = cover(run(1, *((partition, partition, 10) for partition in range(4))))
    assert many.sentence == "1 run tiles 34 offsets of 4 partitions without gap or overlap"


def test_a_gap_is_named_with_its_place():
    """The coverage is no longer whole."""
    coverage = cover(run(1, (0, 0, 1200)), run(3, (0, 1300, 2000)), stable=2000)
    assert not coverage.is_whole
    assert coverage.sentence == (
        "1 gap in what 2 runs read: offsets [1,200, 1,300) of src-0 were read by no run"
    )


def test_an_overlap_is_named_with_its_place():
    """Two runs that read one offset."""
    coverage = cover(run(1, (0, 0, 40)), run(2, (0, 39, 90)))
    assert coverage.sentence == "1 overlap in what 2 runs read: offset 39 of src-0 was read by 2 runs"
    assert coverage.problems[0][1].runs == ("run/p/1", "run/p/2")


def test_what_retention_took_before_anybody_read_it_is_said():
    """It is a gap that can no longer be closed."""
    coverage = cover(run(1, (0, 0, 10)), run(2, (0, 30, 90)), start=50)
    assert coverage.sentence.endswith("offsets [10, 30) of src-0 were read by no run, and are deleted")
    assert [segment.deleted for segment in coverage.lanes[0].segments] == [True, True, True, False, False]


def test_runs_that_read_behind_the_end_of_the_log_are_found():
    """The log was truncated."""
    coverage = cover(run(1, (0, 0, 90)), stable=60)
    assert [kind for _, _, kind in kinds(coverage)] == [Kind.READ, Kind.BEYOND]
    assert coverage.sentence.endswith("offsets [60, 90) of src-0 were read, and the log ends at 60 now")


def test_a_reprocessing_is_neither_gap_nor_overlap():
    """It is drawn above what it reads again."""
    again = run(3, (0, 10, 30), run_key="run/p/1#1", mode="reprocess")
    coverage = cover(run(1, (0, 0, 40)), run(2, (0, 40, 90)), again)
    assert coverage.is_whole
    assert [(segment.start, segment.end, segment.runs) for segment in coverage.lanes[0].again] == [
        (10, 30, ("run/p/1#1",))
    ]
    assert coverage.sentence == (
        "2 runs tile offsets [0, 90) of src-0 without gap or overlap; 1 run read some of it again, on purpose"
    )


def test_given_ranges_count_where_nobody_else_has_read():
    """A manual backfill fills the gap that it was made for."""
    given = run(3, (0, 30, 60), mode="explicit", details={"topic_ids": IDS, "work": {"mode": "explicit"}})
    coverage = cover(run(1, (0, 0, 40)), run(2, (0, 50, 90)), given)
    assert coverage.is_whole
    assert [(segment.start, segment.end) for segment in coverage.lanes[0].again] == [(30, 40), (50, 60)]
    advancing = replace(given, details={"topic_ids": IDS, "work": {"mode": "explicit", "advance": True}})
    assert not cover(run(1, (0, 0, 40)), run(2, (0, 50, 90)), advancing).is_whole


@pytest.mark.parametrize(("to", "again", "left_out"), [(20, [(20, 40)], []), (60, [], [(40, 60)])])
def test_a_reset_explains_what_is_read_twice_or_never(to, again, left_out):
    """By the runs after it."""
    reset = Reset("2026-01-01T00:00:01.500Z", {A: (40, to)})
    coverage = cover(run(1, (0, 0, 40)), run(2, (0, to, 90)), resets=[reset])
    assert coverage.is_whole
    assert [(segment.start, segment.end) for segment in coverage.lanes[0].again] == again
    assert [(s, e) for s, e, kind in kinds(coverage) if kind is Kind.LEFT_OUT] == left_out


def test_a_reset_explains_nothing_that_came_before_it():
    """An earlier overlap stays one."""
    reset = Reset("2026-01-01T00:00:59Z", {A: (40, 20)})
    assert not cover(run(1, (0, 0, 40)), run(2, (0, 20, 90)), resets=[reset]).is_whole


def test_a_reset_is_read_from_the_ledger():
    """By the committed or the recorded position, whichever is known."""
    changes = [["a-b-3", 5, 7, 2], ["src-0", None, 4, 1], ["src-1", None, None, 1]]
    value = json.dumps({"v": 1, "group": "g", "pipeline": "p", "changes": changes})
    reset = Reset.of("then", ResetRecord.from_json(value))
    assert reset.changes == {TopicPartition("a-b", 3): (7, 2), A: (4, 1)}


def test_what_a_run_was_told_to_leave_out_is_no_gap():
    """The run's record has it."""
    loss = [{"topic": "src", "partition": 0, "start": 20, "end": 30, "skipped": True}, {"topic": "src"}, 7]
    skipping = run(1, (0, 0, 20), (0, 30, 90), details={"topic_ids": IDS, "accepted_loss": loss})
    coverage = cover(skipping)
    assert coverage.is_whole
    assert coverage.sentence.endswith("; 1 range left out on purpose")


def test_a_topic_that_was_made_again_has_lanes_of_its_own():
    """Its offsets begin at 0 again: this is not an overlap."""
    coverage = cover(run(1, (0, 0, 40), details={"topic_ids": {"src": "old"}}), run(2, (0, 0, 30)))
    assert coverage.is_whole
    assert {lane.key.topic_id: lane.bounds for lane in coverage.lanes} == {
        "old": None,
        "id": LogBounds(0, 100),
    }


def test_records_that_name_no_topic_id_read_the_topic_that_is_there():
    """Records of older versions name none."""
    assert len(cover(run(1, (0, 0, 40), details={}), run(2, (0, 40, 50))).lanes) == 1


@pytest.mark.parametrize(
    ("records", "sentence"),
    [((), "No run is committed"), ((run(1, (0, 7, 7)),), "1 run had nothing to read")],
)
def test_nothing_read_is_nothing_wrong(records, sentence):
    """The pipeline has just begun."""
    coverage = cover(*records)
    assert (coverage.sentence, coverage.is_whole) == (sentence, True)
    assert kinds(coverage) == [(0, 100, Kind.UNREAD)]


# -- properties -------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)
anything = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8)


def tiles(widths, begin=0):
    """Runs that tile one partition, in any order."""
    at, records = begin, []
    for number, width in enumerate(widths, 1):
        records.append(run(number, (0, at, at + width)))
        at += width
    return records


@given(sizes, st.randoms(use_true_random=False), st.integers(0, 5))
def test_tiles_are_whole_in_any_order(widths, random, begin):
    """Intervals may be run in any order."""
    records = tiles(widths, begin)
    random.shuffle(records)
    coverage = cover(*records, start=begin, stable=begin + sum(widths))
    assert coverage.is_whole
    assert f"offsets [{begin}, {begin + sum(widths)}) of src-0 without" in coverage.sentence


@given(st.lists(st.integers(1, 9), min_size=3, max_size=12), st.data())
def test_a_run_taken_away_is_exactly_the_gap(widths, data):
    """Neither more nor less."""
    records = tiles(widths)
    dropped = records.pop(data.draw(st.integers(1, len(records) - 2)))
    (problem,) = cover(*records, stable=sum(widths)).problems
    assert problem[1].kind is Kind.GAP
    assert (problem[1].start, problem[1].end) == (dropped.ranges[0].start, dropped.ranges[0].end)


@given(sizes, st.data())
def test_a_run_that_stands_twice_is_exactly_the_overlap(widths, data):
    """The second one has another key."""
    records = tiles(widths)
    twice = data.draw(st.sampled_from(records))
    (problem,) = cover(*records, replace(twice, run_key="run/p/again"), stable=sum(widths)).problems
    assert problem[1].kind is Kind.OVERLAP
    assert (problem[1].start, problem[1].end) == (twice.ranges[0].start, twice.ranges[0].end)


@given(anything, st.integers(0, 20), st.integers(0, 25))
def test_every_offset_has_the_kind_that_counting_gives_it(spans, start, length):
    """Segments include each offset from the log's start to its end exactly once."""
    stable = start + length
    records = [run(number, (0, at, at + width)) for number, (at, width) in enumerate(spans, 1)]
    coverage = cover(*records, start=start, stable=stable)
    reads = [range(at, at + width) for at, width in spans if width]
    first, last = (
        min((read[0] for read in reads), default=None),
        max((read[-1] for read in reads), default=None),
    )
    expected = {}
    for offset in range(60):
        count = sum(offset in read for read in reads)
        if first is not None and first <= offset <= last:
            kind = (Kind.GAP, Kind.READ)[count] if count < 2 else Kind.OVERLAP
            expected[offset] = Kind.BEYOND if count and offset >= stable else kind
        elif start <= offset < stable:
            expected[offset] = Kind.BEFORE if first is not None and offset < first else Kind.UNREAD
    seen = [
        (offset, segment.kind)
        for segment in coverage.lanes[0].segments
        for offset in range(segment.start, segment.end)
    ]
    hole = [(offset, kind) for offset, kind in seen if offset not in expected]
    assert all(kind is Kind.BEYOND for _, kind in hole)  # between the log's end and a later first range
    assert [pair for pair in seen if pair not in hole] == sorted(expected.items())


@given(anything, st.integers(0, 8))
def test_forgetting_records_changes_no_verdict(spans, kept):
    """Ranges of older runs are merged; only their keys are lost."""
    records = [run(number, (0, at, at + width)) for number, (at, width) in enumerate(spans, 1)]
    earlier = Earlier()
    for record in records[:kept]:
        earlier.add(record)
    whole, folded = cover(*records), cover(*records[kept:], earlier=earlier)
    assert folded.runs == whole.runs

    def offsets(coverage):
        pairs = [(o, s.kind) for s in coverage.lanes[0].segments for o in range(s.start, s.end)]
        return sorted(pairs, key=lambda pair: pair[0])

    assert offsets(folded) == offsets(whole)


span = st.tuples(st.integers(0, 30), st.integers(0, 30))


@given(st.lists(span), span)
def test_spans_are_sets_of_offsets(added, window):
    """They are disjoint and sorted, and lack no offset inside or outside of a range."""
    spans, offsets = Spans(), set()
    for start, end in added:
        spans.add(start, end)
        offsets |= set(range(start, end))
    flat = [at for span in spans for at in span]
    assert flat == sorted(set(flat))
    assert {o for span in spans for o in range(*span)} == offsets
    wanted = set(range(*window))
    assert {o for span in spans.within(*window) for o in range(*span)} == wanted & offsets
    assert {o for span in spans.outside(*window) for o in range(*span)} == wanted - offsets
