"""Batches as they are in real logs are decoded exactly, and damaged ones are refused by name."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch import record_fields
from airflow_eos.recordbatch.compression import Compressor
from airflow_eos.recordbatch.decode import decode_batch, decode_batches
from airflow_eos.recordbatch.header import TimestampType, iter_batches
from airflow_eos.recordbatch.limits import HEADER_BYTES, RECORD_BYTES, DecodeLimits
from airflow_eos.recordbatch.record_starts import _walk, record_starts
from tests.support.record_batches import LOG_APPEND_TIME, Record, body, raw, records, rows, varint, write

HOLED = [
    Record(100, 5, b"a", b"1"),
    Record(103, 6, None, None),
    Record(104, 7, b"", b""),
    Record(109, 4, b"d", b"4"),
]


@given(st.integers(95, 115) | st.none(), st.integers(95, 115) | st.none())
def test_a_slice_is_the_records_with_offsets_in_it(start, end):
    """Bounds in holes, before, after, and crossed."""
    decoded = decode_batch(raw(write(HOLED, base_offset=100, last_offset=111)), start=start, end=end)
    low, high = 0 if start is None else start, 1 << 60 if end is None else end
    assert rows(decoded) == [record for record in HOLED if low <= record.offset < high]


@settings(max_examples=40)
@given(records(min_size=1), st.data())
def test_a_slice_of_records_with_headers_keeps_each_record_whole(contents, data):
    """Headers are sliced together with their records."""
    listed = [Record(offset, *row) for offset, row in enumerate(contents)]
    start = data.draw(st.integers(0, len(listed)))
    end = data.draw(st.integers(start, len(listed)))
    assert rows(decode_batch(raw(write(listed)), start=start, end=end)) == listed[start:end]


def test_columns_have_fixed_types_whatever_they_hold():
    """Also when everything is null, or nothing is left."""
    for blob in (write(HOLED, base_offset=100), write(HOLED[1:2], base_offset=103), write([], base_offset=9)):
        decoded = decode_batch(raw(blob))
        assert decoded.key.type == decoded.value.type == pa.binary()
        assert str(decoded.offset.dtype) == str(decoded.timestamp.dtype) == "int64"
        assert decoded.headers is None
        decoded.key.validate(full=True)
        decoded.value.validate(full=True)


@pytest.mark.parametrize("count", [2, 200])
def test_a_record_without_headers_has_null_whatever_its_neighbours_have(count):
    """Headers of its batch do not matter: it may be read with other records the next time."""
    listed = [Record(n, 0, None, None, (("h", b""),) if n == 1 else ()) for n in range(count)]
    decoded = decode_batch(raw(write(listed)))
    assert decoded.headers.is_null().to_pylist() == [n != 1 for n in range(count)]
    decoded.headers.validate(full=True)


def test_an_emptied_batch_has_no_records_and_is_stepped_over():
    """Compaction keeps the header of a producer's last batch; codec bits may remain."""
    for attributes in (0, 0x14):
        batch = raw(write([], base_offset=50, last_offset=61, attributes=attributes, producer_id=4))
        assert len(decode_batch(batch)) == 0
        assert batch.header.next_offset == 62


def test_log_append_time_gives_every_record_the_brokers_time():
    """It is the batch's max timestamp; the producer's deltas are ignored."""
    decoded = decode_batch(raw(write(HOLED, base_offset=100, attributes=LOG_APPEND_TIME, max_timestamp=999)))
    assert decoded.timestamp.tolist() == [999] * 4
    assert decoded.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_create_time_may_go_backwards():
    """Producers do not order their records by time."""
    decoded = decode_batch(raw(write(HOLED, base_offset=100)))
    assert decoded.timestamp.tolist() == [5, 6, 7, 4]
    assert decoded.timestamp_type is TimestampType.CREATE_TIME


def test_header_keys_that_are_no_utf8_are_replaced():
    """As in Java; the value does not change."""
    fields = b"\x00\x00\x00\x01\x01" + varint(1) + varint(2) + b"\xffk" + varint(2) + b"\xff\xfe"
    blob = write([Record(0, 0, None, None)], section=varint(len(fields)) + fields)
    assert decode_batch(raw(blob)).headers.to_pylist() == [[{"key": "�k", "value": b"\xff\xfe"}]]


