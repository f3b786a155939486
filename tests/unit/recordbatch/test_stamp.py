"""The sender's identity is written as brokers check it, and only into transactional data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from airflow_eos.exceptions import ProtocolViolation
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.stamp import next_sequence, stamp
from tests.support.record_batches import Record, marker, write

(SEALED,) = seal(pa.array([b"a", None, b"c"], pa.binary()), np.zeros(3, np.int32), topic="t")


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 15) - 1), st.integers(0, (1 << 31) - 1))
def test_identity_and_checksum_are_what_another_client_reads(producer_id, epoch, sequence):
    """kafka-python reads the identity and finds the checksum valid."""
    batch = MemoryRecords(stamp(SEALED.data, producer_id, epoch, sequence)).next_batch()
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (producer_id, epoch, sequence)


def test_nothing_but_identity_and_checksum_is_touched():
    """The other bytes stay the same."""
    data = stamp(SEALED.data, 1, 2, 3)
    assert (data[:17], data[21:43], data[57:]) == (SEALED.data[:17], SEALED.data[21:43], SEALED.data[57:])


def test_a_retry_gets_the_same_bytes_from_a_fresh_or_a_stamped_batch():
    """Brokers compare sequences, not content: a retry must send the same bytes."""
    once = stamp(SEALED.data, 1, 2, 3)
    assert stamp(SEALED.data, 1, 2, 3) == once
    assert stamp(stamp(SEALED.data, 9, 9, 9), 1, 2, 3) == once


@pytest.mark.parametrize(
    "data",
    [
        write([Record(0, 0, None, b"v")]),
        write([Record(0, 0, None, b"v")], attributes=0x04),
        marker(0, 5, 0),
        SEALED.data[:21] + b"\x00\x00" + SEALED.data[23:],
    ],
)
def test_a_batch_that_is_not_transactional_data_is_refused(data):
    """Readers would see it whether the transaction commits or not."""
    with pytest.raises(ProtocolViolation, match="is not transactional data"):
        stamp(data, 1, 0, 0)


@pytest.mark.parametrize("data", [b"", SEALED.data[:60], write([], attributes=0x10, magic=1)])
def test_what_is_no_batch_is_refused(data):
    """It is truncated, or of another format."""
    with pytest.raises(ProtocolViolation, match="not a record batch of magic 2"):
        stamp(data, 1, 0, 0)


@pytest.mark.parametrize("identity", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1 << 31)])
def test_no_identity_is_refused(identity):
    """Sealed batches have -1, which no sender has."""
    with pytest.raises(ProtocolViolation, match="not the identity of a producer"):
        stamp(SEALED.data, *identity)


@pytest.mark.parametrize(
    ("sequence", "records", "expected"),
    [(0, 5, 5), ((1 << 31) - 6, 5, (1 << 31) - 1), ((1 << 31) - 5, 5, 0), ((1 << 31) - 1, 3, 2), (7, 0, 7)],
)
def test_sequences_wrap_to_zero_behind_the_largest_int32(sequence, records, expected):
    """Like DefaultRecordBatch.incrementSequence."""
    assert next_sequence(sequence, records) == expected
