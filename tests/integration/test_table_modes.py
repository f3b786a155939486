"""Each range mode with a table as the sink, on a real broker: deaths on both sides of the table's commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.run.states import State
from tests.support.cases import rest_in_chaos
from tests.support.tables import TablePipeline

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
RECORDS = {0: (1, 6, 11), 1: (2, 7)}
"""Minutes of the records, by partition."""
ALL = sorted(f"p{partition}m{minute}" for partition, minutes in RECORDS.items() for minute in minutes)


class Died(BaseException):
    """The process dies: the run's own code does not handle it as an error."""


def between(start: int, end: int) -> Interval:
    return Interval(DAY + dt.timedelta(minutes=start), DAY + dt.timedelta(minutes=end))


@dataclass(frozen=True)
class Mode:
    """Runs of one mode.

    :param runs: run id and changes of its specification, given the pipeline.
    :param expected: the table's rows at the end.
    :param before: a run that is committed before the others begin.
    :param last_first: retry the last run first; the ranges of a moving cursor have an order.
    :param dies: whether its runs reach the table at all.
    :param snapshots: number of snapshots with the rows; None: one for each run.
    """

    runs: Callable[[TablePipeline], Sequence[tuple[str, Mapping[str, Any]]]]
    expected: Sequence[str] = field(default_factory=lambda: ALL)
    before: str | None = None
    last_first: bool = True
    dies: bool = True
    snapshots: int | None = None


INTERVALS = [
    ("i0", {"ranges": between(0, 5)}),
    ("i5", {"ranges": between(5, 10)}),
    ("i10", {"ranges": between(10, 15)}),
]


def given(pipeline: TablePipeline, *, advance: bool = False) -> Sequence[tuple[str, Mapping[str, Any]]]:
    parts = ((0, 0, 2), (0, 2, 3), (1, 0, 2))
    return [
        (f"e{n}", {"ranges": Explicit((OffsetRange(pipeline.source, *part),), advance=advance)})
        for n, part in enumerate(parts)
    ]


def by_key(_: TablePipeline) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [(run_id, {"ranges": PartitionInterval(run_id, run["ranges"])}) for run_id, run in INTERVALS]


def mapped(ranges: Any) -> Callable[[TablePipeline], Sequence[tuple[str, Mapping[str, Any]]]]:
    return lambda _: [(f"m{n}", {"ranges": ranges, "source_partition": n}) for n in RECORDS]


AGAIN = {"clear_number": 1, "on_committed": "reprocess"}

MODES = {
    "cursor": Mode(lambda _: [("c1", {}), ("c2", {})], snapshots=1),
    "rounds": Mode(lambda _: [("r1", {"ranges": Cursor(max_records=2, until_caught_up=True)})], snapshots=3),
    "mapped cursor": Mode(mapped(Cursor())),
    "mapped rounds": Mode(mapped(Cursor(max_records=1, until_caught_up=True)), snapshots=5),
    "mapped interval": Mode(mapped(between(0, 15))),
    "data interval": Mode(lambda _: INTERVALS),
    "backfill, the newest first": Mode(lambda _: INTERVALS[::-1]),
    "partition": Mode(by_key),
    "given": Mode(given),
    "given, moving the cursor": Mode(lambda pipeline: given(pipeline, advance=True), last_first=False),
    "clear": Mode(lambda _: [("c1", {"clear_number": 1})], before="c1", dies=False, snapshots=1),
    "reprocessing": Mode(lambda _: [("c1", AGAIN)], sorted([*ALL, *ALL]), before="c1", snapshots=2),
}


@pytest.fixture
def pipeline(embedded_kafka, tmp_path):
    filled = TablePipeline(embedded_kafka, tmp_path)
    for partition, minutes in RECORDS.items():
        for minute in minutes:
            at = int((DAY + dt.timedelta(minutes=minute)).timestamp() * 1000)
            filled.publish([f"p{partition}m{minute}"], partition=partition, timestamp=at)
    return filled


def die_at(state: State) -> Callable[[State], None]:
    def entered(now: State) -> None:
        if now is state:
            raise Died(state)

    return entered


# After the commit in each mode; before it in one mode of each kind.
KINDS = ("cursor", "rounds", "data interval", "given", "clear", "reprocessing")


@pytest.mark.parametrize(
    ("mode", "state"),
    rest_in_chaos(
        len(MODES) + len(KINDS),
        [
            *((mode, State.PUBLISHED) for mode in MODES),
            *((mode, State.INTENT) for mode in (*KINDS, *(mode for mode in MODES if mode not in KINDS))),
        ],
    ),
    ids=lambda value: value.value if isinstance(value, State) else value,
)
def test_each_record_is_in_the_table_once(pipeline, mode, state):
    """All runs die around the table's commit, each with an INTENT; then each is retried."""
    mode = MODES[mode]
    if mode.before is not None:
        pipeline.run(mode.before)
    runs = list(mode.runs(pipeline))
    for run_id, changes in runs:
        with pytest.raises(Died) if mode.dies else nullcontext():
            pipeline.run(run_id, on_state=die_at(state), **changes)
    for run_id, changes in runs[::-1] if mode.last_first else runs:
        pipeline.run(run_id, try_number=2, **changes)

    assert pipeline.values() == list(mode.expected)
    assert all(pipeline.run(run_id, try_number=3, **changes).found for run_id, changes in runs)
    assert len(appends(pipeline)) == (mode.snapshots or len(runs))


def appends(pipeline: TablePipeline) -> list[Any]:
    """Return the table's snapshots that have rows."""
    summaries = [snapshot.summary.additional_properties for snapshot in pipeline.table.snapshots()]
    return [summary for summary in summaries if "eos.barred" not in summary]


def test_the_answer_of_a_run_in_rounds_has_the_rows_of_all_rounds(embedded_kafka, tmp_path):
    """So do its metrics and asset events, also if it is found again."""
    pipeline = TablePipeline(embedded_kafka, tmp_path, partitions=1)
    pipeline.publish([f"r{n}" for n in range(5)])
    rounds = Cursor(max_records=2, until_caught_up=True)
    for clear in (0, 1):
        record = pipeline.run("r1", ranges=rounds, clear_number=clear)
        assert (record.records_read, record.records_written, record.details["rounds"]) == (5, 5, 3)
        assert (record.details["table"]["rows"], record.details["table"]["files"]) == (5, 3)
        assert record.details["table"]["snapshot"] == pipeline.table.current_snapshot().snapshot_id