def test_headers_only_some_records_have():
    """The others get empty lists, and a thousand headers on one are no problem."""
    many = tuple((f"h{number % 7}", None if number % 3 else b"%d" % number) for number in range(1000))
    listed = [
        Record(0, 0, None, b"a"),
        Record(1, 0, None, b"b", many),
        Record(2, 0, b"c", None, (("x", b""),)),
    ]
    assert rows(decode_batch(raw(write(listed)))) == listed


def test_lengths_of_any_width_are_walked():
    """Records below 64 bytes, above 8 KB and above 1 MB, and a record search that must give up."""
    listed = [
        Record(offset, 0, None, bytes(size)) for offset, size in enumerate([0, 50, 70, 9000, 1_100_000, 3])
    ]
    assert rows(decode_batch(raw(write(listed)))) == listed
    long_one = [Record(offset, 0, b"k", b"v" * (9000 if offset == 70 else 40)) for offset in range(100)]
    assert rows(decode_batch(raw(write(long_one)))) == long_one


def test_overlong_varints_of_sloppy_writers_are_read():
    """A length padded with continuation bytes is a legal varint, and the search must not lose the record."""
    plain = [Record(offset, 0, b"k", b"value") for offset in range(60)]
    section = b""
    for record in plain:
        encoded = body([record], 0, 0)
        section += bytes([encoded[0] | 0x80, 0]) + encoded[1:] if record.offset % 50 == 7 else encoded
    assert rows(decode_batch(raw(write(plain, section=section)))) == plain


def test_payloads_that_look_like_records_do_not_mislead_the_search():
    """A record that is not found by its zeros has bytes that look like one, and end where it ends."""
    for inside in (b"\x00\x0e\x00more", b"\x00\x08\x00zz"):
        for place in (0, 30, 59):
            listed = [
                Record(offset, 0, b"k", b"x" * 9000 + inside if offset == place else b"value")
                for offset in range(60)
            ]
            assert rows(decode_batch(raw(write(listed)))) == listed


SMALL = st.lists(
    st.sampled_from([b"", b"\x00", b"\x00\x0e\x00", b"ab", b"\x00\x80\x01\x00" * 3]), max_size=120
)


@settings(max_examples=100)
@given(SMALL, SMALL)
def test_searching_and_walking_find_the_same_records(values, keys):
    """Payloads consist of the bytes of a record's frame."""
    listed = [Record(offset, 0, *pair) for offset, pair in enumerate(zip(keys, values, strict=False))]
    section = body(listed, 0, 0)
    starts = record_starts(np.frombuffer(section, np.uint8), len(listed))
    assert starts.tolist() == _walk(section, 0, len(listed))[0]


def damaged(section, count=1, compress=None, attributes=0):
    blob = write(
        [Record(0, 0, None, None)] * count,
        section=section,
        compress=compress,
        attributes=attributes,
        last_offset=count,
    )
    return raw(blob)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"", "0 bytes cannot hold them"),
        (b"\x0c\x00\x00\x00\x01\x01\x00" + b"!", "end at byte 7 of 8"),
        (b"\x0e\x00\x00\x00\x01\x01\x00", "end at byte 8 of 7"),
        (b"\x0b\x00\x00\x00\x01\x01\x00", ""),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "longer than its fields"),
        (b"\x0c\x00\x00\x00\x08\x01\x00", "key or value is longer than its record"),
        (b"\x0c\x00\x00\x00\x01\x7e\x00", "key or value is longer than its record"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "impossible number of headers"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "impossible number of headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", "a header has no key"),
        (b"\x12\x00\x00\x00\x01\x01\x02\x00\x01!", "longer than its fields"),
        (b"\x0c\x00\x00\x00\x01\x02!", "ends before its header count"),
        (b"\x0c\x00\x80\x80\x80\x80\x80", ""),
        (b"\xff\xff\xff\xff\xff\xff\xff", "longer than an int32"),
    ],
)
def test_a_record_whose_framing_is_wrong_is_refused_with_its_batch(section, reason):
    """The checksum is right, the content is not: some producer wrote it so."""
    with pytest.raises(CorruptBatch, match=rf"topic-3 at offset 0 with 1 records cannot be read: .*{reason}"):
        decode_batch(damaged(section))


