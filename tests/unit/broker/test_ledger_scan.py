"""Look-ups find what a read_committed reader would find, by searching for the bytes of the keys."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.broker.ledger_log import scan as ledger_scan
from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery, needles
from airflow_eos.broker.ledger_log.records import records_of
from airflow_eos.broker.ledger_log.scan import committed_values, raw_entries
from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry, LedgerValue
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.signature import LedgerKey, SignedRecord
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.isolation import data_batches
from tests.support.hand_written_log import HandWrittenLog as Log
from tests.support.ledger_values import text_of, texts
from tests.support.record_batches import ABORT, COMMIT, TRANSACTIONAL, Record, marker, varint, write

WHERE = TopicPartition("ledger", 0)
KEYS = ("run", "run/1", "run/10", "cursor")


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
    assert needles(key)[0] == expected


def last(result):
    """Return the offset of each key's last record that counts as evidence."""
    return {key: max(r.offset for r in result.rejected if r.key == key) for key, _, _ in result.rejected}


@pytest.fixture
def log(monkeypatch):
    log = Log()
    log.sizes = []

    def fetch_answers(connections, tp, start, end, isolation="read_committed", max_bytes=0):
        assert (connections, tp) == ("connections", WHERE)
        return log.answers(start, end, isolation, log.sizes)

    monkeypatch.setattr(ledger_scan, "fetch_answers", fetch_answers)
    return log


values = st.sampled_from(["a", "run/1", "\x0arun/1", None])
steps = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from([1, 2, 3, None]),
        st.lists(st.tuples(st.sampled_from(KEYS), values), min_size=1, max_size=3),
    ),
    st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.none()),
)


@given(st.lists(steps, max_size=40), st.lists(st.integers(1, 5), max_size=10))
def test_committed_values_are_those_of_a_read_committed_reader(history, sizes):
    """For every history of three interleaved producers, and every way in which brokers cut their answers.

    A record outside of transactions is not a value, and is named unless a later record of ours exists.
    """
    log = Log()
    for act, producer, rows in history:
        if act == "write":
            log.write(producer, *rows)
        elif producer in log.first:
            log.finish(producer, COMMIT if act == "commit" else ABORT)
    latest, plain, offsets = {}, {}, {}
    for answer in log.answers(0, log.stable, "read_committed", []):
        for batch in data_batches(answer.batches, answer.aborted):
            for offset, key, value, _ in records_of(batch, log.stable):
                if batch.header.is_transactional:
                    latest[key], offsets[key] = value, offset
                else:
                    plain[key] = offset
    expected = {key: value for key, value in latest.items() if value is not None}
    others = {key: offset for key, offset in plain.items() if offset > offsets.get(key, -1)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ledger_scan,
            "fetch_answers",
            lambda *args, isolation="read_committed", max_bytes=0: log.answers(
                args[2], args[3], isolation, sizes
            ),
        )
        wanted = KeyQuery(frozenset(KEYS))
        for many in (200, 0):  # searched for, or all of them decoded
            patch.setattr(ledger_scan, "_MANY_KEYS", many)
            scan = committed_values("connections", WHERE, 0, log.stable, wanted, Evidence())
            assert (texts(scan.committed), last(scan)) == (expected, others)
        wanted = KeyQuery(frozenset(), ("run/",))
        scan = committed_values("connections", WHERE, 0, log.stable, wanted, Evidence())
        assert texts(scan.committed) == {
            key: value for key, value in expected.items() if key.startswith("run/")
        }
        assert last(scan) == {key: offset for key, offset in others.items() if key.startswith("run/")}
        wanted = KeyQuery(frozenset(("run", "run/1")))
        tail = raw_entries("connections", WHERE, log.stable, log.end, wanted, Evidence())

    everything = []
    for answer in log.answers(0, log.end, "read_uncommitted", []):
        for batch in answer.batches:
            if not batch.header.is_control:
                everything += [
                    (o, k, v, batch.header.is_transactional)
                    for o, k, v, _ in records_of(batch, log.end)
                    if k in ("run", "run/1") and o >= log.stable
                ]
    assert [(e.offset, e.key, text_of(e), True) for e in tail.entries if e.kind == "record"] == [
        row for row in everything if row[3]
    ]
    assert last(tail) == {
        key: offset for offset, key, _, is_transactional in everything if not is_transactional
    }


