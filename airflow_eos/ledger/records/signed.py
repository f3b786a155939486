"""The record that says from which offsets on a ledger is signed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.versioned import Versioned, by_partition, by_partition_json


@dataclass(frozen=True, slots=True)
class SignatureBounds:
    """The records of a ledger partition that are valid without a signature of version 2.

    :param unsigned_below: records of lower offsets need no signature.
    :param version_1_below: records of lower offsets may have a signature of version 1.
    """

    unsigned_below: int = 0
    version_1_below: int = 0


@dataclass(frozen=True, slots=True)
class SignedFrom(Versioned):
    """Offsets per partition from which on a ledger's records are signed; see `airflow eos sign`.

    The offsets are those of :class:`SignatureBounds`, 0 for absent partitions.
    """

    KIND = "record of what is signed"
    VERSIONS = (1, 2)

    unsigned_below: Mapping[int, int] = field(default_factory=dict)
    version_1_below: Mapping[int, int] = field(default_factory=dict)

    def bounds(self, partition: int) -> SignatureBounds:
        """Return the bounds of one partition."""
        return SignatureBounds(self.unsigned_below.get(partition, 0), self.version_1_below.get(partition, 0))

    def _content(self) -> Mapping[str, Any]:
        return {
            "v": 2,
            "from": by_partition_json(self.unsigned_below),
            "version_1": by_partition_json(self.version_1_below),
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> SignedFrom:
        return cls(by_partition(data["from"], 0), by_partition(data.get("version_1", {}), 0))
