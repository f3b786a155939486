"""Look-ups find a key by the bytes it has inside an uncompressed record."""

from __future__ import annotations

import pytest

from airflow_eos.broker.ledger_scan import needle


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", b"\x00"),
        ("run", b"\x06run"),
        ("k" * 63, b"\x7e" + b"k" * 63),
        ("k" * 64, b"\x80\x01" + b"k" * 64),
        ("ü", b"\x04\xc3\xbc"),
        ("k" * 8192, b"\x80\x80\x01" + b"k" * 8192),
    ],
)
def test_a_key_is_preceded_by_its_length(key, expected):
    """The length in bytes, as a zigzag varint."""
    assert needle(key) == expected