def test_an_aborted_transaction_that_began_in_an_earlier_answer_stays_aborted(log):
    """The broker lists it with every answer that it overlaps; its first offset decides for its batches."""
    log.write(1, ("run", "good"))
    log.finish(1, COMMIT)
    log.write(1, ("other", "x"))
    log.write(1, ("run", "bad"))
    log.finish(1, ABORT)
    log.sizes = [3, 1]
    scan = committed_values("connections", WHERE, 0, log.end, KeyQuery(frozenset({"run"})), Evidence())
    assert texts(scan.committed) == {"run": "good"}


def test_the_tail_has_markers_of_every_producer(log):
    """In offset order, together with the records of the wanted keys."""
    log.write(1, ("open", "x"))
    log.write(2, ("run", "mine"))
    log.finish(2, COMMIT)
    log.write(3, ("unwanted", "y"))
    log.finish(3, ABORT)
    wanted = KeyQuery(frozenset({"run"}))
    assert list(raw_entries("connections", WHERE, log.stable, log.end, wanted, Evidence()).entries) == [
        LedgerEntry(1, 2, "record", "run", LedgerValue("mine", WHERE.partition, 1)),
        LedgerEntry(2, 2, "commit"),
        LedgerEntry(4, 3, "abort"),
    ]


@pytest.mark.parametrize("length", [1, 63, 64, 5000])
def test_a_length_of_too_many_bytes_hides_no_record(log, length):
    """Brokers accept it unchanged; for compaction it is the same key."""
    key = "k" * length
    spelled = bytes((length << 1 & 0x7F | 0x80, length >> 6 & 0x7F | 0x80, length >> 13 | 0x80, 0))
    fields = b"\0\0\0" + spelled + key.encode() + varint(-1) + varint(0)
    log.write(1, (key, "ours"))
    log.finish(1, COMMIT)
    log.batches.append(
        write([Record(log.end, 0, None, None)], base_offset=log.end, section=varint(len(fields)) + fields)
    )
    log.end += 1
    wanted = KeyQuery(frozenset({key}))
    scan = committed_values("connections", WHERE, 0, log.end, wanted, Evidence())
    assert (texts(scan.committed), last(scan)) == ({key: "ours"}, {key: 2})
    assert last(raw_entries("connections", WHERE, 0, log.end, wanted, Evidence())) == {key: 2}


def test_a_batch_that_holds_no_text_hides_no_record(log):
    """Its other records count for a compaction."""
    batch = [Record(0, 0, b"run", None), Record(1, 0, b"\xff", b"\xff"), Record(2, 0, b"run/1", b"\xff")]
    log.batches.append(write(batch))
    log.end = 3
    scan = committed_values("connections", WHERE, 0, 3, KeyQuery(frozenset(KEYS)), Evidence())
    assert (texts(scan.committed), last(scan)) == ({}, {"run": 0, "run/1": 2})


def test_a_batch_that_cannot_be_read_hides_no_key(log):
    """Outside of a transaction it is ignored, but its keys count as taken; inside one it is an error."""
    broken = write([Record(0, 0, b"run", None), Record(1, 0, b"other", None)], count=1)
    log.batches.append(broken)
    log.end = 2
    scan = committed_values("connections", WHERE, 0, 2, KeyQuery(frozenset(KEYS)), Evidence())
    above = raw_entries("connections", WHERE, 0, 2, KeyQuery(frozenset(KEYS)), Evidence())
    assert not texts(scan.committed)
    assert last(scan) == last(above) == {"run": 1}
    log.batches[0] = write(
        [Record(0, 0, b"run", None)], count=2, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0
    )
    with pytest.raises(CorruptBatch):
        raw_entries("connections", WHERE, 0, 2, KeyQuery(frozenset(KEYS)), Evidence())


