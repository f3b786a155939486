"""The oracle reports each kind of failure, and nothing if all is well."""

from __future__ import annotations

import pytest

from airflow_eos_testing.oracle import InputLog, judge, tag_of
from airflow_eos_testing.readers import Record


def record(value, partition=0, offset=0, topic="out"):
    return Record(topic, partition, offset, None, value.encode(), (), 0, 0)


@pytest.fixture
def log():
    """Three inputs in partition 0, two in partition 1."""
    inputs = InputLog(2)
    for partition in (0, 1, 0, 1, 0):
        inputs.next_tag(partition)
    return inputs


ALL = ["0:0", "0:1", "0:2", "1:0", "1:1"]


def test_tags_rise_within_each_partition(log):
    """Tags name the partition and count from 0."""
    assert sorted(log.tags()) == ALL
    assert len(log) == 5


def test_an_exact_output_has_nothing_to_complain_about(log):
    """Every tag once, sources mixed, order kept within each: exact."""
    verdict = judge(log, [record(tag) for tag in ("1:0", "0:0", "0:1", "1:1", "0:2")])
    assert verdict.exact
    assert verdict.complaints() == ""
    assert (verdict.records_in, verdict.records_out) == (5, 5)


def test_a_missing_record_is_lost(log):
    """A tag in no output."""
    verdict = judge(log, [record(tag) for tag in ALL if tag != "0:1"])
    assert verdict.lost == ("0:1",)
    assert not verdict.exact
    assert "1 lost: 0:1" in verdict.complaints()


def test_a_record_there_three_times_is_duplicated_twice(log):
    """Each superfluous copy counts, in whichever partition it is."""
    verdict = judge(log, [record(tag) for tag in ALL] + [record("1:1", 1), record("1:1", 1)])
    assert verdict.duplicated == ("1:1", "1:1")
    assert verdict.records_out == 7
    assert not verdict.exact


def test_an_output_without_an_input_is_unknown(log):
    """Neither lost nor duplicated, but not exact."""
    verdict = judge(log, [*map(record, ALL), record("9:9")])
    assert (verdict.unknown, verdict.lost, verdict.duplicated) == (("9:9",), (), ())
    assert not verdict.exact


def test_records_of_one_source_that_changed_places_are_out_of_order(log):
    """Within a sink partition a source's numbers rise; across sink partitions there is no guarantee."""
    crossed = ["0:1", "0:0", "0:2", "1:0", "1:1"]
    verdict = judge(log, map(record, crossed))
    assert verdict.out_of_order == ("0:1 before 0:0 in out-0",)
    assert not verdict.exact
    assert judge(log, map(record, crossed), ordered=False).exact
    apart = [record("0:1"), record("0:0", 1), *map(record, ["0:2", "1:0", "1:1"])]
    assert judge(log, apart).exact


def test_other_checks_are_part_of_the_verdict(log):
    """A complaint of the ledger makes an output that looks exact not exact."""
    verdict = judge(log, map(record, ALL), disagreements=["the ledger counts 4"])
    assert not verdict.exact
    assert "the ledger counts 4" in verdict.complaints()


def test_inputs_that_cannot_be_told_apart_are_refused():
    """The oracle would count a duplicate as two inputs."""
    with pytest.raises(ValueError, match="same tag"):
        judge(["0:0", "0:0"], [])


def test_the_tag_is_the_first_word():
    """Padding after the tag is ignored."""
    assert tag_of(record("0:17 xxxx")) == "0:17"


def test_an_input_that_its_producer_wrote_twice_is_no_duplicate_of_the_pipeline(log):
    """The verdict is not exact either way, and tells who caused it."""
    source = [record(tag, topic="in") for tag in [*ALL, "1:1"]]
    followed = judge(log, [record(tag) for tag in [*ALL, "1:1"]], source=source)
    assert (followed.duplicated, followed.exact) == ((), False)
    assert "the source holds 1 inputs more than once, by its own producer: ['1:1']" in followed.complaints()
    repeated = judge(log, [record(tag) for tag in [*ALL, "1:1", "1:1", "0:0"]], source=source)
    assert repeated.duplicated == ("0:0", "1:1")


def test_an_input_that_is_not_in_the_source_is_a_complaint(log):
    """It was acknowledged and is gone: the pipeline did not cause that, and nothing can be exact then."""
    source = [record(tag, topic="in") for tag in ALL if tag != "0:1"]
    verdict = judge(log, [record(tag) for tag in ALL if tag != "0:1"], source=source)
    assert verdict.lost == ("0:1",)
    assert "the source lacks 1 inputs that were acknowledged: ['0:1']" in verdict.complaints()
