"""Record batches written byte by byte, after KIP-98: the plain counterpart of the package's writer."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import strategies as st
from kafka.record.util import calc_crc32c

from airflow_eos.recordbatch.header import iter_batches

TRANSACTIONAL = 0x10
CONTROL = 0x20
LOG_APPEND_TIME = 0x08
ABORT, COMMIT = 0, 1


class Record(NamedTuple):
    """One record as a reader sees it; headers as (key, value) pairs."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def varint(number):
    """Return a number as a zigzag varint."""
    unsigned = (number << 1) ^ (number >> 63)
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)


def nullable(data):
    return varint(-1) if data is None else varint(len(data)) + data


def body(records, base_offset, base_timestamp):
    """Return the records section, uncompressed."""
    out = bytearray()
    for record in records:
        fields = b"".join(
            (
                b"\x00",
                varint(record.timestamp - base_timestamp),
                varint(record.offset - base_offset),
                nullable(record.key),
                nullable(record.value),
                varint(len(record.headers)),
                *(nullable(key.encode()) + nullable(value) for key, value in record.headers),
            )
        )
        out += varint(len(fields)) + fields
    return bytes(out)


def write(
    records,
    *,
    base_offset=0,
    last_offset=None,
    attributes=0,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    max_timestamp=None,
    compress=None,
    count=None,
    section=None,
    magic=2,
):
    """Return a whole batch with a valid CRC; if ``compress`` is given, ``attributes`` must name the codec."""
    base_timestamp = records[0].timestamp if records else 0
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=-1)
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    if section is None:
        section = body(records, base_offset, base_timestamp)
    if compress is not None:
        section = compress(section)
    signed = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_offset - base_offset,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records) if count is None else count,
        )
        + section
    )
    return struct.pack(">qiibI", base_offset, 9 + len(signed), 7, magic, calc_crc32c(signed)) + signed


def marker(kind, producer_id, offset, *, key=None):
    """Return the control batch that ends a transaction."""
    key = struct.pack(">hh", 0, kind) if key is None else key
    record = Record(offset, 1, key, struct.pack(">hi", 0, 5))
    return write(
        [record],
        base_offset=offset,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=0,
    )


def raw(blob, topic="topic", partition=3):
    """Return the only batch of a blob."""
    (batch,) = iter_batches(blob, topic, partition)
    return batch


def rows(decoded):
    """Return decoded columns as records."""
    headers = [[]] * len(decoded) if decoded.headers is None else decoded.headers.to_pylist()
    return [
        Record(
            offset, timestamp, key, value, tuple((header["key"], header["value"]) for header in listed or ())
        )
        for offset, timestamp, key, value, listed in zip(
            decoded.offset.tolist(),
            decoded.timestamp.tolist(),
            decoded.key.to_pylist(),
            decoded.value.to_pylist(),
            headers,
            strict=True,
        )
    ]


# Zero bytes matter: readers find records by them. Sizes cross the limits of one- and two-byte varints.
payload = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from([0, 1, 2, 0x80]), max_size=80).map(bytes),
    st.integers(40, 300).map(lambda size: b"x" * size),
    st.sampled_from([b"y" * 8200, b"\x00" * 130, b"\x00\x10\x00" * 20]),
)
timestamps = st.one_of(st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(0, 1 << 60))
ALPHABET = "aé€𝄞\x00"


@st.composite
def records(draw, min_size=0, max_size=40, alphabet=ALPHABET):
    """Draw records without offsets: (timestamp, key, value, headers); header keys of this alphabet."""
    header = st.tuples(st.text(alphabet, max_size=4), st.none() | st.binary(max_size=5))
    with_headers = draw(st.booleans())
    row = st.tuples(
        timestamps,
        st.none() | payload,
        st.none() | payload,
        st.lists(header, max_size=3).map(tuple) if with_headers else st.just(()),
    )
    return draw(st.lists(row, min_size=min_size, max_size=max_size))
