"""The keys of a look-up, and which of the records with these keys are evidence.

Any principal with Write on the topic can write any record. A record is not evidence if it is outside a
transaction, or in the transaction of another producer than it names: this package never writes such records.
If the ledger has a key, a record without a valid signature is not evidence either.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_eos.broker.ledger_log.records import Record, records_of
from airflow_eos.exceptions import CorruptBatch
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.ledger.records.run_record import named_writer
from airflow_eos.model.signature import LedgerKey, SignedRecord
from airflow_eos.recordbatch.header import BatchHeader, RawBatch

log = logging.getLogger(__name__)

_MORE = 0x80  # continuation bit of a varint


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The keys of a look-up.

    :param keys: exact keys.
    :param prefixes: every key that begins with one of these is included too.
    """

    keys: frozenset[str]
    prefixes: tuple[str | Around, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.keys or key.startswith(self.starts)

    @property
    def starts(self) -> tuple[str, ...]:
        """The prefixes alone."""
        return tuple(prefix.prefix if isinstance(prefix, Around) else prefix for prefix in self.prefixes)

    @property
    def few(self) -> bool:
        """Whether only few keys can match: no prefix covers a whole kind of records."""
        return not any(isinstance(prefix, str) and prefix.endswith(":") for prefix in self.prefixes)

    @property
    def needles(self) -> list[bytes]:
        """Byte strings of which a batch with a wanted key contains at least one."""
        exact = [key_bytes for key in self.keys for key_bytes in needles(key)]
        return exact + [prefix.encode() for prefix in self.starts]


class Rejected(NamedTuple):
    """A wanted record that is not evidence.

    :param is_unsigned: it only lacks a signature.
    """

    key: str
    offset: int
    is_unsigned: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Decides which records of a partition are evidence.

    :param key: the ledger's key; without a secret no record needs a signature.
    :param topic_id: id of the ledger topic; only signatures need it.
    :param unsigned_below: records of lower offsets need no signature.
    """

    key: LedgerKey = LedgerKey()  # noqa: RUF009 - frozen
    topic_id: str = ""
    unsigned_below: int = 0

    def judge(self, batch: RawBatch, end: int, query: KeyQuery) -> tuple[list[Record], list[Rejected]]:
        """Return the wanted records of a batch that are evidence, and the other wanted ones."""
        header = batch.header
        try:
            records = records_of(batch, end)
        except CorruptBatch as error:
            if header.is_transactional:
                raise
            log.warning("ignored, because it was written outside a transaction: %s", error)
            # Compaction may still read such a batch. The keys of a compressed one are unknown.
            damaged_keys = [key for key in query.keys if not header.codec and may_hold(batch, needles(key))]
            return [], [Rejected(key, header.last_offset, is_unsigned=False) for key in damaged_keys]
        evident: list[Record] = []
        rejected: list[Rejected] = []
        for record in records:
            if record.key not in query:
                continue
            is_signed, in_transaction = self._is_signed(batch, record), is_evidence(header, record.value)
            if is_signed and in_transaction:
                evident.append(record)
            else:
                rejected.append(Rejected(record.key, record.offset, in_transaction and not is_signed))
        return evident, rejected

    def holds(self, batch: RawBatch, record: Record) -> bool:
        """Return whether a record is evidence."""
        return self._is_signed(batch, record) and is_evidence(batch.header, record.value)

    def _is_signed(self, batch: RawBatch, record: Record) -> bool:
        """Return whether the record is signed, or need not be."""
        if not self.key or record.offset < self.unsigned_below:
            return True
        producer = batch.header.producer_id, batch.header.producer_epoch
        signed = SignedRecord(batch.topic, self.topic_id, batch.partition, producer, record.key, record.value)
        return self.key.verifies(record.signature, signed)


def is_evidence(header: BatchHeader, value: str | None) -> bool:
    """Return whether a record is part of a transaction, and of the producer that its value names, if any."""
    writer = None if value is None else named_writer(value)
    return header.is_transactional and writer in (None, (header.producer_id, header.producer_epoch))


def needles(key: str) -> tuple[bytes, bytes]:
    """Return two byte strings, of which an uncompressed record with this key contains at least one.

    Both are the key preceded by its length, a zigzag varint. Other writers may encode the length with more
    bytes than necessary; the last of them is then 0.
    """
    encoded = key.encode()
    left = len(encoded) << 1
    prefix = bytearray()
    while left >= _MORE:
        prefix.append(left % _MORE | _MORE)
        left //= _MORE
    return bytes((*prefix, left)) + encoded, b"\0" + encoded


def may_hold(batch: RawBatch, sought: Sequence[bytes]) -> bool:
    """Return whether a batch may contain one of the byte strings; a compressed one always may."""
    if batch.header.codec:
        return True
    data = bytes(batch.data)
    return any(key_bytes in data for key_bytes in sought)
