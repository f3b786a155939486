"""The record of a pinned boundary: per partition, the offset that corresponds to a moment in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.versioned import (
    Versioned,
    by_partition,
    by_partition_json,
    flag,
    integer,
    text,
    topic_name,
)
from airflow_eos.wording import moment_text

UNPROVEN_VERSION = 2
"""Version of a boundary accepted despite deleted records; readers that only know version 1 must refuse it."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Why the offset of a moment cannot be proven: the log's head is deleted, or records have no timestamps.

    :param first_timestamp: timestamp of the first remaining record, in ms since 1970; None if none is left.
    :param undated: there are records, but none has a timestamp of 1970 or later.
    """

    log_start: int
    first_timestamp: int | None
    undated: bool = False

    def __str__(self) -> str:
        if self.undated:
            return (
                f"none of the records from offset {self.log_start} on has a timestamp, so no record is found "
                "by time"
            )
        left = (
            "no record is found by time from there on"
            if self.first_timestamp is None
            else f"its first record is of {moment_text(self.first_timestamp)}"
        )
        return f"the log starts at offset {self.log_start}, {left}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data: dict[str, Any] = {"log_start": self.log_start, "first_timestamp": self.first_timestamp}
        return {**data, "undated": True} if self.undated else data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Deleted:
        """Read the JSON form."""
        timestamp, undated = data["first_timestamp"], data.get("undated", False)
        return cls(
            integer(data["log_start"], 0), None if timestamp is None else integer(timestamp), flag(undated)
        )


@dataclass(frozen=True, slots=True)
class Boundary(Versioned):
    """Per partition, the first offset that belongs to the time at or after ``moment``.

    :param pinned_at: when the boundary was pinned; empty in records that do not name it.
    :param ends: the last stable offsets at that time; empty in records that do not name them.
    :param highest: the highest timestamp in each log at that time, in ms since 1970, -1 if there was none. It
        proves that all records in the log belong before a later moment; a clock does not.
    :param epochs: epochs of the leaders that answered; without partitions whose leader's is unknown.
    :param unproven: partitions in which deleted records, or records without timestamps, may belong to the
        time at or after ``moment``.
    """

    KIND = "boundary"
    VERSIONS = (1, UNPROVEN_VERSION)

    topic: str
    topic_id: str
    moment: str
    offsets: Mapping[int, int]
    pinned_at: str = ""
    ends: Mapping[int, int] = field(default_factory=dict)
    unproven: Mapping[int, Deleted] = field(default_factory=dict)
    highest: Mapping[int, int] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)

    def _content(self) -> Mapping[str, Any]:
        unproven = {str(p): head.to_dict() for p, head in sorted(self.unproven.items())}
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "moment": self.moment,
            "offsets": by_partition_json(self.offsets),
            "pinned_at": self.pinned_at,
            "ends": by_partition_json(self.ends),
            "highest": by_partition_json(self.highest),
            **({"epochs": by_partition_json(self.epochs)} if self.epochs else {}),
            **({"v": UNPROVEN_VERSION, "unproven": unproven} if unproven else {}),
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Boundary:
        return cls(
            topic_name(data["topic"]),
            text(data["topic_id"]),
            text(data["moment"]),
            by_partition(data["offsets"], 0),
            text(data.get("pinned_at", "")),
            by_partition(data.get("ends", {}), 0),
            {integer(int(p), 0): Deleted.from_dict(head) for p, head in data.get("unproven", {}).items()},
            by_partition(data.get("highest", {}), -1),
            by_partition(data.get("epochs", {}), 0),
        )
