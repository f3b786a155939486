"""Coverage with old runs merged equals the coverage of all runs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_eos.coverage.coverage import coverage_of
from airflow_eos.coverage.folded import Earlier, folded
from airflow_eos.coverage.lanes import LogBounds, Reset
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from tests.support.run_records import run_record

BOUNDS = {TopicPartition("src", number): LogBounds(2, 40) for number in range(2)}
IDS = {"src": "id"}
FIRST = run_record(details={"topic_ids": IDS})
reads = st.tuples(
    st.integers(0, 1), st.integers(0, 30), st.integers(0, 15), st.sampled_from(["", "#1", "given"])
)


def run(number: int, partition: int, start: int, length: int, kind: str) -> RunRecord:
    return replace(
        FIRST,
        run_key=f"run/p/{number}{kind if kind == '#1' else ''}",
        run_id=str(number),
        mode={"": "cursor", "#1": "reprocess", "given": "explicit"}[kind],
        ranges=(OffsetRange("src", partition, start, start + length),),
        staged_at=f"2026-01-01T00:00:{number:02}Z",
    )


def offsets(coverage):
    """Of each lane, what happened to each offset."""
    return {
        lane.key: (
            sorted((at, it.kind, it.deleted) for it in lane.segments for at in range(it.start, it.end)),
            {at for it in lane.again for at in range(it.start, it.end)},
        )
        for lane in coverage.lanes
    }


EMPTY = (0, 0, 0, "")


@example([*[EMPTY] * 4, (0, 0, 6, "#1"), (0, 0, 6, ""), EMPTY], 1, True)  # given, then read by the cursor
@example([*[EMPTY] * 5, (0, 5, 3, ""), (0, 6, 6, ""), (0, 10, 4, ""), EMPTY], 1, True)  # each reads on
@given(st.lists(reads, max_size=14), st.integers(1, 5), st.booleans())
def test_merged_coverage_is_coverage_of_all_runs(history, one_by_one, is_reset):
    """After each run: the verdict and the offsets, but not the names of runs far back."""
    resets = [Reset("2026-01-01T00:00:05Z", {TopicPartition("src", 0): (20, 5)})] if is_reset else []
    records = [run(number, *read) for number, read in enumerate(history)]
    for number in range(1, len(records) + 1):
        drawn, others = folded(Earlier(), records[:number], one_by_one=one_by_one)
        merged = coverage_of(drawn, BOUNDS, IDS, resets=resets, earlier=others)
        whole = coverage_of(records[:number], BOUNDS, IDS, resets=resets)
        assert merged.runs == whole.runs == number
        assert merged.is_whole == whole.is_whole
        assert offsets(merged) == offsets(whole)
        assert not whole.is_whole or merged.sentence == whole.sentence


@given(st.lists(reads, min_size=1, max_size=14), st.integers(1, 5), st.integers(1, 20))
def test_runs_that_are_forgotten_stay_counted(history, one_by_one, runs_kept):
    """In the order of their commits, as a history forgets them."""
    records = [run(number, *read) for number, read in enumerate(history)]
    earlier = Earlier()
    for record in records[:-runs_kept]:
        earlier.add(record)
    drawn, others = folded(earlier, records[-runs_kept:], one_by_one=one_by_one)
    merged = coverage_of(drawn, BOUNDS, IDS, earlier=others)
    whole = coverage_of(records[-runs_kept:], BOUNDS, IDS, earlier=earlier)
    assert merged.runs == whole.runs == len(records)
    assert merged.is_whole == whole.is_whole
    assert offsets(merged) == offsets(whole)


def test_plain_runs_behind_the_newest_give_up_their_segments():
    """However many there were, the drawing stays the same; a run that read again keeps its name."""
    records = [run(number, 0, number, 1, "") for number in range(30)]
    again = run(31, 0, 2, 3, "#1")
    drawn, others = folded(Earlier(), [*records[:10], again, *records[10:]], one_by_one=3)
    assert len(drawn) == 4
    coverage = coverage_of(drawn, BOUNDS, IDS, earlier=others)
    assert coverage.sentence == (
        "30 runs tile offsets [0, 30) of src-0 without gap or overlap; 1 run read some of it again, on "
        "purpose"
    )
    named = {name for it in coverage.lanes[0].again for name in it.runs}
    assert named == {again.run_key}
