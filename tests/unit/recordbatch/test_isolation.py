"""A read_committed reader sees committed records, all of them and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.isolation import ControlType, control_type, data_batches
from tests.support.record_batches import (
    ABORT,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    Record,
    marker,
    raw,
    rows,
    write,
)


def data(producer, offset, count=1, transactional=True):
    listed = [Record(offset + index, 0, None, b"%d" % producer) for index in range(count)]
    attributes = TRANSACTIONAL if transactional else 0
    return write(listed, base_offset=offset, attributes=attributes, producer_id=producer, producer_epoch=0)


def seen(blobs, aborted):
    """Return the offsets that a reader gets."""
    visible = data_batches(iter_batches(b"".join(blobs), "topic", 0), aborted)
    return [row.offset for batch in visible for row in rows(decode_batch(batch))]


# Producer 1 aborts its first transaction and commits its second; producer 2 commits; 3 has no transaction.
INTERLEAVED = [
    data(1, 0),
    data(2, 1, 2),
    data(3, 3, transactional=False),
    data(1, 4),
    marker(ABORT, 1, 5),
    data(1, 6),
    marker(COMMIT, 1, 7),
    marker(COMMIT, 2, 8),
]


def test_an_aborted_transaction_ends_at_its_own_abort_marker():
    """The same producer's next transaction is data again; others are not affected."""
    assert seen(INTERLEAVED, [(1, 0)]) == [1, 2, 3, 6]


def test_read_uncommitted_sees_all_records_but_no_markers():
    """Control batches are never data."""
    assert seen(INTERLEAVED, None) == [0, 1, 2, 3, 4, 6]


def test_without_aborted_transactions_everything_is_committed():
    """The broker sends the log only up to the last stable offset."""
    assert seen(INTERLEAVED, []) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("aborted", [[(1, 0), (1, 6), (2, 1)], [(2, 1), (1, 6), (1, 0)]])
def test_aborted_transactions_may_come_in_any_order(aborted):
    """Two of one producer, one of another."""
    log = [*INTERLEAVED[:6], marker(ABORT, 1, 7), marker(ABORT, 2, 8), data(1, 9), data(2, 10)]
    assert seen(log, aborted) == [3, 9, 10]


def test_a_transaction_is_aborted_from_its_first_offset_on():
    """Earlier batches of that producer belong to a committed one, whose marker may be compacted away."""
    assert seen([data(1, 0), data(1, 5), marker(ABORT, 1, 6)], [(1, 5)]) == [0]


def test_an_answer_that_begins_inside_an_aborted_transaction_hides_it():
    """Its first offset is before the answer."""
    assert seen([data(1, 50), marker(ABORT, 1, 51), data(1, 52)], [(1, 3)]) == [52]


def test_a_first_offset_inside_a_batch_hides_that_batch():
    """Compaction may remove the first record of a batch: its last offset counts, as in Java."""
    blob = write([Record(9, 0, None, b"")], base_offset=5, attributes=TRANSACTIONAL, producer_id=1)
    assert seen([blob], [(1, 7)]) == []


def test_a_commit_marker_does_not_end_an_aborted_transaction():
    """Only the abort marker does."""
    assert seen([data(1, 0), marker(COMMIT, 1, 1), data(1, 2)], [(1, 0)]) == []


def test_idempotent_batches_of_an_aborted_producer_are_data():
    """Without the transactional bit they belong to no transaction."""
    assert seen([data(1, 0), data(1, 1, transactional=False), marker(ABORT, 1, 2)], [(1, 0)]) == [1]


def test_an_emptied_control_batch_is_no_marker():
    """Compaction removed the record; Java does not change the producer's state either."""
    emptied = write([], base_offset=1, attributes=TRANSACTIONAL | CONTROL, producer_id=1)
    assert control_type(raw(emptied)) is None
    assert seen([data(1, 0), emptied, data(1, 2)], [(1, 0)]) == []
    assert seen([emptied], None) == []


def test_control_batches_without_a_producer_are_no_data():
    """KRaft's own log has them."""
    blob = write([Record(0, 0, struct.pack(">hh", 0, 2), b"")], attributes=CONTROL)
    assert control_type(raw(blob)) is ControlType.UNKNOWN
    assert seen([blob], []) == []


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_markers_are_told_apart(kind):
    """The ledger's look-up uses them to decide single records."""
    assert control_type(raw(marker(kind, 7, 3))) is kind
    assert control_type(raw(data(7, 3))) is None


def test_control_types_are_parsed_as_java_does():
    """Later versions may add fields, later types are unknown, never guessed."""
    assert ControlType.parse(struct.pack(">hh", 0, 1)) is ControlType.COMMIT
    assert ControlType.parse(struct.pack(">hhq", 3, 0, 99)) is ControlType.ABORT
    assert ControlType.parse(struct.pack(">hh", 0, 77)) is ControlType.UNKNOWN


@pytest.mark.parametrize("key", [b"", b"\x00\x00\x00", struct.pack(">hh", -1, 0)])
def test_a_control_key_that_cannot_be_read_is_corruption(key):
    """Ignoring it would show aborted records."""
    with pytest.raises(CorruptBatch, match="batch of topic-0 at offset 4 cannot be read: control record key"):
        seen([marker(ABORT, 1, 4, key=key)], [(1, 0)])


def test_a_damaged_marker_is_noticed():
    """Its checksum is checked like any other."""
    blob = bytearray(marker(ABORT, 1, 4))
    blob[-1] ^= 1
    with pytest.raises(CorruptBatch, match="topic-0 at offset 4 has CRC"):
        seen([bytes(blob)], [])
    assert seen([bytes(blob)], None) == []


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["data", "data", "plain", ABORT, COMMIT])), max_size=40
    ),
    st.data(),
)
def test_any_log_shows_exactly_its_committed_records(steps, draw):
    """Random transactions of four producers, read from any offset, against a model of the outcomes."""
    blobs, committed, aborted, open_since, pending = [], [], [], {}, {}
    for offset, (producer, step) in enumerate(steps):
        if step == "plain" and producer not in open_since:
            blobs.append(data(producer, offset, transactional=False))
            committed.append(offset)
        elif step in (ABORT, COMMIT):
            blobs.append(marker(step, producer, offset))
            listed = pending.pop(producer, [])
            first = open_since.pop(producer, None)
            if step == COMMIT:
                committed += listed
            elif first is not None:
                aborted.append((producer, first, offset))
        else:
            blobs.append(data(producer, offset))
            open_since.setdefault(producer, offset)
            pending.setdefault(producer, []).append(offset)
    stable = min(open_since.values(), default=len(steps))
    start = draw.draw(st.integers(0, stable))
    # A broker's answer: the log up to the last stable offset, and the aborted transactions that overlap it.
    listed = [(producer, first) for producer, first, last in aborted if last >= start and first < stable]
    assert seen(blobs[start:stable], listed) == sorted(row for row in committed if start <= row < stable)


def test_the_filter_is_one_answers_and_starts_clean():
    """The state of one answer never affects the next."""
    assert seen([data(1, 0)], [(1, 0)]) == []
    assert seen([data(1, 1)], []) == [1]
