"""Where a cursor's next ranges start, by what the ledger, the group and the logs say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.exceptions import (
    CursorMoved,
    GroupOwned,
    LedgerReplaced,
    NoStartingPoint,
    RangeUndecided,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import CommittedOffset, LogBounds, TopicDescription
from airflow_eos.model.ledger import LedgerId, LedgerValue
from airflow_eos.model.ranges import Cursor, TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.run.cursor_position import CursorPosition, CursorReader

KNOWN, ADDED = TopicPartition("src", 0), TopicPartition("src", 1)
TOPICS = {"src": TopicDescription("src", "id", {0: 1, 1: 1})}
LOGS = LogBounds({KNOWN: 2, ADDED: 0}, {KNOWN: 9, ADDED: 4}, {KNOWN: 12, ADDED: 6})
RECORD = CursorRecord(
    group="g",
    pipeline="pipe",
    prefix="eos",
    layout="whole",
    ends={KNOWN: 5},
    topic_ids={"src": "id"},
    partition_counts={"src": 1},
    run_key="run/pipe/r1",
    ledger_topic_id="ledger",
    ledger_partitions=1,
)
SPEC = RunSpec(
    kafka={"bootstrap.servers": "h:1"},
    pipeline="pipe",
    run_id="r2",
    source_topics=("src",),
    sink_topic="out",
    group_id="g",
    prefix="eos",
    origin="here",
)


def starts(
    record: CursorRecord | None, committed: dict[TopicPartition, int], start: Any = "earliest"
) -> tuple[list[int], tuple[str, ...]]:
    """Return the starts of both partitions, and the notes; no record of the ledger is unsigned."""
    authority: Any = SimpleNamespace(unsigned=lambda *_, **__: [])
    cluster: Any = SimpleNamespace(describe_producers=lambda tps: {tp: [] for tp in tps})
    reader = CursorReader(SPEC, cluster, authority, LedgerId("ledger", 1, "test"))
    offsets = {tp: CommittedOffset(offset) for tp, offset in committed.items()}
    by_partition, notes = reader.starts(
        TOPICS, CursorPosition(offsets, record, record), LOGS, Cursor(start=start)
    )
    return [by_partition[tp] for tp in (KNOWN, ADDED)], notes


@pytest.mark.parametrize("policy", ["earliest", "latest", "fail"])
def test_a_cursor_reads_on_and_an_added_partition_from_its_beginning(policy: str) -> None:
    """Whatever the policy for a group that never read is."""
    assert starts(RECORD, {KNOWN: 5}, policy)[0] == [5, 0]
    assert starts(RECORD, {}, policy)[0] == [5, 0]


def test_a_group_without_a_cursor_starts_at_its_offsets_or_as_it_is_told() -> None:
    """The end is that of what is decided."""
    assert starts(None, {KNOWN: 7, ADDED: 3}, "fail")[0] == [7, 3]
    assert starts(None, {KNOWN: 7}, "earliest")[0] == [7, 0]
    assert starts(None, {KNOWN: 7}, "latest")[0] == [7, 4]
    with pytest.raises(NoStartingPoint, match="src-1"):
        starts(None, {KNOWN: 7}, "fail")


def test_an_offset_of_an_added_partition_is_of_somebody_else() -> None:
    """No run of the cursor has read it: from 0 on its records may come twice."""
    with pytest.raises(CursorMoved, match="src-1: offset 3 was committed for a partition the cursor does"):
        starts(RECORD, {KNOWN: 5, ADDED: 3})


@pytest.mark.parametrize("offset", [4, 6])
def test_offsets_that_differ_are_refused(offset: int) -> None:
    """Behind the cursor and before it."""
    with pytest.raises(CursorMoved, match=f"committed offset is {offset}, the ledger's cursor 5"):
        starts(RECORD, {KNOWN: offset})


def test_a_position_beyond_the_log_is_refused_and_one_in_an_open_transaction_waits() -> None:
    """A truncated log needs a decision; an open transaction ends by itself. The stable end itself is fine."""
    assert starts(None, {KNOWN: 9, ADDED: 0})[0] == [9, 0]
    with pytest.raises(RangeUndecided, match=r"stands at 12 in src-0, .* retry when it has ended"):
        starts(None, {KNOWN: 12, ADDED: 0})
    with pytest.raises(CursorMoved, match=r"stands at 13 in src-0, beyond .* 12: .*--offset src:0=9 "):
        starts(None, {KNOWN: 13, ADDED: 0})


def position(record: CursorRecord) -> CursorPosition:
    """Return the position of a group with this record in the ledger."""
    values = {keys.cursor_key("g"): LedgerValue(record.to_json(), 0, 0)}
    authority: Any = SimpleNamespace(settle=lambda *_, **__: values)
    cluster: Any = SimpleNamespace(committed=lambda *_: {})
    return CursorReader(SPEC, cluster, authority, LedgerId("ledger", 1, "test")).position(TOPICS, [KNOWN])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"ledger_topic_id": "of another"}, LedgerReplaced),
        ({"ledger_partitions": 2}, LedgerReplaced),
        ({"pipeline": "another"}, GroupOwned),
        ({"prefix": "another"}, GroupOwned),
        ({"layout": "mapped"}, GroupOwned),
        ({"origin": "there"}, GroupOwned),
    ],
    ids=lambda case: "".join(case) if isinstance(case, dict) else case.__name__,
)
def test_a_cursor_of_others_or_of_another_ledger_is_refused(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    """With partitions added to the ledger, keys are looked for where they are not."""
    assert position(RECORD).cursor == RECORD
    assert position(replace(RECORD, origin="here")).cursor is not None
    with pytest.raises(error):
        position(replace(RECORD, **changes))
