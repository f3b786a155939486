from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError, DifferentWork
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ledger import LedgerEntry, LedgerValue, LedgerView
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import RunSpec
from airflow_eos.run.lookup import CommittedRuns
from tests.unit.airflow.fakes import a_record

RANGES = (OffsetRange("src", 0, 5, 15),)
ROUNDS = Cursor(max_records=10, until_caught_up=True)
DAY = Interval(
    dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc), dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)
)


class Ledger:
    """One partition: committed records, and those above the last stable offset at each look-up."""

    def __init__(self, *records: RunRecord) -> None:
        self.records = list(records)
        self.tails: list[tuple[LedgerEntry, ...]] = [()]
        self.looks = 0

    def partition_for(self, routing: str) -> int:
        assert routing == "pipe"
        return 3

    def view(self, partition: int, wanted: Any, prefixes: Any = ()) -> LedgerView:
        assert partition == 3
        self.looks += 1
        values = {
            keys.run_record_key(record.run_key): LedgerValue(record.to_json(), 3, 0)
            for record in self.records
        }
        committed = {k: v for k, v in values.items() if k in wanted or k.startswith(tuple(prefixes))}
        tail = self.tails.pop(0) if len(self.tails) > 1 else self.tails[0]
        return LedgerView(last_stable_offset=1, high_watermark=9, committed=committed, tail=tail)


def a_spec(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "kafka": {"bootstrap.servers": "broker:9092"},
        "pipeline": "pipe",
        "run_id": "r1",
        "source_topics": ("src",),
        "group_id": "g",
    }
    return RunSpec(**{**fields, **changes})


def made_by(spec: RunSpec, mode: str, **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "run_key": keys.run_key(spec),
        "pipeline": spec.pipeline,
        "mode": mode,
        "run_id": spec.run_id,
        "group_id": spec.group_id,
        "ranges": tuple(OffsetRange(name, 0, 5, 15) for name in spec.source_topics),
        "producer": ProducerIdentity(keys.transactional_id(spec), 1, 0),
    }
    return a_record(**{**fields, **changes})


def ask(spec: RunSpec, ledger: Ledger, **how: Any) -> Any:
    return CommittedRuns(spec, Authority(ledger, sleep=lambda _: None)).ask(**{"fenced": False, **how})  # type: ignore[arg-type]


OTHER_WORK = [
    ({}, "cursor", {"group_id": "other"}),
    ({}, "cursor", {"source_topics": ("other",)}),
    ({"ranges": Explicit(RANGES)}, "explicit", {"ranges": Cursor()}),
    ({"ranges": ROUNDS}, "cursor", {"group_id": "other"}),
    ({"source_partition": 0}, "cursor", {"group_id": "other"}),
]


@pytest.mark.parametrize(("recorded", "mode", "requested"), OTHER_WORK)
@pytest.mark.parametrize("clear_number", [0, 1])
@pytest.mark.parametrize("fenced", [False, True])
def test_record_of_other_work_under_the_same_name_is_no_answer(
    recorded: dict[str, Any], mode: str, requested: dict[str, Any], clear_number: int, fenced: bool
) -> None:
    """Two tasks of a Dag run share a pipeline: the second is refused, and not told that its work is done."""
    first = a_spec(**recorded)
    ledger = Ledger(made_by(first, mode))
    second = a_spec(**{**recorded, **requested}, clear_number=clear_number)
    assert ask(first, ledger, fenced=fenced).found
    with pytest.raises(ConfigurationError, match=r"other work with the same name.* own pipeline"):
        ask(second, ledger, fenced=fenced)


def test_round_of_other_work_is_not_continued() -> None:
    """Rounds that another task of the run committed do not count as this task's."""
    round_0 = a_spec(ranges=ROUNDS, round=0)
    ledger = Ledger(made_by(round_0, "cursor"))
    assert ask(round_0, ledger).found
    with pytest.raises(ConfigurationError, match="other work with the same name"):
        ask(a_spec(ranges=ROUNDS, round=0, group_id="other"), ledger)


def test_interval_that_an_earlier_run_did_under_another_group_stays_done() -> None:
    """Renaming the group does not undo an interval: an interval's group does not matter."""
    ledger = Ledger(made_by(a_spec(ranges=DAY), "interval"))
    assert ask(a_spec(ranges=DAY, run_id="backfill", group_id="renamed"), ledger).found


PARTITION = PartitionInterval("2026-11-20", DAY)


@pytest.mark.parametrize("ranges", [DAY, PARTITION], ids=["interval", "partition"])
@pytest.mark.parametrize("fenced", [False, True])
def test_what_a_task_wrote_before_it_was_mapped_is_not_written_again(ranges: Any, fenced: bool) -> None:
    """The same for what its instances wrote, if it is no longer mapped: their keys differ."""
    whole, mapped = a_spec(ranges=ranges), a_spec(ranges=ranges, source_partition=0)
    for before, now in ((whole, mapped), (mapped, whole)):
        ledger = Ledger(made_by(before, "interval"))
        with pytest.raises(DifferentWork, match="would write the same records again"):
            ask(now, ledger, fenced=fenced)
        accepting = replace(now, on_committed="accept")
        if now is mapped:  # the run had read its partition, too
            assert ask(accepting, ledger, fenced=fenced).run_key == keys.run_key(whole)
        else:
            with pytest.raises(DifferentWork):
                ask(accepting, ledger, fenced=fenced)
    assert ask(a_spec(ranges=ranges, source_partition=1), Ledger(made_by(mapped, "interval"))) is None


def staged_by_seven(spec: RunSpec) -> LedgerEntry:
    """The run's record, written by producer 7 and undecided."""
    record = made_by(spec, "cursor")
    key = keys.run_record_key(record.run_key)
    return LedgerEntry(
        offset=5, producer_id=7, kind="record", key=key, value=LedgerValue(record.to_json(), 3, 5)
    )


def test_patient_look_up_waits_for_a_commit_that_is_being_written() -> None:
    """Between record and marker nothing is decided; a caller that asks once must not take that for a no."""
    spec = a_spec()
    staged = staged_by_seven(spec)
    ended = LedgerEntry(offset=6, producer_id=7, kind="commit")
    ledger = Ledger()
    ledger.tails = [(staged,), (staged,), (staged,), (staged, ended)]
    assert ask(spec, ledger) is None
    assert ask(spec, ledger, wait=True).found
    assert ledger.looks == 4


def test_record_of_an_aborted_transaction_is_no_answer() -> None:
    """Above the last stable offset, only the marker of the record's own producer decides."""
    spec = a_spec()
    staged = staged_by_seven(spec)
    others = LedgerEntry(offset=6, producer_id=8, kind="commit")
    ended = LedgerEntry(offset=7, producer_id=7, kind="abort")
    ledger = Ledger()
    ledger.tails = [(staged, others, ended)]
    assert ask(spec, ledger, wait=True) is None
    assert ask(spec, ledger) is None


def test_a_reprocessing_takes_the_number_behind_the_latest() -> None:
    """The record of an earlier one may have been dismissed, but its number stays taken."""
    spec = a_spec()
    first = made_by(spec, "cursor")
    second = replace(
        first,
        run_key=keys.reprocess_key(first.run_key, 2),
        clear_number=2,
        producer=ProducerIdentity(keys.reprocess_transactional_id(spec, first.run_key), 1, 0),
    )
    cleared = a_spec(clear_number=3, on_committed="reprocess")
    answer = ask(cleared, Ledger(first, second))
    assert answer.key == keys.reprocess_key(first.run_key, 3)
