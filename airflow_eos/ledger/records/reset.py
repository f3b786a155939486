"""What the ledger keeps of a cursor that was moved by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import integer, read_versioned, text

RESET_VERSION = 1


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The next offset to read of one partition, before and after.

    :param committed: what the group had committed; None: nothing.
    :param recorded: where the ledger's cursor stood; None: nowhere.
    :param offset: where both stand since.
    """

    topic_partition: TopicPartition
    committed: int | None
    recorded: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class ResetRecord:
    """A reset, written in the transaction that moved cursor and offsets; when is in the record's key."""

    group: str
    pipeline: str
    moves: tuple[OffsetMove, ...]

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        changes = [[str(one.topic_partition), one.committed, one.recorded, one.offset] for one in self.moves]
        return json.dumps(
            {"v": RESET_VERSION, "group": self.group, "pipeline": self.pipeline, "changes": changes}
        )

    @classmethod
    def from_json(cls, value: str, key: str = "") -> ResetRecord:
        """Read the JSON form.

        :param key: of the ledger record, for the message.
        :raises LedgerUnreadable: it is not a reset, or of a newer version.
        """
        return read_versioned("reset", value, (RESET_VERSION,), cls._of, key)

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> ResetRecord:
        return cls(text(data["group"]), text(data["pipeline"]), tuple(map(_move, data["changes"])))


def _move(change: list[Any]) -> OffsetMove:
    place, committed, recorded, offset = change
    topic, _, partition = text(place).rpartition("-")
    return OffsetMove(
        TopicPartition(topic, int(partition)),
        None if committed is None else integer(committed),
        None if recorded is None else integer(recorded),
        integer(offset),
    )
