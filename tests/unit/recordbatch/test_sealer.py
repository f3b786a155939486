"""Sealed batches: transactional, bounded, in order, complete, from columns of any Arrow type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import ProcessFailed, RecordRefused, RecordTooLarge
from airflow_eos.recordbatch import sealer as seal_module
from airflow_eos.recordbatch.compression import Codec
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import HEADER_BYTES, BatchHeader
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE
from tests.support.record_batches import raw, rows

NOISE = np.random.default_rng(7)


def numbered(count, size=20):
    return pa.array([b"%08d" % number + b"." * (size - 8) for number in range(count)], pa.binary())


def noise(count, size):
    return pa.array([NOISE.bytes(size) for _ in range(count)], pa.binary())


def zeros(count):
    return np.zeros(count, np.int32)


def read(batches):
    """Return the values of each partition, in the order of sending."""
    values = {}
    for batch in batches:
        decoded = decode_batch(raw(batch.data), check_crc=False)
        assert len(decoded) == batch.records
        values.setdefault(batch.partition, []).extend(decoded.value.to_pylist())
    return values


@pytest.mark.parametrize("codec", list(Codec))
def test_every_batch_is_transactional(codec):
    """A batch without the bit is visible after an abort: whole ones, split ones and large ones have it."""
    value = pa.concat_arrays([noise(40, 200), noise(1, 5000), numbered(500)])
    batches = list(
        seal(value, np.arange(541, dtype=np.int32) % 5, topic="t", compressor=codec.label, batch_bytes=3000)
    )
    split = list(
        seal(
            noise(50, 200),
            zeros(50),
            topic="t",
            compressor=codec.label,
            batch_bytes=9000,
            max_message_bytes=4000,
        )
    )
    assert len(batches) > 5
    assert len(split) > 2
    for batch in batches + split:
        header = BatchHeader.unpack(batch.data)
        assert header.is_transactional
        assert header.attributes == 0x10 | codec


def test_identity_sequence_and_checksum_are_left_to_the_sender():
    """Everything else in the header is final."""
    (batch,) = seal(numbered(3), zeros(3), topic="t", timestamp=np.array([7, 9, 8]), compressor="none")
    header = BatchHeader.unpack(batch.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.crc) == (-1, -1, -1, 0)
    assert (header.base_offset, header.leader_epoch, header.magic) == (0, -1, 2)
    assert (header.record_count, header.last_offset_delta) == (3, 2)
    assert (header.base_timestamp, header.max_timestamp, batch.max_timestamp) == (7, 9, 9)
    assert header.size == len(batch.data)


@given(
    st.lists(st.integers(0, 6), max_size=200),
    st.integers(100, 3000),
    st.sampled_from(["none", "zstd"]),
    st.sampled_from([seal_module._BLOCK_BYTES, 500]),
)
def test_each_partition_holds_its_records_in_input_order(partitions, batch_bytes, codec, block_bytes):
    """The order is stable, whatever the bounds of batches and encoding blocks."""
    value = numbered(len(partitions), 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal_module, "_BLOCK_BYTES", block_bytes)
        batches = list(
            seal(value, np.array(partitions, np.int32), topic="t", compressor=codec, batch_bytes=batch_bytes)
        )
    expected = {}
    for row, partition in zip(value.to_pylist(), partitions, strict=True):
        expected.setdefault(partition, []).append(row)
    assert read(batches) == expected
    assert [batch.partition for batch in batches] == sorted(batch.partition for batch in batches)


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=60), st.integers(200, 5000))
def test_batches_keep_their_bound_and_are_not_needlessly_small(sizes, batch_bytes):
    """No batch of several records exceeds the bound; no two neighbours would fit into one batch."""
    value = pa.array([bytes(size) for size in sizes], pa.binary())
    batches = list(seal(value, zeros(len(sizes)), topic="t", compressor="none", batch_bytes=batch_bytes))
    bodies = [len(batch.data) - HEADER_BYTES for batch in batches]
    for batch, body in zip(batches, bodies, strict=True):
        assert batch.records == 1 or body <= batch_bytes
    overhead = seal_module._RECORD_OVERHEAD
    for index, batch in enumerate(batches[:-1]):
        following = sum(each.records for each in batches[: index + 1])
        assert bodies[index] + overhead * (batch.records + 1) + sizes[following] > batch_bytes
    assert sum(batch.records for batch in batches) == len(sizes)


def test_a_record_larger_than_a_batch_gets_a_batch_of_its_own():
    """Its neighbours are not in it."""
    value = pa.array([b"a", b"b" * 5000, b"c"], pa.binary())
    batches = list(seal(value, zeros(3), topic="t", compressor="none", batch_bytes=1000))
    assert [batch.records for batch in batches] == [1, 1, 1]
    assert read(batches) == {0: [b"a", b"b" * 5000, b"c"]}


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_record_over_the_topics_limit_is_refused_before_anything_is_sent(codec):
    """The message names topic, partition, size and limit."""
    value = pa.concat_arrays([noise(1, 100), noise(1, 3000)])
    message = r"for orders-4 takes 3\d\d\d bytes .*max\.message\.bytes of 2000: raise it"
    with pytest.raises(RecordTooLarge, match=message):
        list(seal(value, zeros(2) + 4, topic="orders", compressor=codec, max_message_bytes=2000))


def test_a_record_that_only_compression_brings_under_the_limit_is_sealed():
    """The broker checks the batch as it was sent."""
    value = pa.array([bytes(100_000)], pa.binary())
    (batch,) = seal(value, zeros(1), topic="t", compressor="zstd", max_message_bytes=2000)
    assert read([batch]) == {0: [bytes(100_000)]}


@pytest.mark.parametrize("partitions", [1, 3])
def test_batches_that_come_out_too_large_are_split_until_they_fit(partitions):
    """Incompressible records, in batches planned too large; order and content stay."""
    value = noise(120, 300)
    target = (np.arange(120) % partitions).astype(np.int32)
    batches = list(
        seal(value, target, topic="t", compressor="zstd", batch_bytes=100_000, max_message_bytes=5000)
    )
    assert all(len(batch.data) <= 5000 for batch in batches)
    assert all(batch.records > 1 for batch in batches)
    expected = {
        part: [value[row].as_py() for row in np.flatnonzero(target == part)] for part in range(partitions)
    }
    assert read(batches) == expected


def test_the_default_bound_fits_a_topic_with_a_small_limit():
    """Planned below max.message.bytes, so that nothing is compressed twice."""
    batches = list(seal(noise(300, 100), zeros(300), topic="t", compressor="none", max_message_bytes=4000))
    assert all(len(batch.data) <= 4000 for batch in batches)
    assert min(batch.records for batch in batches[:-1]) > 25


def test_no_rows_give_no_batches():
    """An empty result is legal, and nothing is sent."""
    assert list(seal(pa.array([], pa.binary()), zeros(0), topic="t")) == []
    assert list(seal(pa.chunked_array([], pa.binary()), zeros(0), topic="t")) == []


def test_a_thousand_partitions_get_one_batch_each():
    """Each has a few records, and none is missing."""
    target = (np.arange(5000) % 1000).astype(np.int32)
    batches = list(seal(numbered(5000), target, topic="t", compressor="none"))
    assert [batch.partition for batch in batches] == list(range(1000))
    assert {batch.records for batch in batches} == {5}


@pytest.mark.parametrize("largest", [254, 255, 256, 300, 65_535, 65_536, 70_000])
def test_partition_numbers_of_any_size_are_sorted_rightly(largest):
    """Sorting narrows partition numbers only if they fit."""
    target = np.array([largest, 3, 44, largest - 1, largest, 44], np.int32)
    batches = list(seal(numbered(6), target, topic="t", compressor="none"))
    assert [batch.partition for batch in batches] == [3, 44, largest - 1, largest]
    assert read(batches)[largest] == [numbered(6)[0].as_py(), numbered(6)[4].as_py()]


VALUES = [b"one", None, b"", b"three and more", b"\x66our"]
AS_TEXT = [value if value is None else value.decode() for value in VALUES]
FORMS = {
    "binary": pa.array(VALUES, pa.binary()),
    "large_binary": pa.array(VALUES, pa.large_binary()),
    "string": pa.array(AS_TEXT, pa.string()),
    "large_string": pa.array(AS_TEXT, pa.large_string()),
    "binary_view": pa.array(VALUES, pa.binary_view()),
    "string_view": pa.array(AS_TEXT, pa.string_view()),
    "slice": pa.array([b"before", *VALUES, b"behind"], pa.binary()).slice(1, 5),
    "large slice": pa.array(["before", *AS_TEXT, "behind"], pa.large_string()).slice(1, 5),
    "chunks": pa.chunked_array([VALUES[:2], [], VALUES[2:]], pa.binary()),
    "one chunk": pa.chunked_array([AS_TEXT], pa.string()),
    "slice of chunks": pa.chunked_array(
        [[b"before", *VALUES[:2]], [*VALUES[2:], b"behind"]], pa.binary()
    ).slice(1, 5),
    "bytes under a null": pa.Array.from_buffers(
        pa.binary(),
        5,
        [
            pa.py_buffer(b"\x1d"),
            pa.py_buffer(np.array([0, 3, 9, 9, 23, 27], np.int32)),
            pa.py_buffer(b"onehiddenthree and morefour"[:3] + b"hidden" + b"three and more" + b"four"),
        ],
    ),
}


@pytest.mark.parametrize("order", [[0, 0, 0, 0, 0], [1, 0, 1, 0, 1]])
@pytest.mark.parametrize("form", FORMS)
def test_every_arrow_form_of_bytes_is_the_same_to_the_encoder(form, order):
    """Keys and values, contiguous and gathered."""
    column = FORMS[form]
    got = []
    for batch in seal(column, np.array(order, np.int32), topic="t", key=column, compressor="none"):
        got += [(row.key, row.value) for row in rows(decode_batch(raw(batch.data), check_crc=False))]
    expected = [VALUES[row] for row in np.argsort(order, kind="stable")]
    assert got == [(value, value) for value in expected]


def test_fixed_size_and_null_columns_are_taken_too():
    """A digest as key, and a value column that Spark typed as void."""
    digests = pa.array([b"0123", b"4567"], pa.binary(4))
    (batch,) = seal(pa.nulls(2), zeros(2), topic="t", key=digests)
    assert [(row.key, row.value) for row in rows(decode_batch(raw(batch.data), check_crc=False))] == [
        (b"0123", None),
        (b"4567", None),
    ]


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_column_without_bytes_is_named_with_its_type(column):
    """Numbers are not converted to text."""
    columns = {"value": numbered(2), "key": None, column: pa.array([1, 2])}
    with pytest.raises(ProcessFailed, match=f"column '{column}' has type int64; cast it to binary or string"):
        list(seal(columns["value"], zeros(2), topic="t", key=columns["key"]))


MOMENT = 1_700_000_000_123


@pytest.mark.parametrize(
    "column",
    [
        np.array([MOMENT, MOMENT + 1]),
        pa.array([MOMENT, MOMENT + 1]),
        pa.chunked_array([[MOMENT], [MOMENT + 1]]),
    ],
)
def test_timestamps_are_milliseconds(column):
    """In every form that the sinks' contracts allow."""
    (batch,) = seal(numbered(2), zeros(2), topic="t", timestamp=column)
    assert decode_batch(raw(batch.data), check_crc=False).timestamp.tolist() == [MOMENT, MOMENT + 1]


