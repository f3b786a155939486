"""Look-ups find what a read_committed reader would find, by the bytes of the keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.broker import ledger_scan
from airflow_eos.broker.ledger_records import records_of
from airflow_eos.broker.ledger_scan import NoEvidence, Wanted, committed_values, needle, raw_entries
from airflow_eos.model.ledger import LedgerEntry
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.fetch import FetchedAnswer
from tests.support.record_batches import ABORT, COMMIT, TRANSACTIONAL, Record, marker, write

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
    assert needle(key) == expected


class Log:
    """A partition written by hand: batches, and the aborted transactions a broker would report."""

    def __init__(self):
        self.batches = []
        self.end = 0
        self.first = {}  # first offset of each producer's open transaction
        self.aborted = []  # (producer id, first offset, offset of the marker)

    def write(self, producer, *rows):
        """Records of a producer's transaction; of none where it is None."""
        offset = self.end
        if producer is not None:
            self.first.setdefault(producer, offset)
        records = [
            Record(offset + i, 0, key.encode(), None if value is None else value.encode())
            for i, (key, value) in enumerate(rows)
        ]
        self.batches.append(
            write(records, base_offset=offset)
            if producer is None
            else write(
                records, base_offset=offset, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0
            )
        )
        self.end += len(rows)

    def finish(self, producer, kind):
        first = self.first.pop(producer)
        if kind == ABORT:
            self.aborted.append((producer, first, self.end))
        self.batches.append(marker(kind, producer, self.end))
        self.end += 1

    @property
    def stable(self):
        return min(self.first.values(), default=self.end)

    def answers(self, start, end, isolation, sizes):
        """Fetch answers of so many batches each, with nearly all of the next one, as brokers cut it."""
        found = list(iter_batches(b"".join(self.batches), "ledger", 0))
        found = [b for b in found if b.header.next_offset > start and b.header.base_offset < end]
        position, at = start, 0
        for size in [*sizes, len(found)]:
            page = found[at : at + size]
            if not page:
                continue
            at += size
            data = b"".join(bytes(batch.data) for batch in page)
            data += bytes(found[at].data)[:-1] if at < len(found) else b""
            following = page[-1].header.next_offset
            # As a broker reports: transactions whose marker is not below the position, begun below the end.
            aborted = tuple((p, f) for p, f, m in self.aborted if m >= position and f < following)
            yield FetchedAnswer(
                position,
                following,
                data,
                tuple(iter_batches(data, "ledger", 0)),
                aborted if isolation == "read_committed" else None,
            )
            position = following


@pytest.fixture
def log(monkeypatch):
    log = Log()
    log.sizes = []

    def fetch_answers(connections, topic, partition, start, end, isolation="read_committed"):
        assert (connections, topic, partition) == ("connections", *("ledger", 0))
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
    """For every history of three interleaved producers and every way a broker cuts its answers.

    What stands in no transaction is no value, and named where nothing of ours is behind it.
    """
    log = Log()
    for act, producer, rows in history:
        if act == "write":
            log.write(producer, *rows)
        elif producer in log.first:
            log.finish(producer, COMMIT if act == "commit" else ABORT)
    latest, plain, last = {}, {}, {}
    for answer in log.answers(0, log.stable, "read_committed", []):
        for batch in data_batches(answer.batches, answer.aborted):
            for offset, key, value in records_of(batch, log.stable):
                if batch.header.is_transactional:
                    latest[key], last[key] = value, offset
                else:
                    plain[key] = offset
    expected = {key: value for key, value in latest.items() if value is not None}
    others = {key: offset for key, offset in plain.items() if offset > last.get(key, -1)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ledger_scan,
            "fetch_answers",
            lambda *args, isolation="read_committed": log.answers(args[3], args[4], isolation, sizes),
        )
        noted, by_prefix, above = NoEvidence(), NoEvidence(), NoEvidence()
        found = committed_values("connections", WHERE, 0, log.stable, Wanted(frozenset(KEYS)), noted)
        assert (found, noted) == (expected, others)
        wanted = Wanted(frozenset(), ("run/",))
        found = committed_values("connections", WHERE, 0, log.stable, wanted, by_prefix)
        assert found == {key: value for key, value in expected.items() if key.startswith("run/")}
        assert by_prefix == {key: offset for key, offset in others.items() if key.startswith("run/")}
        wanted = Wanted(frozenset(("run", "run/1")))
        tail = raw_entries("connections", WHERE, log.stable, log.end, wanted, above)

    everything = []
    for answer in log.answers(0, log.end, "read_uncommitted", []):
        for batch in answer.batches:
            if not batch.header.is_control:
                everything += [
                    (o, k, v or "", batch.header.is_transactional)
                    for o, k, v in records_of(batch, log.end)
                    if k in ("run", "run/1") and o >= log.stable
                ]
    assert [(e.offset, e.key, e.value, True) for e in tail if e.kind == "record"] == [
        row for row in everything if row[3]
    ]
    assert above == {key: offset for offset, key, _, ours in everything if not ours}


def test_an_aborted_transaction_that_began_in_an_earlier_answer_stays_aborted(log):
    """The broker lists it with every answer it overlaps; its batches are judged by its first offset."""
    log.write(1, ("run", "good"))
    log.finish(1, COMMIT)
    log.write(1, ("other", "x"))
    log.write(1, ("run", "bad"))
    log.finish(1, ABORT)
    log.sizes = [3, 1]
    assert committed_values("connections", WHERE, 0, log.end, Wanted(frozenset({"run"})), NoEvidence()) == {
        "run": "good"
    }


def test_the_tail_has_markers_of_every_producer(log):
    """In offset order, beside the records of the wanted keys."""
    log.write(1, ("open", "x"))
    log.write(2, ("run", "mine"))
    log.finish(2, COMMIT)
    log.write(3, ("unwanted", "y"))
    log.finish(3, ABORT)
    wanted = Wanted(frozenset({"run"}))
    assert list(raw_entries("connections", WHERE, log.stable, log.end, wanted, NoEvidence())) == [
        LedgerEntry(1, 2, "record", "run", "mine"),
        LedgerEntry(2, 2, "commit"),
        LedgerEntry(4, 3, "abort"),
    ]
