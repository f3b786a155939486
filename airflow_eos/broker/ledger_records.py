"""Reads the small batches of a ledger: one to three records of text, or one marker.

:mod:`airflow_eos.recordbatch.decode` reads whole columns by Arrow, which pays from some dozen records on; a
batch of one record takes it 50 times as long as the walk here. Layout of a record (KIP-98), all numbers but
the attributes as zigzag varints::

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value | headers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import HEADER_BYTES, RawBatch
from airflow_eos.recordbatch.isolation import ControlType, control_type

Record = tuple[int, str, str | None]
"""Offset, key and value; None is a tombstone."""

_MORE = 0x80  # a varint goes on
_FEW_RECORDS = 16


def records_of(batch: RawBatch, end: int) -> list[Record]:
    """Return the records of a data batch below offset ``end``.

    :raises CorruptBatch: when it cannot be read, or holds something else than UTF-8 text.
    """
    found: Iterable[tuple[int, bytes | None, bytes | None]]
    if batch.header.codec or batch.header.record_count > _FEW_RECORDS:
        decoded = decode_batch(batch, end=end, headers=False)
        found = zip(decoded.offset.tolist(), decoded.key.to_pylist(), decoded.value.to_pylist(), strict=True)
    else:
        batch.check_crc()
        found = (record for record in _walk(batch) if record[0] < end)
    return [(offset, _text(key, batch) or "", _text(value, batch)) for offset, key, value in found]


def markers_of(batch: RawBatch) -> Iterator[LedgerEntry]:
    """Yield the transaction marker of a control batch, if it holds one.

    :raises CorruptBatch: when it cannot be read.
    """
    kind = _control_type(batch)
    if kind in (ControlType.COMMIT, ControlType.ABORT):
        yield LedgerEntry(
            batch.header.base_offset,
            batch.header.producer_id,
            "commit" if kind is ControlType.COMMIT else "abort",
        )


def _walk(batch: RawBatch) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    data, at = bytes(batch.records), 0
    try:
        for _ in range(batch.header.record_count):
            length, at = _varint(data, at)
            following = at + length
            _, at = _varint(data, at + 1)
            offset_delta, at = _varint(data, at)
            key, at = _string(data, at)
            value, at = _string(data, at)
            if at > following:
                break
            yield batch.header.base_offset + offset_delta, key, value
            at = following
    except IndexError:  # ran behind the end
        at = -1
    if at != len(data):
        raise CorruptBatch(
            f"record batch of {batch.where()} has a right checksum, but its records do not fill it: its "
            "producer wrote it so"
        )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= _MORE:
        value |= (byte - _MORE) << shift
        shift += 7
        at += 1
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), at + 1


def _string(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _text(data: bytes | None, batch: RawBatch) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise CorruptBatch(
            f"the ledger's batch of {batch.where()} holds a record that is no UTF-8 text: another program "
            "writes to the ledger topic; stop it, or choose another ledger topic"
        ) from error


def _control_type(batch: RawBatch) -> ControlType | None:
    """Read the one record of a control batch; in its usual layout without Arrow, as above."""
    batch.check_crc()
    data, at = batch.data, HEADER_BYTES
    # Length below 64, attributes, time and offset delta 0, key of 4 bytes: version (not negative) and type.
    if (
        batch.header.record_count == 1
        and data[at] < _MORE
        and bytes(data[at + 2 : at + 5]) == b"\0\0\x08"
        and data[at + 5] < _MORE
    ):
        return ControlType.parse(bytes(data[at + 5 : at + 9]))
    return control_type(batch, check_crc=False)
