"""Limits for reading a record batch that another program wrote.

Brokers limit only the compressed size of a batch, so a writer of a source topic determines how much memory
its readers use. Both limits are client settings, and go wherever those of librdkafka go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.recordbatch.varint import Int64s

MAX_BYTES_SETTING = "eos.max.batch.bytes"
MAX_HEADERS_SETTING = "eos.max.record.headers"

RECORD_BYTES = 150
"""Bytes of memory that a record takes while it is read, besides its own, which may be as few as seven."""
HEADER_BYTES = 40
"""The same for a header, which may have as few as two."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Bounds of one record batch.

    :param max_bytes: bytes of memory: its decompressed records, :data:`RECORD_BYTES` more for each of them
        and :data:`HEADER_BYTES` for each header that is read
    :param max_record_headers: headers of one record, where headers are read
    """

    max_bytes: int = 256 << 20
    max_record_headers: int = 100_000


DEFAULT_LIMITS = DecodeLimits()


class OverBudget(ValueError):
    """Reading takes more bytes than are allowed."""

    def __init__(self, budget: int, taken: str = "it decompresses to") -> None:
        super().__init__(f"{taken} more than {budget} bytes")


class TooManyHeaders(ValueError):
    """Records have more headers than are allowed.

    :param counts: headers each record has
    :param limit: headers a record may have
    :ivar offset: offset of the first of these records, once the offsets are known
    """

    offset = -1

    def __init__(self, counts: Int64s, limit: int) -> None:
        wrong = (counts > limit).nonzero()[0]
        self.row = int(wrong[0])  # the first of them
        super().__init__(
            f"it has {int(counts[self.row])} headers, more than {limit}, see {MAX_HEADERS_SETTING} "
            f"({len(wrong)} such records in its batch)"
        )
