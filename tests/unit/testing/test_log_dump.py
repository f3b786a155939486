"""The log dump against the ledger: exactly what was claimed is committed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.log_dump import DumpedBatch, dumped, log_complaints
from tests.support.run_records import run_record


def data(first, last, sequence, epoch, *, transactional=True):
    return DumpedBatch(3, first, last, last - first + 1, sequence, 7, epoch, transactional)


def marker(offset, epoch, kind):
    return DumpedBatch(3, offset, offset, 1, -1, 7, epoch, True, kind)


LOG = [
    data(0, 4, 0, 1),
    marker(5, 2, "ABORT"),
    data(6, 7, 0, 3),
    data(8, 8, 2, 3),
    marker(9, 3, "COMMIT"),
]
RECEIPT = PartitionReceipt(
    topic="out-topic",
    partition=3,
    first_offset=6,
    last_offset=8,
    records=3,
    size=1,
    batches=2,
    last_sequence=2,
)
RECORD = run_record(receipts=(RECEIPT,), producer=ProducerIdentity("id", 7, 3))


def complaints(lines, *records):
    return list(log_complaints(lines, records, "out-topic"))


def test_a_log_that_holds_what_was_claimed_is_accepted():
    """An aborted attempt, then the committed one, which matches its receipt."""
    assert complaints(LOG, RECORD) == []


def test_a_commit_that_no_run_claims_is_found():
    """Another client's records, or a second commit of the same work."""
    (text,) = complaints(LOG)
    assert "the ledger claims (first, last offset, records) None, the log holds (6, 8, 3)" in text


def test_a_claim_that_the_log_does_not_hold_is_found():
    """A receipt for records that do not exist, or not at these offsets."""
    wrong = replace(RECORD, receipts=(replace(RECEIPT, records=4, last_offset=9),))
    (text,) = complaints(LOG, wrong)
    assert "claims (first, last offset, records) (6, 9, 4)" in text
    aborted = [*LOG[:4], marker(9, 3, "ABORT")]
    for lines in (LOG[:2], aborted):
        (text,) = complaints(lines, RECORD)
        assert text.endswith("claims (first, last offset, records) (6, 8, 3), the log holds None")


def test_a_batch_outside_of_any_transaction_is_found():
    """Readers would see it, whatever happens to the run."""
    (text,) = complaints([*LOG, data(10, 10, 0, 4, transactional=False)], RECORD)
    assert "outside of any transaction" in text


def test_a_gap_or_a_repetition_of_sequences_is_found():
    """Within one epoch sequences count the records."""
    (text,) = complaints([*LOG[:3], data(8, 8, 0, 3), LOG[4]], RECORD)
    assert "sequence 0, its transaction stood at epoch 3 sequence 2" in text


def test_a_batch_of_another_epoch_in_a_transaction_is_found():
    """A fenced producer still writes: its batch would become visible with its successor's."""
    (text,) = complaints([*LOG[:3], data(8, 8, 2, 2), LOG[4]], RECORD)
    assert "epoch 2 sequence 2, its transaction stood at epoch 3 sequence 2" in text


def test_an_open_end_is_found():
    """A transaction without a marker holds every reader back."""
    (text,) = complaints([*LOG, data(10, 10, 0, 4)], RECORD)
    assert "ends with an open transaction of producer 7" in text


BUILT = {
    "magic": 2,
    "compression_type": 0,
    "is_transactional": True,
    "producer_id": 7,
    "producer_epoch": 3,
    "batch_size": 9999,
}


def segment(value=b"v"):
    """A batch of a transaction, as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(base_sequence=0, **BUILT)
    for offset in range(2):
        builder.append(offset, timestamp=1, key=b"k", value=value, headers=[])
    return bytes(builder.build())


def test_segments_are_read():
    """Header fields of a batch as a producer writes it."""
    assert list(dumped(segment(), 3)) == [DumpedBatch(3, 0, 1, 2, 0, 7, 3, True)]


class ControlBatch(DefaultRecordBatchBuilder):
    """A batch whose one record is a marker."""

    def _get_attributes(self, *arguments, **named):
        return super()._get_attributes(*arguments, **named) | self.CONTROL_MASK


@pytest.mark.parametrize(("kind", "name"), [(0, "ABORT"), (1, "COMMIT")])
def test_markers_are_told_apart(kind, name):
    """The type is in the key of the marker's record, after a version (ControlRecordType)."""
    builder = ControlBatch(base_sequence=-1, **BUILT)
    builder.append(0, timestamp=1, key=bytes([0, 0, 0, kind]), value=bytes(6), headers=[])
    batches = [*dumped(segment() + bytes(builder.build()), 3)]
    assert [batch.marker for batch in batches] == ["", name]


def test_a_damaged_batch_is_an_error():
    """Its checksum is wrong."""
    with pytest.raises(EmbeddedKafkaError, match="damaged batch at 0"):
        list(dumped(segment()[:-1] + b"!", 3))
