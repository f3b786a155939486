"""Our writer against our reader, and each against kafka-python's; and our reader against the plain writer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from airflow_eos.recordbatch.compression import Codec, Compressor
from airflow_eos.recordbatch.decode import decode_batch, decode_batches
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE, with_headers
from airflow_eos.recordbatch.stamp import stamp
from tests.support.record_batches import Record, payload, raw, records, rows, write

CODECS = [codec.label for codec in Codec]
# Codecs that kafka-python reads and writes without further libraries.
THEIRS = [Codec.NONE, Codec.GZIP, Codec.LZ4]


def sealed(contents, codec, batch_bytes=None):
    """Stamped batches of (timestamp, key, value, headers) rows, all for partition 0."""
    timestamp, key, value, headers = zip(*contents, strict=True) if contents else ([], [], [], [])
    batches = seal(
        pa.array(value, pa.binary()),
        np.zeros(len(value), np.int32),
        topic="t",
        key=pa.array(key, pa.binary()),
        timestamp=np.array(timestamp, np.int64),
        headers=pa.array(headers, HEADERS_TYPE),
        compressor=codec,
        batch_bytes=batch_bytes,
    )
    return [stamp(batch.data, 42, 3, 0) for batch in batches]


def numbered(contents):
    return [Record(offset, *row) for offset, row in enumerate(contents)]


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=30)
@given(contents=records())
def test_what_is_sealed_is_read_again(codec, contents):
    """Null and empty keys and values, tombstones, headers, any timestamps, every codec."""
    decoded = [row for data in sealed(contents, codec) for row in rows(decode_batch(raw(data)))]
    assert decoded == numbered(contents)


@settings(max_examples=40)
@given(contents=records(), batch_bytes=st.integers(50, 2000))
def test_batches_together_hold_every_record_once(contents, batch_bytes):
    """Wherever batches are cut, nothing is lost."""
    batches = [rows(decode_batch(raw(data))) for data in sealed(contents, "none", batch_bytes)]
    assert [row[1:] for batch in batches for row in batch] == contents
    for batch in batches:
        assert [row.offset for row in batch] == list(range(len(batch)))


@pytest.mark.parametrize("codec", [codec.label for codec in THEIRS])
@settings(max_examples=30)
@given(contents=records(min_size=1))
def test_kafka_python_reads_what_is_sealed(codec, contents):
    """Its checksum, header fields and records agree."""
    (data,) = sealed(contents, codec)
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (42, 3, 0)
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert (batch.base_offset, batch.last_offset_delta) == (0, len(contents) - 1)
    assert batch.max_timestamp == max(row[0] for row in contents)
    assert [
        Record(row.offset, row.timestamp, row.key, row.value, tuple(row.headers)) for row in batch
    ] == numbered(contents)


@pytest.mark.parametrize("codec", THEIRS)
@settings(max_examples=30)
@given(contents=records(min_size=1))
def test_what_kafka_python_writes_is_read(codec, contents):
    """kafka-python's builder, with every codec that it has here."""
    builder = DefaultRecordBatchBuilder(2, int(codec), False, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value, headers) in enumerate(contents):
        assert builder.append(offset, timestamp, key, value, list(headers))
    assert rows(decode_batch(raw(bytes(builder.build())))) == numbered(contents)


@pytest.mark.parametrize("codec", list(Codec))
@settings(max_examples=30)
@given(
    contents=records(min_size=1),
    gaps=st.lists(st.integers(0, 5), min_size=40, max_size=40),
    base=st.integers(0, 1 << 40),
    removed=st.integers(0, 9),
)
def test_compacted_batches_keep_the_offsets_of_what_is_left(codec, contents, gaps, base, removed):
    """Holes before, between and after: offsets are read, never counted."""
    offsets = base + np.cumsum(np.array(gaps[: len(contents)]) + 1)
    kept = [Record(int(offset), *row) for offset, row in zip(offsets, contents, strict=True)]
    blob = write(
        kept,
        base_offset=base,
        last_offset=kept[-1].offset + removed,
        attributes=codec,
        compress=Compressor(codec.label).compress,
    )
    batch = raw(blob)
    assert rows(decode_batch(batch)) == kept
    assert batch.header.next_offset == kept[-1].offset + removed + 1


