"""Records get the partition that Kafka's Java producer would choose."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from airflow_eos.exceptions import RecordRefused
from airflow_eos.recordbatch.partitioner import NULL_KEY_RUN, murmur2, partitions_for

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def expected(keys):
    return (
        np.array([kafka_python_murmur2(key) & 0xFFFFFFFF for key in keys], np.uint32).view(np.int32).tolist()
    )


def test_hashes_are_those_of_kafkas_own_tests():
    """The vectors of Kafka's UtilsTest, together and one by one."""
    assert murmur2(pa.array(list(JAVA))).tolist() == list(JAVA.values())
    for text, value in JAVA.items():
        assert murmur2(pa.array([text])).tolist() == [value]


@given(
    st.lists(st.binary(max_size=40) | st.integers(0, 600).map(lambda size: b"\xfe" * size), max_size=60),
    st.integers(0, 3),
)
def test_hashes_of_mixed_lengths_equal_kafka_pythons(keys, before):
    """Lengths in any order, after other bytes of the same buffer."""
    column = pa.array([b"xyz"[:before], *keys, b"behind"], pa.binary()).slice(1, len(keys))
    assert murmur2(column).tolist() == expected(keys)


@pytest.mark.parametrize("length", range(13))
def test_hashes_of_equal_lengths_equal_kafka_pythons(length):
    """Every remainder modulo four bytes, many rows and one."""
    keys = [bytes([row & 0xFF, row >> 8, 200, 9] * 4)[:length] for row in range(300)]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == expected(keys)
    assert murmur2(pa.array(keys[:1], pa.binary())).tolist() == expected(keys[:1])


def test_one_long_key_among_many_short_ones_is_hashed_rightly():
    """Long keys are hashed one by one, in steps."""
    generator = np.random.default_rng(3)
    keys = [generator.bytes(5) for _ in range(50)]
    keys[7], keys[30], keys[31] = generator.bytes(100_003), generator.bytes(70_001), generator.bytes(400_002)
    assert murmur2(pa.array(keys, pa.binary())).tolist() == expected(keys)


def test_negative_hashes_become_positive_by_their_sign_bit():
    """Java's toPositive clears the bit; it does not take the absolute value."""
    keys = pa.array(list(JAVA))
    assert partitions_for(6, 7, topic="t", key=keys).tolist() == [
        (value & 0x7FFFFFFF) % 7 for value in JAVA.values()
    ]


@pytest.mark.parametrize("form", [pa.binary(), pa.string(), pa.large_string(), pa.string_view()])
def test_keys_hash_alike_in_every_arrow_type(form):
    """Also in chunks."""
    keys = list(JAVA)
    assert murmur2(pa.array(keys, form)).tolist() == list(JAVA.values())
    assert murmur2(pa.chunked_array([keys[:2], keys[2:]], form)).tolist() == list(JAVA.values())


def test_the_empty_key_is_hashed_and_the_null_key_is_not():
    """Java's producer treats b"" as a key."""
    (wanted,) = expected([b""])
    keys = pa.array([b""] * 3000 + [None] * 3000, pa.binary())
    target = partitions_for(6000, 11, topic="t", key=keys)
    assert set(target[:3000].tolist()) == {(wanted & 0x7FFFFFFF) % 11}
    assert len(set(target[3000:].tolist())) == 3


def test_null_keys_are_spread_in_runs_and_the_same_again_for_the_same_seed():
    """Runs fill batches, and all partitions get their share; nothing is random."""
    rows = NULL_KEY_RUN * 8
    target = partitions_for(rows, 4, topic="t")
    assert np.count_nonzero(np.diff(target)) == 7
    assert np.bincount(target).tolist() == [NULL_KEY_RUN * 2] * 4
    assert (partitions_for(rows, 4, topic="t") == target).all()
    assert (partitions_for(rows, 4, topic="t", key=pa.nulls(rows, pa.binary())) == target).all()


@given(st.integers(0, 10_000), st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 50))
def test_a_spread_continues_where_the_seed_says(seed, first, second, partitions):
    """Splitting the rows into calls changes nothing if each call continues the count."""
    whole = partitions_for(first + second, partitions, topic="t", seed=seed)
    head = partitions_for(first, partitions, topic="t", seed=seed)
    tail = partitions_for(second, partitions, topic="t", seed=seed + first)
    assert np.concatenate((head, tail)).tolist() == whole.tolist()


def test_keys_between_nulls_keep_their_partition():
    """Nulls are not hashed."""
    keys = pa.array([None, b"21", None, b"abc"], pa.binary())
    target = partitions_for(4, 5, topic="t", key=keys)
    assert target[[1, 3]].tolist() == [(JAVA["21"] & 0x7FFFFFFF) % 5, JAVA["abc"] % 5]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.int8()])
def test_an_explicit_partition_wins_where_it_is_not_null(kind):
    """The other rows go by key."""
    explicit = pa.array([4, None, 0, None], kind)
    keys = pa.array(["abc", "abc", "21", None])
    hashed = JAVA["abc"] % 5
    assert partitions_for(4, 5, topic="t", key=keys, explicit=explicit).tolist() == [4, hashed, 0, 0]
    chunks = pa.chunked_array([explicit.slice(0, 1), explicit.slice(1)])
    assert partitions_for(4, 5, topic="t", key=keys, explicit=chunks).tolist() == [4, hashed, 0, 0]
    full = pa.array([4, 3, 2, 1], kind)
    assert partitions_for(4, 5, topic="t", key=keys, explicit=full).tolist() == [4, 3, 2, 1]


def test_null_keys_left_by_an_explicit_column_are_spread_from_the_seed():
    """The caller's two choices work together."""
    explicit = pa.array([3, None, None], pa.int32())
    assert partitions_for(3, 5, topic="t", explicit=explicit, seed=2 * NULL_KEY_RUN - 1).tolist() == [3, 1, 2]


@pytest.mark.parametrize("wrong", [5, -1, 2**40])
def test_a_partition_that_does_not_exist_is_named_with_its_topic(wrong):
    """The message says which partitions there are."""
    explicit = pa.array([0, None, wrong], pa.int64())
    with pytest.raises(RecordRefused, match=rf"partition {wrong}, and topic 'orders' has partitions 0 to 4"):
        partitions_for(3, 5, topic="orders", explicit=explicit)


def test_all_null_columns_are_as_no_columns():
    """Spark delivers a void column for a literal null."""
    assert (
        partitions_for(2, 5, topic="t", explicit=pa.nulls(2), key=pa.array(["abc", "abc"])).tolist()
        == [JAVA["abc"] % 5] * 2
    )


def test_no_rows_have_no_partitions():
    """Empty batches pass."""
    assert partitions_for(0, 3, topic="t", key=pa.array([], pa.binary())).tolist() == []
    assert murmur2(pa.array([], pa.binary())).tolist() == []
