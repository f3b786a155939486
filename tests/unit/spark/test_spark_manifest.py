"""Blocks are accepted only if they are complete, with one attempt per seal task."""

from __future__ import annotations

import pytest

from airflow_eos.model.output import SealedTarget
from airflow_eos.spark.sealed_blocks import InconsistentSeal, count_blocks


def batch(partition, seal, seq, records, *, attempt=None, topic="out", size=100):
    return (topic, partition, seal, seal + 10 if attempt is None else attempt, seq, records, size)


def trailer(partition, seal, batches, records, *, attempt=None, topic="out"):
    return batch(partition, seal, batches, records, attempt=attempt, topic=topic, size=None)


def own(seal, targets, records, *, attempt=None):
    return batch(-1, seal, targets, records, attempt=attempt, topic=None, size=None)


def counts(*owners):
    """Count the blocks of the owner tasks."""
    return count_blocks((task, *row, None) for task, owner in enumerate(owners) for row in owner)


def manifest(*owners):
    return counts(*owners).targets


COMPLETE = (
    [batch(0, 0, 0, 5), batch(0, 0, 1, 3), trailer(0, 0, 2, 8), own(0, 2, 10), own(1, 1, 4)],
    [batch(1, 0, 0, 2, size=50), batch(1, 1, 0, 4), trailer(1, 0, 1, 2), trailer(1, 1, 1, 4)],
)


def test_complete_blocks_are_counted_per_target():
    """Records, batches and bytes, sorted by partition."""
    assert manifest(*COMPLETE) == (SealedTarget("out", 0, 8, 2, 200), SealedTarget("out", 1, 6, 2, 150))


def test_nothing_sealed_is_a_manifest_without_targets():
    """Seal tasks ran and found no rows."""
    assert manifest([own(0, 0, 0), own(1, 0, 0)], []) == ()


def test_rows_of_two_attempts_in_one_owner_are_refused():
    """A task of a non-deterministic transform ran again."""
    owners = ([*COMPLETE[0], batch(0, 0, 0, 5, attempt=99)], COMPLETE[1])
    with pytest.raises(InconsistentSeal):
        manifest(*owners)


def test_two_complete_attempts_in_different_owners_are_refused():
    """Each owner alone looks right: only all of them together show the mixture."""
    other = [(*row[:3], 99, *row[4:]) if row[2] == 0 else row for row in COMPLETE[1]]
    with pytest.raises(InconsistentSeal, match="attempts"):
        manifest(COMPLETE[0], other)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_row_is_noticed(missing):
    """A batch without its neighbour, or without its trailer."""
    first = [row for i, row in enumerate(COMPLETE[0]) if i != missing]
    with pytest.raises(InconsistentSeal, match="announced"):
        manifest(first, COMPLETE[1])


def test_a_row_twice_is_noticed():
    """The counts match only without the second copy."""
    with pytest.raises(InconsistentSeal, match="announced"):
        manifest([*COMPLETE[0], COMPLETE[0][0]], COMPLETE[1])


def test_a_batch_number_twice_is_noticed_although_counts_fit():
    """Two batches with number 0 are not batches 0 and 1."""
    with pytest.raises(InconsistentSeal, match="announced"):
        manifest([batch(0, 0, 0, 5), batch(0, 0, 0, 3), *COMPLETE[0][2:]], COMPLETE[1])


def test_a_seal_task_without_its_own_trailer_is_noticed():
    """The task did not finish."""
    with pytest.raises(InconsistentSeal, match="did not finish"):
        manifest(COMPLETE[0][:-1], COMPLETE[1])


def test_a_whole_owner_missing_is_noticed():
    """The seal tasks' totals do not match."""
    with pytest.raises(InconsistentSeal):
        manifest(COMPLETE[0], [])


def test_two_owners_of_one_partition_are_refused():
    """A shared producer identity requires disjoint ownership."""
    first = [batch(0, 0, 0, 5), trailer(0, 0, 1, 5), own(0, 2, 10), own(1, 1, 4)]
    second = [batch(0, 1, 0, 4), trailer(0, 1, 1, 4), batch(1, 0, 0, 5), trailer(1, 0, 1, 5)]
    with pytest.raises(InconsistentSeal, match="two owner tasks"):
        manifest(first, second)


def test_what_seal_tasks_read_is_kept_per_slice():
    """Records and late ones, for tasks that read themselves: one task may have read several slices."""
    reads = [batch(-3, 0, 3, 10, topic=None, size=None), batch(-4, 1, 0, 4, topic=None, size=None)]
    assert counts([*COMPLETE[0], *reads], COMPLETE[1]).reads == {0: (10, 3), 1: (4, 0)}
    assert counts(*COMPLETE).reads == {}
    several = [batch(-3 - n, 0, n, 10 + n, topic=None, size=None) for n in range(3)]
    assert counts([*COMPLETE[0], *several], COMPLETE[1]).reads == {0: (10, 0), 1: (11, 1), 2: (12, 2)}


@pytest.mark.parametrize("task", [0, 1])
def test_a_slice_that_was_read_twice_is_refused(task):
    """By one task or by two: the output has its records twice."""
    twice = [batch(-3, 0, 0, 10, topic=None, size=None), batch(-3, task, 0, 10, topic=None, size=None)]
    with pytest.raises(InconsistentSeal, match="slice 0 was read twice"):
        counts([*COMPLETE[0], *twice], COMPLETE[1])


def test_the_attempt_of_each_seal_task_is_kept():
    """The send refuses rows of any other attempt."""
    assert counts(*COMPLETE).attempts == {0: 10, 1: 11}


def test_the_first_dead_letter_of_the_first_task_is_told():
    """Its text is in the trailer, which is counted and never sent."""

    def dead(seal, records, note):
        return (*batch(-2, seal, 0, records, topic=None, size=len(note)), note)

    rows = [(*row, None) for row in (own(0, 0, 0), own(1, 0, 0), own(2, 0, 0))]
    rows += [dead(2, 5, b'[["src", 2, 0, "b"]]'), dead(1, 1, b'[["src", 1, 9, "a"]]')]
    counts = count_blocks((0, *row) for row in rows)
    assert (counts.dead_letters, str(counts.failing[0])) == (6, "src-1, offset 9: a")
    assert counts.targets == ()
