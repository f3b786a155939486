"""Records that make a DataFrame process raise are removed from its input, each once and no others."""

from __future__ import annotations

import pytest

from airflow_eos.exceptions import ProcessFailed
from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.dead_letters import DeadLetterRule, may_be_records
from airflow_eos.spark.failing_records import FailingRecords
from airflow_eos.spark.set_aside import SetAside

RULE = DeadLetterRule("dead", 2)


def at(*offsets: int, partition: int = 0) -> tuple[FailingRecord, ...]:
    return tuple(FailingRecord("a", partition, offset, f"error {offset}") for offset in offsets)


def test_what_is_left_is_everything_else_in_order() -> None:
    """At either end, next to each other, and in several ranges of one partition."""
    ranges = [OffsetRange("a", 0, 0, 5), OffsetRange("a", 0, 7, 9), OffsetRange("a", 1, 3, 3)]
    assert SetAside().without(ranges) == ranges[:2]
    left = SetAside(at(0, 2, 3, 8) + at(7, partition=1)).without(ranges)
    assert left == [OffsetRange("a", 0, 1, 2), OffsetRange("a", 0, 4, 5), OffsetRange("a", 0, 7, 8)]
    assert SetAside(at(7, 8)).without(ranges) == ranges[:1]


def test_searches_add_up() -> None:
    """Both records and time; messages name the first record."""
    first = SetAside().and_more(FailingRecords(at(7)), 20, RULE, "why")
    second = first.and_more(FailingRecords(at(3)), 30, RULE, "why")
    assert (second.records, second.seconds, str(second.records[0])) == (
        at(3, 7),
        50,
        "a-0, offset 3: error 3",
    )


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (
            FailingRecords(at(1, 2)),
            "failed on 3 records or more, and max_dead_letters is 2.*offset 1: error 1",
        ),
        (FailingRecords(at(1), cut_after=60), "given up after 25 s; it had identified 2"),
        (FailingRecords([], is_not_one_record=True), "does not fail on any one record alone"),
        (FailingRecords([]), "does not fail on any one record alone"),
    ],
)
def test_what_cannot_be_dead_letters_fails_the_run(search: FailingRecords, message: str) -> None:
    """With the reason, and the first error."""
    with pytest.raises(ProcessFailed, match=message):
        SetAside(at(7), 20).and_more(search, 5, RULE, "ValueError: x")


@pytest.mark.parametrize(
    ("raised", "may_be"),
    [
        (("ValueError",), True),
        (("shop.OrderRefused",), True),
        ((), True),
        (("pyspark.errors.exceptions.captured.NumberFormatException", "builtins.Exception"), True),
        (("MemoryError",), False),
        (("builtins.ImportError",), False),
        (("ModuleNotFoundError",), False),
        (("airflow_eos.exceptions.ProcessFailed",), False),
        (("airflow.sdk.exceptions.AirflowSkipException",), False),
        (("airflow.exceptions.AirflowFailException", "builtins.Exception"), False),
    ],
)
def test_the_class_decides_whether_it_may_be_a_records_fault(raised: tuple[str, ...], may_be: bool) -> None:
    """As if an Arrow function raises it."""
    assert may_be_records(raised) is may_be