def test_a_claimed_number_of_records_is_not_believed():
    """Negative, too many for memory, too few for the bytes."""
    section = body([Record(0, 0, b"k", b"v")], 0, 0)
    for count in (-1, 2, (1 << 31) - 1):
        with pytest.raises(CorruptBatch, match=f"with {count} records"):
            decode_batch(raw(write([Record(0, 0, None, None)], section=section, count=count)))


def test_offsets_that_do_not_rise_are_refused():
    """A repeated offset would be a repeated record."""
    with pytest.raises(CorruptBatch, match="offsets do not rise"):
        decode_batch(raw(write([Record(1, 0, None, b""), Record(1, 0, None, b"")])))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_data_that_cannot_be_decompressed_is_corruption(codec):
    """It is reported like any other damage."""
    with pytest.raises(CorruptBatch, match=r"topic-3 at offset 0 .* (cannot be decompressed|is cut off)"):
        decode_batch(damaged(b"no such data", attributes=codec))


def test_an_unassigned_codec_is_corruption():
    """Codec ids 5 to 7 have no meaning yet."""
    with pytest.raises(CorruptBatch, match="codec 5 is unknown"):
        decode_batch(damaged(b"data", attributes=5))


def test_the_checksum_is_compared_before_anything_is_read():
    """Only if a caller does not turn it off."""
    blob = bytearray(write(HOLED, base_offset=100))
    blob[-2] ^= 1
    with pytest.raises(CorruptBatch, match="topic-3 at offset 100 has CRC"):
        decode_batch(raw(bytes(blob)))
    assert decode_batch(raw(bytes(blob)), check_crc=False).value[3].as_py() != b"4"


def small(offset, section=None, count=2, attributes=0):
    listed = [Record(offset + index, 0, b"k", b"value") for index in range(2)]
    return write(
        listed,
        base_offset=offset,
        last_offset=offset + 1,
        section=section,
        count=count,
        attributes=attributes,
    )


def test_small_neighbours_are_decoded_as_one():
    """A hundred batches of two records are one result; a large batch is a result of its own."""
    large = write([Record(200 + index, 0, None, bytes(20_000)) for index in range(100)], base_offset=200)
    blob = b"".join(small(2 * index) for index in range(100)) + large
    decoded = list(decode_batches(iter_batches(blob, "topic", 0)))
    assert [len(each) for each in decoded] == [200, 100]
    assert np.concatenate([each.offset for each in decoded]).tolist() == list(range(300))


def test_neighbours_with_other_timestamp_types_are_not_mixed():
    """Each result has one type."""
    blob = small(0) + small(2, attributes=LOG_APPEND_TIME) + small(4, attributes=LOG_APPEND_TIME) + small(6)
    decoded = list(decode_batches(iter_batches(blob, "topic", 0)))
    assert [(each.timestamp_type, len(each)) for each in decoded] == [(0, 2), (1, 4), (0, 2)]


def test_batches_outside_the_range_are_not_even_checked():
    """A fetch may begin in the middle of a batch and return more than requested."""
    blob = bytearray(small(0) + small(2) + small(4))
    blob[-1] ^= 1
    blob[70] ^= 1
    (decoded,) = decode_batches(iter_batches(bytes(blob), "topic", 0), start=2, end=4)
    assert decoded.offset.tolist() == [2, 3]
    assert list(decode_batches(iter_batches(bytes(blob), "topic", 0), start=6)) == []


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("bad", [{"section": b"no records"}, {"count": 3}, {"count": -1}, {"attributes": 4}])
def test_the_damaged_batch_of_a_group_is_the_one_named(bad, check_crc):
    """The other batches are not blamed."""
    blob = small(0) + small(2) + small(4, **bad) + small(6)
    with pytest.raises(CorruptBatch, match=r"^record batch of topic-0 at offset 4 "):
        list(decode_batches(iter_batches(blob, "topic", 0), check_crc=check_crc))


def test_a_wrong_checksum_in_a_group_is_the_one_named():
    """Also if the damaged batch could be decoded."""
    blob = bytearray(small(0) + small(2) + small(4))
    blob[-2] ^= 1
    (decoded,) = decode_batches(iter_batches(bytes(blob), "topic", 0), check_crc=False)
    assert decoded.value[5].as_py() == b"valud"
    with pytest.raises(CorruptBatch, match="topic-0 at offset 4 has CRC"):
        list(decode_batches(iter_batches(bytes(blob), "topic", 0)))


