"""The record that identifies a ledger, to detect a replaced topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.versioned import Versioned, compact_json, integer, text

IDENTITY_VERSION = 1


@dataclass(frozen=True, slots=True)
class IdentityRecord(Versioned):
    """The topic that a ledger was created as.

    :param topic_id: topic id (KIP-516).
    :param partitions: number of partitions.
    :param prefix: prefix of the environment that used it first; empty in records that do not name one.
    """

    KIND = "identity"
    VERSIONS = (IDENTITY_VERSION,)

    topic_id: str
    partitions: int
    prefix: str = ""

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        return compact_json(
            {
                "v": IDENTITY_VERSION,
                "topic_id": self.topic_id,
                "partitions": self.partitions,
                "prefix": self.prefix,
            }
        )

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> IdentityRecord:
        return cls(text(data["topic_id"]), integer(data["partitions"], 1), text(data.get("prefix", "")))
