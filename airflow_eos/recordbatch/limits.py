"""What a record batch of somebody else's may cost to read.

Brokers bound the compressed size of a batch and count nothing in it, so that a writer of a source topic
chooses what its readers spend. Both bounds are client settings, and go wherever those of librdkafka go.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BYTES_SETTING = "eos.max.batch.bytes"
MAX_HEADERS_SETTING = "eos.max.record.headers"


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Bounds of one record batch.

    :param max_bytes: bytes of its records when decompressed
    :param max_record_headers: headers of one record, where headers are read
    """

    max_bytes: int = 256 << 20
    max_record_headers: int = 100_000


DEFAULT_LIMITS = DecodeLimits()
