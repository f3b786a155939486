"""The record that identifies a ledger, to detect a replaced topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.versioned import Versioned, integer, text


@dataclass(frozen=True, slots=True)
class IdentityRecord(Versioned):
    """The topic that a ledger was created as.

    :param prefix: prefix of the environment that used it first; empty in records that do not name one.
    """

    KIND = "identity"
    VERSIONS = (1,)

    topic_id: str
    partitions: int
    prefix: str = ""

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> IdentityRecord:
        return cls(text(data["topic_id"]), integer(data["partitions"], 1), text(data.get("prefix", "")))
