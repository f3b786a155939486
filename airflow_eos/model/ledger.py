"""What goes into the ledger topic and comes out of it, as a log: records and markers, not yet answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class LedgerId:
    """Which ledger: a topic made again has another id, and one with more partitions another layout.

    :param prefix: first part of the transactional ids of all that it fixes once: of its first user, so that
        environments that share it fence each other there. Ledgers that do not name one have the asker's.
    :param is_signed: whether its identity carries a signature or, for an asker without a key, there is a
        record that says from where on all do.
    """

    topic_id: str
    partitions: int
    prefix: str
    is_signed: bool = False


class LedgerText(str):
    """The value of a ledger record, which knows where it stands.

    :ivar where: partition of the ledger and offset.
    :ivar is_signed: whether the record carries a signature, of whatever key.
    """

    __slots__ = ("is_signed", "where")
    where: tuple[int, int]
    is_signed: bool

    @classmethod
    def at(cls, partition: int, offset: int, value: str, *, is_signed: bool = False) -> LedgerText:
        """Return a value with its place."""
        made = cls(value)
        made.where, made.is_signed = (partition, offset), is_signed
        return made

    @property
    def place(self) -> str:
        """For messages."""
        return "partition {}, offset {}".format(*self.where)


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """A record for the ledger: key, value (None: a tombstone) and the string that chooses its partition.

    :param partition: this one, whatever ``routing`` is.
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
    value: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What one ledger partition says about some keys, at one moment.

    :param committed: latest read_committed value per key, below the last stable offset.
    :param tail: raw entries in ``[last stable offset, high watermark)``, in offset order: records of the
        wanted keys, and all control markers.
    :param no_evidence: offset of the last record per wanted key that no transaction of this package wrote: it
        stands outside of any, or in one of another producer than the record names. Keys with a record of ours
        behind it are left out.
    :param unsigned: those keys of ``no_evidence`` whose last record lacks only a signature.
    :param log_start: first offset that is left. Compaction never moves it; above 0, records were deleted.
    """

    last_stable_offset: int
    high_watermark: int
    committed: Mapping[str, str]
    tail: Sequence[LedgerEntry] = ()
    log_start: int = 0
    no_evidence: Mapping[str, int] = field(default_factory=dict)
    unsigned: frozenset[str] = frozenset()
