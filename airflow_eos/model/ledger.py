"""Messages, entries and views of the ledger topic: raw records and markers, not yet interpreted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class LedgerId:
    """Identifies a ledger: a topic that is created again has another id, added partitions another layout.

    :param prefix: first part of the transactional ids under which pins are written: that of the ledger's
        first user, so that environments that share the ledger fence each other. For a ledger that does not
        name one it is the caller's prefix.
    :param is_signed: whether the identity record is signed or, for a caller without a key, a record says from
        which offsets on records are signed.
    """

    topic_id: str
    partitions: int
    prefix: str
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class LedgerValue:
    """The value of a ledger record, with its position.

    :param text: the value, JSON for all records of this package.
    :param partition: ledger partition.
    :param is_signed: whether the record has a signature, valid or not.
    """

    text: str
    partition: int
    offset: int
    is_signed: bool = False

    @property
    def place(self) -> str:
        """The position as text, for errors."""
        return f"partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """A record to write to the ledger.

    :param value: None for a tombstone.
    :param routing: string that determines the partition.
    :param partition: overrides ``routing``.
    """

    key: str
    value: str | None
    routing: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One raw entry of a ledger partition between the last stable offset and the high watermark.

    :param kind: a record, or the control marker that ends its producer's transaction.
    :param key: the record's key; empty for markers.
    :param value: its value; None for markers and tombstones.
    """

    offset: int
    producer_id: int
    kind: Literal["record", "commit", "abort"]
    key: str = ""
    value: LedgerValue | None = None


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The records of some keys in one ledger partition, at one moment.

    :param committed: latest read_committed value per key, below the last stable offset.
    :param tail: raw entries in ``[last stable offset, high watermark)``, in offset order: records of the
        wanted keys, and all control markers.
    :param no_evidence: offset of the last record per wanted key that no transaction of this package wrote: a
        record outside a transaction, or in that of another producer than the record names. Omits keys with a
        later record of this package.
    :param unsigned: keys of ``no_evidence`` whose last record lacks only a signature.
    :param log_start: log start offset. Compaction never moves it; if it is above 0, records were deleted.
    """

    last_stable_offset: int
    high_watermark: int
    committed: Mapping[str, LedgerValue]
    tail: Sequence[LedgerEntry] = ()
    log_start: int = 0
    no_evidence: Mapping[str, int] = field(default_factory=dict)
    unsigned: frozenset[str] = frozenset()
