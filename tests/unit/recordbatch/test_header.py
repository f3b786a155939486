"""Batches are found in Fetch answers, truncated ones omitted, damaged ones named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from airflow_eos.exceptions import CorruptBatch, UnsupportedMagic
from airflow_eos.recordbatch.header import HEADER, HEADER_BYTES, BatchHeader, TimestampType, iter_batches
from tests.support.record_batches import Record, marker, raw, write

ONE = write(
    [Record(10, 5, b"k", b"v"), Record(11, 6, None, b"w")], base_offset=10, producer_id=99, producer_epoch=2
)
TWO = write([Record(12, 7, b"k", None)], base_offset=12, last_offset=20, attributes=0x18)
THREE = marker(1, 99, 21)


def test_a_header_unpacks_to_its_fields_and_packs_to_its_bytes():
    """All thirteen fields, in wire order."""
    header = BatchHeader.unpack(ONE)
    assert HEADER.pack(*header) == ONE[:HEADER_BYTES]
    assert (header.base_offset, header.leader_epoch, header.magic, header.record_count) == (10, 7, 2, 2)
    assert (header.base_timestamp, header.max_timestamp) == (5, 6)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (99, 2, -1)
    assert header.size == len(ONE)


def test_attribute_bits_mean_what_the_specification_says():
    """Codec, timestamp type, transactional, control, delete horizon."""
    header = BatchHeader.unpack(ONE)
    plain = header._replace(attributes=0)
    assert (plain.codec, plain.timestamp_type, plain.is_transactional, plain.is_control) == (
        0,
        0,
        False,
        False,
    )
    assert header._replace(attributes=0x04).codec == 4
    assert header._replace(attributes=0x08).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header._replace(attributes=0x10).is_transactional
    assert header._replace(attributes=0x20).is_control


def test_reading_goes_on_behind_the_last_offset_though_compaction_removed_it():
    """The next offset comes from the header, not from the records."""
    header = BatchHeader.unpack(TWO)
    assert (header.last_offset, header.next_offset, header.record_count) == (20, 21, 1)


@given(st.integers(0, len(ONE + TWO + THREE)))
def test_an_answer_cut_anywhere_gives_its_whole_batches(cut):
    """Brokers truncate at a number of bytes; the rest comes with the next fetch."""
    blob = (ONE + TWO + THREE)[:cut]
    whole = [size for size in (len(ONE), len(ONE + TWO), len(ONE + TWO + THREE)) if size <= cut]
    batches = list(iter_batches(blob, "topic", 0))
    assert len(batches) == len(whole)
    assert b"".join(batch.data for batch in batches) == blob[: max(whole, default=0)]
    assert [batch.header.base_offset for batch in batches] == [10, 12, 21][: len(whole)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_answers_may_be_any_buffer(kind):
    """The network layer passes whatever its library returns."""
    assert [batch.header.base_offset for batch in iter_batches(kind(ONE + TWO), "topic", 0)] == [10, 12]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_with_topic_partition_and_way_out(magic):
    """v0 and v1 batches, written by a client that knows them."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1000)
    builder.append(0, timestamp=1, key=b"k", value=b"v")
    blob = bytes(builder.build())
    assert MemoryRecords(blob).has_next()
    with pytest.raises(UnsupportedMagic, match=rf"topic-3 at offset 0 has message format v{magic}; only v2"):
        list(iter_batches(blob, "topic", 3))


def test_a_newer_message_format_is_refused_too():
    """The meaning of magic 3 is unknown."""
    with pytest.raises(UnsupportedMagic, match="format v3"):
        list(iter_batches(write([Record(0, 0, None, b"")], magic=3), "topic", 0))


def test_batches_before_an_old_one_are_delivered_first():
    """An upgrade left both in one log."""
    batches = iter_batches(ONE + write([Record(12, 0, None, b"")], base_offset=12, magic=1), "topic", 0)
    assert next(batches).header.base_offset == 10
    with pytest.raises(UnsupportedMagic, match="at offset 12"):
        next(batches)


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_an_impossible_length_is_corruption_not_an_endless_loop(length):
    """A length below the header's own bytes cannot be stepped over."""
    blob = ONE[:8] + length.to_bytes(4, "big", signed=True) + ONE[12:]
    with pytest.raises(CorruptBatch, match=f"topic-0 at offset 10 has length {length}"):
        list(iter_batches(blob, "topic", 0))


@given(st.integers(17, len(ONE) - 1), st.integers(0, 7))
def test_any_flipped_bit_under_the_checksum_is_noticed_and_located(position, bit):
    """The message names topic, partition and offset."""
    damaged = bytearray(ONE)
    damaged[position] ^= 1 << bit
    with pytest.raises(CorruptBatch, match=r"topic-3 at offset 10 has CRC"):
        raw(bytes(damaged)).check_crc()


def test_offset_and_leader_epoch_are_not_under_the_checksum():
    """Brokers assign them without recomputing it."""
    raw((77).to_bytes(8, "big") + ONE[8:12] + b"\x00\x00\x00\x09" + ONE[16:]).check_crc()