def test_a_record_does_not_reach_into_the_next_batch():
    """Two sections that are only valid together are two damaged batches."""
    both = body([Record(0, 0, b"k", b"value" * 3), Record(1, 0, b"k", b"value")], 0, 0)
    blob = small(0, section=both[:20], count=1) + small(2, section=both[20:], count=1)
    with pytest.raises(CorruptBatch, match="record batch of topic-0 at offset 0 with 1 records"):
        list(decode_batches(iter_batches(blob, "topic", 0)))


def test_batches_whose_offsets_overlap_are_refused():
    """Each batch alone is valid; together they would repeat records."""
    with pytest.raises(
        CorruptBatch, match="2 record batches from topic-0 at offset 5 on: its offsets do not rise"
    ):
        list(decode_batches(iter_batches(small(5) + small(6), "topic", 0)))


LISTED = [
    Record(offset, 0, b"key", b"value", (("h", b"1"),) if offset % 4 == 3 else ()) for offset in range(12)
]
CLEAN = body(LISTED, 0, 0)


@settings(max_examples=300)
@given(st.integers(0, len(CLEAN) - 1), st.integers(0, 255), st.sampled_from([None, "zstd"]))
def test_no_damaged_byte_does_worse_than_a_clear_error(position, value, codec):
    """Unchecked, a byte may change content, but never reads beyond the buffer or raises another error."""
    section = CLEAN[:position] + bytes([value]) + CLEAN[position + 1 :]
    compress = None if codec is None else Compressor(codec).compress
    batch = raw(write(LISTED, section=section, compress=compress, attributes=0 if codec is None else 4))
    try:
        decoded = decode_batch(batch)
    except CorruptBatch:
        assert section != CLEAN
        return
    assert len(decoded) == len(LISTED)
    decoded.key.validate(full=True)
    decoded.value.validate(full=True)
    if section == CLEAN:
        assert rows(decoded) == LISTED


@pytest.mark.parametrize(("length", "other"), [(b"\x01", b"\x03"), (b"\x01", b"\xff\xff\xff\xff\x0f")])
def test_every_negative_length_is_null(length, other):
    """Brokers do not check compressed batches; Java's consumers read any negative length as null."""
    read = []
    for each in (length, other):
        fields = b"\x00\x00\x00" + each + each + b"\x02" + b"\x02a" + each  # one header, its key "a"
        section = varint(len(fields)) + fields
        read.append(rows(decode_batch(damaged(section, compress=gzip.compress, attributes=1))))
    assert read[0] == read[1] == [Record(0, 0, None, None, (("a", None),))]


def many_headers(count, records=1):
    """A batch of records with this many headers each, every third of them null."""
    return raw(write([Record(n, 0, b"k", b"v", headers(count)) for n in range(records)]))


def headers(count):
    return tuple(("k" * (n % 3), None if n % 3 == 0 else b"v" * (n % 200)) for n in range(count))


@pytest.mark.parametrize("records", [1, 2, 64, 65, 90])
def test_records_with_many_headers_are_read(records):
    """A few are parsed one by one, many in rounds: the result is the same."""
    expected = [Record(n, 0, b"k", b"v", headers(300)) for n in range(records)]
    assert rows(decode_batch(many_headers(300, records))) == expected


def test_one_record_of_many_headers_among_others_is_read():
    """Rounds for the headers that all have, one by one for the rest."""
    few = (("a", b"1"), ("b", None))
    many = tuple((f"h{n}", bytes([n % 256])) for n in range(500))
    written = [Record(n, 0, None, b"v", many if n == 33 else few) for n in range(100)]
    assert rows(decode_batch(raw(write(written)))) == written


def test_many_headers_take_no_array_operation_each(monkeypatch):
    """An array operation takes as long as a dozen headers: 38 us each were 4 s for a record of 100,000."""
    calls = []
    original = record_fields.read_varints
    monkeypatch.setattr(record_fields, "read_varints", lambda *given: calls.append(1) or original(*given))
    assert len(decode_batch(many_headers(100_000)).headers[0]) == 100_000
    assert len(calls) < 10


