"""Every target partition has exactly one owner, and every task computes the same one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.spark.placement import OwnerLayout, hash_keys, plan_owners

layouts = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.integers(0, 30), st.integers(-1, 4), min_size=1).map(
        lambda d: {i: leader for i, (_, leader) in enumerate(sorted(d.items()))}
    ),
)


@given(layouts, st.integers(1, 16), st.integers(0, 16))
def test_every_partition_has_one_owner_within_the_tasks(leaders, slots, undeclared):
    """Also partitions that the driver did not know."""
    layout = plan_owners(leaders, slots, undeclared)
    for topic in [*leaders, "unknown"]:
        for partition in range(40):
            assert 0 <= layout.owner(topic, partition) < layout.tasks


@given(layouts, st.integers(1, 16))
def test_no_task_is_without_work_when_all_topics_are_declared(leaders, slots):
    """Tasks = min(partitions, 2 x slots), each with at least one partition."""
    layout = plan_owners(leaders, slots)
    partitions = [(t, p) for t, parts in leaders.items() for p in parts]
    if partitions:
        assert layout.tasks == min(len(partitions), 2 * slots)
        assert {layout.owner(t, p) for t, p in partitions} == set(range(layout.tasks))


def test_a_tasks_partitions_share_a_leader_where_possible():
    """Such a task needs only one connection."""
    layout = plan_owners({"t": {p: p % 2 for p in range(8)}}, 1)
    assert layout.tasks == 2
    assert len({layout.owner("t", p) for p in range(0, 8, 2)}) == 1
    assert len({layout.owner("t", p) for p in range(1, 8, 2)}) == 1


def test_partitions_of_an_undeclared_topic_are_spread():
    """A dead-letter topic is not written by one task."""
    layout = OwnerLayout(4)
    assert {layout.owner("dlq", p) for p in range(4)} == {0, 1, 2, 3}


def test_there_is_a_hash_key_for_every_task():
    """Keys are distinct ints; a test on Spark checks where Spark sends them."""
    keys = hash_keys(50)
    assert len(set(keys)) == 50
