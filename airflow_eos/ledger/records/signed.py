"""The record that says from which offsets on a ledger is signed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.versioned import Versioned, by_partition, by_partition_json


@dataclass(frozen=True, slots=True)
class SignedFrom(Versioned):
    """Offsets per partition from which on a ledger's records need a signature; see `airflow eos sign`."""

    KIND = "record of what is signed"
    VERSIONS = (1, 2)

    offsets: Mapping[int, int] = field(default_factory=dict)

    def of(self, partition: int) -> int:
        """Return the offset of one partition, 0 if the record does not name it."""
        return self.offsets.get(partition, 0)

    def _content(self) -> Mapping[str, Any]:
        return {"v": 2, "from": by_partition_json(self.offsets)}

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> SignedFrom:
        return cls(by_partition(data["from"], 0))