@pytest.mark.parametrize("column", [None, pa.array([None, 5], pa.int64())])
def test_missing_timestamps_are_the_present(column, monkeypatch):
    """As with a producer."""
    monkeypatch.setattr("airflow_eos.recordbatch.sink_columns.time.time_ns", lambda: MOMENT * 1_000_000 + 999)
    (batch,) = seal(numbered(2), zeros(2), topic="t", timestamp=column)
    present = decode_batch(raw(batch.data), check_crc=False).timestamp.tolist()
    assert present[0] == MOMENT
    assert present[1] == (5 if column is not None and column.null_count == 1 else MOMENT)


LISTS = [[("a", b"1"), ("a", None), ("", b"")], None, [], [("ключ", b"\x00")]]
PAIRS = [[{"key": key, "value": value} for key, value in each or []] for each in LISTS]
STRUCT = pa.struct([pa.field("key", pa.large_string(), nullable=False), ("value", pa.large_binary())])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(LISTS, HEADERS_TYPE),
        pa.array([PAIRS[0], None, *PAIRS[2:]], pa.large_list(STRUCT)),
        pa.chunked_array([LISTS[:1], LISTS[1:]], HEADERS_TYPE),
        pa.array([[("before", b"")], *LISTS, [("behind", b"")]], HEADERS_TYPE).slice(1, 4),
    ],
)
def test_headers_keep_order_repeated_keys_and_null_values(column):
    """In every list type; null and empty lists mean no headers."""
    target = np.array([1, 0, 1, 0], np.int32)
    first, second = seal(numbered(4), target, topic="t", headers=column, compressor="none")
    assert decode_batch(raw(first.data), check_crc=False).headers.to_pylist() == [PAIRS[1] or None, PAIRS[3]]
    assert decode_batch(raw(second.data), check_crc=False).headers.to_pylist() == [PAIRS[0], PAIRS[2] or None]