@settings(max_examples=60)
@given(
    contents=st.lists(
        st.tuples(records(max_size=12), st.sampled_from(list(Codec)), st.sampled_from([0, 0, 0, 8])),
        max_size=8,
    ),
    gap=st.integers(0, 3),
    group_bytes=st.sampled_from([200, 1000, 1_000_000]),
    data=st.data(),
)
def test_batches_decoded_together_are_what_they_are_one_by_one(contents, gap, group_bytes, data):
    """Mixed codecs, timestamp types, empty batches and holes, sliced to any range."""
    blobs, offset = [], 5
    for content, codec, kind in contents:
        listed = [Record(offset + index * (1 + gap), *row) for index, row in enumerate(content)]
        last = listed[-1].offset if listed else offset
        options = {
            "attributes": codec | kind,
            "compress": Compressor(codec.label).compress,
            "last_offset": last,
        }
        blobs.append(write(listed, base_offset=offset, **options))
        offset = last + 1 + gap
    batches = list(iter_batches(b"".join(blobs), "topic", 0))
    start = data.draw(st.none() | st.integers(0, offset))
    end = data.draw(st.none() | st.integers(0, offset))
    single = [decode_batch(batch, start=start, end=end) for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_eos.recordbatch.decode._GROUP_BYTES", group_bytes)
        together = list(decode_batches(batches, start=start, end=end))
    kinds = [decoded.timestamp_type for decoded in together for _ in range(len(decoded))]
    assert [row for decoded in together for row in rows(decoded)] == [
        row for decoded in single for row in rows(decoded)
    ]
    assert kinds == [decoded.timestamp_type for decoded in single for _ in range(len(decoded))]


@settings(max_examples=40)
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=10))
def test_timestamps_far_apart_survive(moments):
    """Deltas that overflow 64 bits wrap there and back, as in Java."""
    contents = [(moment, None, b"", ()) for moment in moments]
    (data,) = sealed(contents, "none")
    assert decode_batch(raw(data)).timestamp.tolist() == moments


@settings(max_examples=30)
@given(st.lists(payload, min_size=1, max_size=30), st.integers(1, 400))
def test_many_records_of_the_same_few_payloads_are_found_again(values, times):
    """So many records that they are found by their zeros, with payloads that mislead that search."""
    value = pa.array(values * (1 + times // len(values)), pa.binary())
    batches = seal(value, np.zeros(len(value), np.int32), topic="t", compressor="none")
    decoded = [
        row for batch in batches for row in decode_batch(raw(stamp(batch.data, 1, 1, 0))).value.to_pylist()
    ]
    assert decoded == value.to_pylist()


OWN = [{"key": "own", "value": b"x"}, {"key": "eos.run", "value": None}]


@pytest.mark.parametrize(
    "own",
    [None, [], [None], [OWN, None, [], OWN[:1]], [[], OWN, OWN], [None, OWN], [OWN] * 3 + [None] * 2],
    ids=lambda own: "no column" if own is None else str(len(own)),
)
@pytest.mark.parametrize("chunks", [1, 2])
def test_headers_are_added_to_those_of_every_record(own, chunks):
    """They follow its own, whatever the rest of the batch has; nothing else changes."""
    count = 3 if own is None else len(own)
    columns = {"value": pa.array([b"v%d" % n for n in range(count)], pa.binary())}
    if own is not None:
        columns["headers"] = pa.array(own, HEADERS_TYPE)
    table = pa.table(columns)
    if chunks > 1:
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    marked = with_headers(table, [("eos.run", "run/p/r#1"), ("eos.reprocessing", "1")])
    mark = [{"key": "eos.run", "value": b"run/p/r#1"}, {"key": "eos.reprocessing", "value": b"1"}]
    wanted = [[*(headers or []), *mark] for headers in (own if own is not None else [None] * count)]
    assert marked.column("headers").to_pylist() == wanted
    assert marked.column("value").to_pylist() == table.column("value").to_pylist()
    assert marked.column("headers").combine_chunks().type == HEADERS_TYPE
