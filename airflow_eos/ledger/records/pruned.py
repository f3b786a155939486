"""The record of pruned runs: that they were committed, as one digest per run key.

Digests stand in buckets, so that a look-up reads one of them. A bucket knows exactly which runs it speaks of:
a run that was never committed, however old, is not among them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.versioned import json_of_transaction, read_versioned, text

PRUNED_VERSION = 1
DIGEST_BYTES = 10
"""Of a run key. Two of a thousand million keys are the same with a probability of about 1 to 2,400,000."""


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """The runs of a pipeline whose records are pruned and whose digests begin alike.

    :param before: the latest moment before which records were pruned, UTC.
    :param digests: hexadecimal.
    """

    before: str = ""
    digests: frozenset[str] = frozenset()

    def adding(self, before: str, digests: Iterable[str]) -> PrunedRuns:
        """Return this with more of them."""
        return PrunedRuns(max(self.before, before), self.digests | frozenset(digests))

    def to_json(self, producer: tuple[int, int]) -> str:
        """Return the versioned JSON form.

        :param producer: id and epoch of the transaction that it is written in.
        """
        packed = base64.b64encode(b"".join(bytes.fromhex(one) for one in sorted(self.digests))).decode()
        content = {"before": self.before, "digests": packed}
        return json_of_transaction(PRUNED_VERSION, producer, content)

    @classmethod
    def from_json(cls, value: str, key: str = "") -> PrunedRuns:
        """Read the JSON form.

        :raises LedgerUnreadable: it is none, or of another version.
        """

        def build(data: Mapping[str, Any]) -> PrunedRuns:
            packed = base64.b64decode(text(data["digests"]), validate=True)
            if len(packed) % DIGEST_BYTES:
                raise ValueError("digests are cut off")
            parts = (packed[at : at + DIGEST_BYTES].hex() for at in range(0, len(packed), DIGEST_BYTES))
            return cls(text(data["before"]), frozenset(parts))

        return read_versioned("record of pruned runs", value, (PRUNED_VERSION,), build, key)
