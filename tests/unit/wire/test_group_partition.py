"""The partition of a group's commits, computed like the brokers do."""

from __future__ import annotations

import pytest

from airflow_eos.wire.groups import java_hash, offsets_partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("consumer-group", -1738392088),
        ("polygenelubricants", -(1 << 31)),
        ("日本", 835047),
        ("😀", 1772899),
    ],
)
def test_the_hash_is_javas(text, expected):
    """Over UTF-16 code units, wrapped to 32 bits; values from a JVM."""
    assert java_hash(text) == expected


def test_the_absolute_value_is_kafkas():
    """The smallest 32-bit number becomes 0; 2**31 would be in partition 2 of three."""
    assert offsets_partition_of("polygenelubricants", 3).partition == 0
    assert offsets_partition_of("consumer-group", 50).partition == 1738392088 % 50
