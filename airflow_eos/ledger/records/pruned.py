"""The record of pruned runs: one digest per run key says that the run was committed.

Digests are grouped in buckets, so that a look-up reads a single record. A bucket lists runs exactly: a run
that was never committed, however old, is not in it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.versioned import VersionedOfTransaction, text

DIGEST_BYTES = 10
"""Bytes of a run key's digest. Among 10^9 keys the probability of a collision is about 1 in 2,400,000."""


@dataclass(frozen=True, slots=True)
class PrunedRuns(VersionedOfTransaction):
    """A bucket: pruned runs of a pipeline whose digests share their first byte.

    :param before: the latest moment before which records were pruned, UTC.
    :param digests: hexadecimal.
    """

    KIND = "record of pruned runs"
    VERSIONS = (1,)

    before: str = ""
    digests: frozenset[str] = frozenset()

    def _content(self) -> Mapping[str, Any]:
        packed = base64.b64encode(b"".join(map(bytes.fromhex, sorted(self.digests)))).decode()
        return {"before": self.before, "digests": packed}

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> PrunedRuns:
        packed = base64.b64decode(text(data["digests"]), validate=True)
        if len(packed) % DIGEST_BYTES:
            raise ValueError("digests are cut off")
        parts = (packed[at : at + DIGEST_BYTES].hex() for at in range(0, len(packed), DIGEST_BYTES))
        return cls(text(data["before"]), frozenset(parts))
