"""CRC-32C (Castagnoli), the checksum of record batches since magic v2 (KIP-98)."""

from __future__ import annotations

import google_crc32c


def crc32c(data: bytes) -> int:
    """Checksum of ``data`` as an unsigned 32-bit number.

    :param data: ``bytes``; the C implementation takes no other buffer
    """
    return int(google_crc32c.value(data))
