"""The record of a cursor reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.names import checked_name
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import Versioned, integer, text, topic_name


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The next offset to read of one partition, before and after a reset.

    :param committed: the group's committed offset before; None if there was none.
    :param recorded: the offset of the ledger's cursor before; None if there was none.
    :param offset: the new offset of both.
    """

    topic_partition: TopicPartition
    committed: int | None
    recorded: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class ResetRecord(Versioned):
    """A reset, written in the transaction that moved cursor and offsets; the record's key has its time."""

    KIND = "reset"
    VERSIONS = (1,)

    group: str
    pipeline: str
    moves: tuple[OffsetMove, ...]

    def _content(self) -> Mapping[str, Any]:
        changes = [
            [str(move.topic_partition), move.committed, move.recorded, move.offset] for move in self.moves
        ]
        return {"group": self.group, "pipeline": self.pipeline, "changes": changes}

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> ResetRecord:
        return cls(
            checked_name("group", data["group"]),
            checked_name("pipeline", data["pipeline"]),
            tuple(map(_move, data["changes"])),
        )


def _move(change: list[Any]) -> OffsetMove:
    place, committed, recorded, offset = change
    topic, _, partition = text(place).rpartition("-")
    return OffsetMove(
        TopicPartition(topic_name(topic), integer(int(partition), 0)),
        None if committed is None else integer(committed, 0),
        None if recorded is None else integer(recorded, 0),
        integer(offset, 0),
    )
