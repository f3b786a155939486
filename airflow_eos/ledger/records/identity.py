"""The record that identifies a ledger, to detect a replaced topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.versioned import integer, read_versioned, text

IDENTITY_VERSION = 1


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """The topic that a ledger was created as.

    :param topic_id: topic id (KIP-516).
    :param partitions: number of partitions.
    :param prefix: prefix of the environment that used it first; empty in records that do not name one.
    """

    topic_id: str
    partitions: int
    prefix: str = ""

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        return json.dumps(
            {
                "v": IDENTITY_VERSION,
                "topic_id": self.topic_id,
                "partitions": self.partitions,
                "prefix": self.prefix,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, value: str, key: str = "") -> IdentityRecord:
        """Read the JSON form.

        :param key: key of the ledger record, for errors.
        :raises LedgerUnreadable: the value is not an identity, or of a newer version.
        """
        return read_versioned("identity", value, (IDENTITY_VERSION,), cls._of, key)

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> IdentityRecord:
        return cls(text(data["topic_id"]), integer(data["partitions"]), text(data.get("prefix", "")))
