"""Where a group's commits lie, computed as the broker computes it."""

from __future__ import annotations

import pytest

from airflow_eos.wire.groups import java_hash, kafka_abs


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


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), (-5, 5), (0, 0), (-(1 << 31), 0), ((1 << 31) - 1, (1 << 31) - 1)]
)
def test_the_absolute_value_is_kafkas(value, expected):
    """The smallest 32-bit number becomes 0."""
    assert kafka_abs(value) == expected