@pytest.mark.parametrize("count", [1, 20])
def test_headers_of_others_hide_no_record(count):
    """Brokers accept hundreds of thousands of headers: they are skipped."""
    many = tuple(("", None) for _ in range(200_000))
    rows = [Record(offset, 0, b"run", None, many if not offset else ()) for offset in range(count)]
    batch = next(iter_batches(write(rows), "ledger", 0))
    assert len(records_of(batch, 100)) == count


@pytest.mark.parametrize("attributes", [0, 1], ids=["plain", "gzip"])
def test_where_there_is_a_key_only_signed_records_count(log, attributes):
    """Below the offset from which on signatures count all do; a signature covers its batch's producer."""
    key = LedgerKey("a-secret-of-length")
    gzip = zlib.compressobj(wbits=31)

    def put(offset, name, value, signature, others=()):
        headers = (*others, ("airflow-eos-signature", signature)) if signature else others
        return Record(offset, 0, name.encode(), value and value.encode(), headers)

    def sign(name, value, producer=(1, 0)):
        return key.sign(SignedRecord("ledger", "id", 0, producer, name, value))

    rows = [
        put(0, "run", "old", None),
        put(1, "run", "ours", sign("run", "ours")),
        put(2, "run", "not signed", None),
        put(3, "run", None, sign("run", "another")),
        put(4, "cursor", "of another", sign("cursor", "of another", (2, 0))),
        put(5, "run/1", "ours", sign("run/1", "ours")),
        put(6, "run/1", None, sign("run/1", None)),
        put(7, "run/10", "hidden", sign("run/10", "hidden"), (("first", b""),)),
    ]
    pack = None if attributes == 0 else lambda section: gzip.compress(section) + gzip.flush()
    batch = write(rows, attributes=TRANSACTIONAL | attributes, producer_id=1, producer_epoch=0, compress=pack)
    log.batches.append(batch)
    log.end = 8
    log.batches.append(marker(COMMIT, 1, 8))
    log.end = 9
    wanted = KeyQuery(frozenset(KEYS))
    scan = committed_values("connections", WHERE, 0, log.end, wanted, Evidence(key, "id"))
    assert (texts(scan.committed), last(scan)) == ({"run": "ours"}, {"run": 3, "cursor": 4, "run/10": 7})
    assert all(record.is_unsigned for record in scan.rejected)
    since = Evidence(key, "id", 4)
    scan = committed_values("connections", WHERE, 0, log.end, wanted, since)
    assert (texts(scan.committed), last(scan)) == ({}, {"cursor": 4, "run/10": 7})
    elsewhere = Evidence(key, "of another cluster")
    assert committed_values("connections", WHERE, 0, log.end, wanted, elsewhere).committed == {}


def test_a_value_tells_whether_it_is_signed_on_both_sides_of_the_last_stable_offset(log):
    """A caller without a key also needs it: a ledger with signed records refuses it."""
    rows = [
        Record(0, 0, b"run", b"signed", (("airflow-eos-signature", b"any"),)),
        Record(1, 0, b"cursor", b"unsigned", ()),
    ]
    log.batches += [
        write(rows, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0),
        marker(COMMIT, 1, 2),
    ]
    log.end = 3
    wanted = KeyQuery(frozenset(KEYS))
    expected = {"run": True, "cursor": False}
    committed = committed_values("connections", WHERE, 0, log.end, wanted, Evidence()).committed
    assert {key: value.is_signed for key, value in committed.items()} == expected
    tail = raw_entries("connections", WHERE, 0, log.end, wanted, Evidence()).entries
    assert {entry.key: entry.value.is_signed for entry in tail if entry.value} == expected
