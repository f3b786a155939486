"""Counts that could not be had stay visible in sums."""

from __future__ import annotations

from airflow_eos.model.output import NOT_COUNTED, total
from airflow_eos.run.rounds import merged
from tests.unit.airflow.fakes import a_record


def test_a_sum_with_an_unknown_count_is_unknown():
    """It is not one less than the others."""
    assert total([]) == 0
    assert total([3, 4]) == 7
    assert total([3, NOT_COUNTED, 4]) == NOT_COUNTED


def test_records_and_merged_rounds_say_so():
    """A run that Spark read in part only."""
    known = a_record(records_read_by_partition={"src-0": 10, "src-1": 5})
    unknown = a_record(records_read_by_partition={"src-0": NOT_COUNTED, "src-1": 5})
    assert (known.records_read, unknown.records_read) == (15, NOT_COUNTED)
    rounds = merged([known, unknown])
    assert rounds.records_read_by_partition == {"src-0": NOT_COUNTED, "src-1": 10}
    assert rounds.records_read == NOT_COUNTED
