"""Small batches of text are read record by record, with the same result as from the columnar decoder."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.broker.ledger_log.records import markers_of, records_of
from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry
from tests.support.record_batches import ABORT, COMMIT, Record, marker, raw, varint, write

texts = st.none() | st.text(max_size=20) | st.integers(50, 9000).map(lambda size: "x" * size)
histories = st.lists(
    st.tuples(texts, texts, st.integers(0, 1 << 40), st.integers(1, 300)), min_size=1, max_size=20
)


def written(rows):
    offset = 0
    for key, value, timestamp, gap in rows:
        offset += gap
        headers = (("h", b"v"),) if gap % 2 else ()
        yield Record(
            offset,
            timestamp,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            headers,
        )


@given(histories)
def test_records_are_read_as_they_were_written(rows):
    """Any keys, values, gaps and headers; few records and many; a null key reads as the empty one."""
    records = list(written(rows))
    expected = [
        (record.offset, key or "", value) for record, (key, value, _, _) in zip(records, rows, strict=True)
    ]
    batch = raw(write(records, base_offset=records[0].offset))
    assert [entry[:3] for entry in records_of(batch, 1 << 40)] == expected
    bound = records[len(records) // 2].offset
    below = [row for row in expected if row[0] < bound]
    assert [entry[:3] for entry in records_of(batch, bound)] == below


def test_compressed_batches_are_read():
    """The columnar decoder decompresses them."""
    gzip = zlib.compressobj(wbits=31)
    batch = raw(
        write(
            [Record(3, 0, b"run", b"{}")],
            base_offset=3,
            attributes=1,
            compress=lambda section: gzip.compress(section) + gzip.flush(),
        )
    )
    assert records_of(batch, 10) == [(3, "run", "{}", None)]


@pytest.mark.parametrize(
    "section",
    [
        b"",
        varint(50) + b"\0\0\0\x02k\x02v\0",
        varint(8) + b"\0\0\0\x02k\x02v\0" + b"more",
        varint(3) + b"\0\0\0\x02k\x02v\0",
        varint(8) + b"\0\0\0\x28k\x02v\0",
        varint(-2) + b"\0\0\0\x02k\x02v\0",
    ],
)
def test_records_that_do_not_fill_their_batch_are_corrupt(section):
    """Lengths beyond the batch, or that leave a rest, are an error that names the place."""
    batch = raw(write([Record(7, 0, b"k", b"v")], base_offset=7, section=section))
    with pytest.raises(CorruptBatch, match="topic-3 at offset 7"):
        records_of(batch, 100)


def test_a_wrong_checksum_is_corrupt():
    """In records and in markers."""
    for blob in (write([Record(0, 0, b"k", b"v")]), marker(COMMIT, 5, 0)):
        damaged = bytearray(blob)
        damaged[-1] ^= 1
        batch = raw(bytes(damaged))
        with pytest.raises(CorruptBatch, match="CRC"):
            list(markers_of(batch)) if batch.header.is_control else records_of(batch, 10)


def test_markers_say_how_the_transaction_ended():
    """Commit or abort of their producer, at their offset; other control records end no transaction."""
    assert list(markers_of(raw(marker(COMMIT, 5, 9)))) == [LedgerEntry(9, 5, "commit")]
    assert list(markers_of(raw(marker(ABORT, 6, 10)))) == [LedgerEntry(10, 6, "abort")]
    assert list(markers_of(raw(marker(2, 6, 11)))) == []
    assert list(markers_of(raw(marker(99, 6, 11)))) == []


def test_markers_of_later_versions_are_read():
    """A key with more fields than today's is read by its first two (KIP-98)."""
    longer = raw(marker(COMMIT, 5, 9, key=b"\0\1\0\1more"))
    assert list(markers_of(longer)) == [LedgerEntry(9, 5, "commit")]
