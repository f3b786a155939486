"""Checks in addition to the output: the ledger's sums and tiling, and what a reader saw."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import OffsetRange
from airflow_eos_testing import agreement
from airflow_eos_testing.agreement import WatchingReader, ledger_complaints
from airflow_eos_testing.readers import Record
from tests.support.run_records import run_record


def run(number, start, end, written):
    receipt = PartitionReceipt(
        topic="out",
        partition=0,
        first_offset=start,
        last_offset=start + written - 1,
        records=written,
        size=10,
        last_sequence=written - 1,
        batches=1,
    )
    return run_record(
        run_key=cursor_run_key("p", str(number)),
        run_id=str(number),
        ranges=(OffsetRange("src", 0, start, end),),
        receipts=(receipt,),
    )


RUNS = [run(1, 0, 10, 10), run(2, 10, 15, 5)]


def test_ranges_that_tile_and_sums_that_fit_are_well():
    """Two runs, one after the other."""
    assert list(ledger_complaints(RUNS, 15)) == []


def test_a_sum_that_differs_from_the_output_is_told():
    """The ledger's counts are what the brokers acknowledged."""
    assert list(ledger_complaints(RUNS, 16)) == ["the ledger counts 15 written records, readers see 16"]


def test_a_range_that_was_read_twice_in_part_is_told():
    """No range has more records than offsets, whatever the sums are."""
    twice = replace(RUNS[1], records_read_by_partition={"src-0": RUNS[1].ranges[0].span + 1})
    (complaint,) = ledger_complaints([RUNS[0], twice], 15)
    assert "read 6 records of src-0 in a range of 5 offsets" in complaint


@pytest.mark.parametrize("start", [9, 11])
def test_runs_that_overlap_or_leave_a_gap_are_told(start):
    """A run begins where the last one ended."""
    (complaint,) = ledger_complaints([RUNS[0], run(2, start, 15, 5)], 15)
    assert f"begins src-0 at {start}" in complaint


def test_two_records_of_one_run_are_told():
    """One run key commits once."""
    again = replace(RUNS[1], ranges=(OffsetRange("src", 0, 15, 15),), receipts=())
    assert "2 records of run/p/2" in next(iter(ledger_complaints([*RUNS, again], 15)))


@pytest.fixture
def seen(monkeypatch):
    """A reader that saw two records."""
    records = [Record("out", 0, n, None, b"%d" % n, (), 0, 0) for n in (3, 4)]
    monkeypatch.setattr("airflow_eos_testing.readers.follow_topic", lambda *_: iter(records))
    return records


def test_a_reader_that_saw_what_is_there_is_content(seen):
    """It saw all records, at their offsets."""
    with WatchingReader({}, "out") as reader:
        pass
    assert list(reader.complaints(seen)) == []


def test_what_a_reader_never_saw_is_told(seen):
    """A reader that is stuck proves nothing."""
    with WatchingReader({}, "out") as reader:
        pass
    more = [Record("out", 0, n, None, b"%d" % n, (), 0, 0) for n in (8, 9)]
    assert list(reader.complaints([*seen, *more])) == [
        "a reader never saw 2 records, the first one at out-0 offset 8"
    ]


def test_a_reader_that_ends_early_says_why(monkeypatch):
    """Its thread cannot report an error in another way."""

    def fails(*_):
        raise OSError("gone")
        yield

    monkeypatch.setattr("airflow_eos_testing.readers.follow_topic", fails)
    with WatchingReader({}, "out") as reader:
        pass
    assert list(reader.complaints([])) == ["a reader of out ended early: OSError('gone')"]


def test_what_a_reader_saw_and_is_gone_is_told(seen):
    """Committed records never disappear or change."""
    with WatchingReader({}, "out", check=lambda record: "odd" if record.offset == 3 else None) as reader:
        pass
    complaints = list(reader.complaints(seen[:1]))
    assert complaints[0] == "odd"
    assert "out-0 offset 4" in complaints[1]
    assert len(complaints) == 2
    changed = [seen[0], replace(seen[1], value=b"5")]
    assert list(reader.complaints(changed)) == complaints


def test_a_record_that_is_delivered_twice_is_told(seen, monkeypatch):
    """A reader downstream would count it twice."""
    monkeypatch.setattr("airflow_eos_testing.readers.follow_topic", lambda *_: iter([*seen, seen[0]]))
    with WatchingReader({}, "out") as reader:
        pass
    assert list(reader.complaints(seen)) == ["offset 3 of out-0 was delivered twice"]


STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip


def test_states_that_are_finished():
    """In any other state some reader waits for the transaction."""
    transactions = [
        SimpleNamespace(transactional_id=f"{name}.{state}", transaction_state=state)
        for name in ("ours", "theirs")
        for state in STATES
    ]
    answer = SimpleNamespace(error_code=0, transaction_states=transactions)
    coordinator = SimpleNamespace(send=lambda _request, _node: answer, wait=lambda sent: sent)
    assert list(agreement._open_transactions(coordinator, 1, "ours.")) == [
        f"transaction ours.{state} is {state}"
        for state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
    ]
