"""Varints are those of KIP-98, in both directions, at every width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import decode_varint

from airflow_eos.recordbatch.varint import pack_varints, read_varints
from tests.support.record_batches import varint

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ANY_WIDTH = st.integers(0, 63).flatmap(lambda bits: st.integers(-(1 << bits), (1 << bits) - 1))


def packed_bytes(numbers):
    packed = pack_varints(np.array(numbers, np.int64))
    widths = [packed.width] * len(numbers) if isinstance(packed.width, int) else packed.width.tolist()
    high = np.zeros_like(packed.low) if packed.high is None else packed.high
    return [
        (int(low) | int(above) << 64).to_bytes(16, "little")[:width]
        for low, above, width in zip(packed.low, high, widths, strict=True)
    ]


@given(st.lists(ANY_WIDTH | INT64, max_size=20))
def test_packed_varints_are_those_of_a_plain_encoder(numbers):
    """Every int64 gets the bytes of the reference encoder."""
    assert packed_bytes(numbers) == [varint(number) for number in numbers]


@pytest.mark.parametrize("bits", range(64))
def test_each_width_alone_is_exact_at_its_bounds(bits):
    """Both signs at every power of two, where a varint grows."""
    numbers = [
        number for number in (1 << bits, (1 << bits) - 1, -(1 << bits)) if -(1 << 63) <= number < 1 << 63
    ]
    assert packed_bytes(numbers) == [varint(number) for number in numbers]


@given(st.lists(ANY_WIDTH, min_size=1, max_size=20), st.binary(max_size=3))
def test_reading_gives_back_what_was_written_and_where_it_ends(numbers, before):
    """Values and positions agree with the reference for columns of mixed widths."""
    encoded = [varint(number) for number in numbers]
    at = np.cumsum([len(before)] + [len(data) for data in encoded])
    buffer = np.frombuffer(before + b"".join(encoded), np.uint8)
    values, behind = read_varints(buffer, at[:-1])
    assert values.tolist() == numbers
    assert behind.tolist() == at[1:].tolist()
    assert decode_varint(buffer.tobytes(), int(at[0])) == (numbers[0], int(at[1]))


def test_a_varint_over_the_end_of_the_buffer_is_an_error():
    """A continuation bit on the last byte is never taken for a value."""
    for data in (b"\x80", b"\x00\x80", b"\x01\x80\x80", b"\xff" * 5):
        with pytest.raises(IndexError):
            read_varints(np.frombuffer(data, np.uint8), np.array([len(data) - 1]))


def test_a_varint_longer_than_ten_bytes_is_an_error():
    """Eleven bytes with continuation bits are not a number."""
    with pytest.raises(ValueError, match="longer than ten bytes"):
        read_varints(np.frombuffer(b"\xff" * 12 + b"\x00", np.uint8), np.array([0]))


def test_no_varints_at_all_are_fine():
    """Empty columns work in both directions."""
    assert packed_bytes([]) == []
    values, behind = read_varints(np.empty(0, np.uint8), np.empty(0, np.int64))
    assert len(values) == len(behind) == 0
