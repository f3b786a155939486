"""Writes a producer's identity into sealed batches.

Sealing (compressing, the expensive part) happens before a transaction is open, and Spark may repeat it; who
sends the batch, in which epoch and with which sequence is known only when it is sent.
"""

from __future__ import annotations

import struct

from airflow_eos.exceptions import ProtocolViolation
from airflow_eos.recordbatch.header import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    CRC_AT,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PRODUCER_AT,
    TRANSACTIONAL_BIT,
    crc32c,
)

_IDENTITY = struct.Struct(">qhi")
_IDENTITY_END = PRODUCER_AT + _IDENTITY.size
_SEQUENCES = 1 << 31


def next_sequence(sequence: int, records: int) -> int:
    """Sequence ``records`` after ``sequence``; 0 follows 2^31 - 1 (Java: ``incrementSequence``)."""
    return (sequence + records) % _SEQUENCES


def stamp(data: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Sealed batch with this producer's identity and a new CRC; everything else is unchanged.

    The same arguments give the same bytes, which is what a retry must send.

    :param data: a sealed batch
    :param base_sequence: sequence of the first record, 0..2^31-1
    :raises ProtocolViolation: the batch is not transactional (it would be visible after an abort), or is a
        control batch, or the identity is invalid
    """
    if len(data) < HEADER_BYTES or data[MAGIC_AT] != MAGIC:
        raise ProtocolViolation(f"{len(data)} bytes to be stamped are not a record batch of magic {MAGIC}")
    (attributes,) = struct.unpack_from(">h", data, ATTRIBUTES_AT)
    if not attributes & TRANSACTIONAL_BIT or attributes & CONTROL_BIT:
        raise ProtocolViolation(
            f"record batch with attributes {attributes:#06x} is not transactional data: the broker would "
            "show it to readers whether the transaction commits or not"
        )
    if producer_id < 0 or producer_epoch < 0 or not 0 <= base_sequence < _SEQUENCES:
        raise ProtocolViolation(
            f"producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence} "
            "are not the identity of a producer"
        )
    signed = b"".join(
        (
            data[ATTRIBUTES_AT:PRODUCER_AT],
            _IDENTITY.pack(producer_id, producer_epoch, base_sequence),
            data[_IDENTITY_END:],
        )
    )
    return b"".join((data[:CRC_AT], struct.pack(">I", crc32c(signed)), signed))