def test_more_headers_than_allowed_are_refused_where_they_are_read():
    """The error has record, setting and the offset to skip; a reader without headers never counts them."""
    batch = many_headers(11)
    limits = DecodeLimits(max_record_headers=10)
    with pytest.raises(
        CorruptBatch, match=r"topic-3 at offset 0 .* 11 headers, .* eos\.max\.record\.headers"
    ):
        decode_batch(batch, limits=limits)
    written = [Record(n, 0, b"k", b"v", headers(11 if n in (42, 45) else 2)) for n in range(40, 50)]
    among = raw(write(written, base_offset=40))
    neighbour = raw(write([Record(50, 0, None, None)], base_offset=50))
    for read in (
        decode_batch(among, start=43, end=45, limits=limits),
        decode_batch(among, end=42, limits=limits),
    ):
        assert rows(read) == [record for record in written if record.offset in read.offset]
    with pytest.raises(CorruptBatch) as raised:
        list(decode_batches([among, neighbour], limits=limits))
    assert raised.value.message == (
        "record of topic-3 at offset 42 is refused: it has 11 headers, more than 10, see "
        "eos.max.record.headers (2 such records in its batch); "
        'skip_offsets=[["topic", 3, 42, 43]] goes on behind it'
    )
    assert rows(decode_batch(batch, limits=limits, headers=False)) == [Record(0, 0, b"k", b"v")]
    assert decode_batch(batch, limits=DecodeLimits(max_record_headers=11)).headers is not None


@pytest.mark.parametrize(
    "header",
    [b"\x01", b"\x7e", b"\x02a\x7e", b"\x02a\xff\xff\xff\xff\xff\xff\x01", b"\x02a", b"\x02a\x02"],
)
def test_a_header_that_cannot_be_is_refused(header):
    """Null keys, lengths beyond the record, endless varints; both ways of parsing agree."""
    fields = b"\x00\x00\x00\x01\x01\x02" + header
    with pytest.raises(CorruptBatch, match="topic-3 at offset 0"):
        decode_batch(damaged(varint(len(fields)) + fields))


def test_a_batch_over_the_budget_names_its_place_and_the_setting():
    """Batches that are too large only together are read one by one."""
    limits = DecodeLimits(max_bytes=10_000)

    def holding(offset, size):
        record = Record(offset, 0, None, bytes(size))
        return raw(write([record], base_offset=offset, compress=gzip.compress, attributes=1))

    batches = [holding(offset, 4_000) for offset in range(5)]
    assert [len(batch) for batch in decode_batches(batches, limits=limits)] == [1] * 5
    assert [len(batch) for batch in decode_batches(batches)] == [5]
    with pytest.raises(CorruptBatch, match=r"topic-3 at offset 5 .* 10000 bytes, see eos\.max\.batch\.bytes"):
        list(decode_batches([*batches, holding(5, 20_000)], limits=limits))


def test_a_batch_is_charged_for_its_records_and_headers():
    """They take many times their bytes; columns that are not read do not count."""
    batch = raw(write([Record(n, 0, None, None, headers(2)) for n in range(10)]))
    size = len(batch.records)
    records, all_of_it = size + 10 * RECORD_BYTES, size + 10 * RECORD_BYTES + 20 * HEADER_BYTES

    def read(most, **wanted):
        return len(decode_batch(batch, limits=DecodeLimits(max_bytes=most), **wanted))

    assert read(all_of_it) == read(records, headers=False) == 10
    assert read(records + 2 * HEADER_BYTES, start=9) == 1
    with pytest.raises(
        CorruptBatch, match=r"topic-3 at offset 0 .* 20 headers take .* eos\.max\.batch\.bytes"
    ):
        read(all_of_it - 1)
    with pytest.raises(
        CorruptBatch, match=r"topic-3 at offset 0 .* 10 records take .* eos\.max\.batch\.bytes"
    ):
        read(records - 1, headers=False)


def test_a_claimed_number_of_records_is_no_cost():
    """The error describes the problem: a larger budget would not help."""
    with pytest.raises(CorruptBatch, match="14 bytes cannot hold them"):
        decode_batch(
            damaged(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, count=3), limits=DecodeLimits(max_bytes=100)
        )