def test_hidden_headers_under_a_null_list_are_not_written():
    """Arrow allows entries under a null."""
    flat = pa.array([("hidden", b""), ("seen", b"")], HEADERS_TYPE.value_type)
    column = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), flat, mask=pa.array([True, False]), type=HEADERS_TYPE
    )
    (batch,) = seal(numbered(2), zeros(2), topic="t", headers=column)
    assert decode_batch(raw(batch.data), check_crc=False).headers.to_pylist() == [
        None,
        [{"key": "seen", "value": b""}],
    ]


@pytest.mark.parametrize("listed", [[[(None, b"v")]], [[None]]])
def test_a_header_without_a_key_is_refused(listed):
    """Kafka's header keys are never null."""
    with pytest.raises(RecordRefused, match="header without a key"):
        list(seal(numbered(1), zeros(1), topic="t", headers=pa.array(listed, HEADERS_TYPE)))


def test_a_header_key_that_is_not_utf8_is_refused():
    """Kafka's header keys are text: some clients cannot read the record, nor continue after it."""
    key = pa.array([b"good", b"\xffA"], pa.binary()).view(pa.string())
    flat = pa.StructArray.from_arrays([key, pa.array([b"", b""])], ["key", "value"])
    column = pa.ListArray.from_arrays([0, 1, 2], flat)
    with pytest.raises(RecordRefused, match="header whose key is not UTF-8"):
        list(seal(numbered(2), zeros(2), topic="t", headers=column))
    assert list(seal(numbered(1), zeros(1), topic="t", headers=column.slice(0, 1)))


def test_rows_and_partitions_must_agree():
    """A caller's mistake, not data."""
    with pytest.raises(ValueError, match="3 values but 2 partitions"):
        list(seal(numbered(3), zeros(2), topic="t"))


def test_sealing_leaves_results_of_earlier_calls_alone():
    """Buffers are reused, but results are not part of them."""
    first = list(seal(numbered(100), zeros(100), topic="t", compressor="none"))
    again = list(seal(noise(100, 20), zeros(100), topic="t", compressor="none"))
    assert read(first) == {0: numbered(100).to_pylist()}
    assert read(again) != read(first)
