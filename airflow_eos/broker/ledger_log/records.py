"""Decodes the small batches of a ledger: one to three text records, or one marker.

:mod:`airflow_eos.recordbatch.decode` decodes whole columns with Arrow; for a batch of one record it takes 50
times as long as the loop here, so only compressed batches are left to it. Layout of a record (KIP-98), all
numbers except the attributes as zigzag varints::

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value | headers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow.compute as pc

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry, LedgerValue
from airflow_eos.model.signature import HEADER
from airflow_eos.recordbatch.decode import DecodedBatch, decode_batch
from airflow_eos.recordbatch.header import RawBatch
from airflow_eos.recordbatch.isolation import ControlType

_HEADER = HEADER.encode()
_MORE = 0x80  # continuation bit of a varint
_ESCAPED = "backslashreplace"


class Record(NamedTuple):
    """A record of the ledger.

    :param value: None for a tombstone.
    :param signature: value of the first header, if it is a signature header.
    """

    offset: int
    key: str
    value: str | None
    signature: bytes | None = None

    def value_in(self, partition: int) -> LedgerValue | None:
        """Return the value with its position in a partition of the ledger; None for a tombstone."""
        if self.value is None:
            return None
        return LedgerValue(self.value, partition, self.offset, self.signature is not None)


_Raw = tuple[int, "bytes | None", "bytes | None", "bytes | None"]


def records_of(batch: RawBatch, end: int) -> list[Record]:
    """Return the records of a data batch below offset ``end``.

    Bytes that are not valid UTF-8 become backslash escapes; this package never writes them.

    :raises CorruptBatch: the batch cannot be decoded.
    """
    raw_records: Iterable[_Raw]
    if batch.header.codec:
        decoded = decode_batch(batch, end=end)
        raw_records = zip(
            decoded.offset.tolist(),
            decoded.key.to_pylist(),
            decoded.value.to_pylist(),
            _signatures(decoded),
            strict=True,
        )
    else:
        batch.check_crc()
        raw_records = (record for record in _walk(batch) if record[0] < end)
    return [
        Record(
            offset,
            (key or b"").decode(errors=_ESCAPED),
            None if value is None else value.decode(errors=_ESCAPED),
            signature,
        )
        for offset, key, value, signature in raw_records
    ]


def markers_of(batch: RawBatch) -> Iterator[LedgerEntry]:
    """Yield the transaction marker of a control batch, if it contains one; raises CorruptBatch."""
    batch.check_crc()
    for offset, key, _, _ in _walk(batch):  # brokers do not compress them
        try:
            kind = ControlType.parse(key or b"")
        except ValueError as error:
            raise CorruptBatch(f"control batch of {batch.location()} cannot be read: {error}") from error
        if kind is not ControlType.UNKNOWN:
            producer_id = batch.header.producer_id
            yield LedgerEntry(offset, producer_id, "commit" if kind is ControlType.COMMIT else "abort")


def _walk(batch: RawBatch) -> Iterator[_Raw]:
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
            yield batch.header.base_offset + offset_delta, key, value, _signature(data, at)
            at = following
    except IndexError:  # read past the end
        at = -1
    if at != len(data):
        raise CorruptBatch(
            f"record batch of {batch.location()} has a right checksum, but its records do not fill it: its "
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


def _signature(data: bytes, at: int) -> bytes | None:
    """Return the value of the first header if it is a signature; ``at`` is where the header count begins."""
    count, at = _varint(data, at)
    if count < 1:
        return None
    name, at = _string(data, at)
    return _string(data, at)[0] if name == _HEADER else None


def _signatures(decoded: DecodedBatch) -> list[bytes | None]:
    if decoded.headers is None:
        return [None] * len(decoded)
    try:
        first = pc.list_slice(decoded.headers, 0, 1).to_pylist()
    except UnicodeDecodeError:  # header names that are not text: not written by this package
        return [None] * len(decoded)
    return [headers[0]["value"] if headers and headers[0]["key"] == HEADER else None for headers in first]
