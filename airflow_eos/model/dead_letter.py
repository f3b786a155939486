"""Dead letters of a run whose sink is a table: named in its INTENT, and written after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.versioned import integer, text, topic_name

MOST_BESIDE_TABLE = 1_000
"""Maximum number of dead letters of a run, or round, with a table: the INTENT, one record, names each."""
_ERROR_BYTES = 500
"""Maximum size of an error in its JSON form."""


@dataclass(frozen=True, slots=True, order=True)
class FailingRecord:
    """A record on which the process raises.

    :param error: the exception, on one line.
    """

    topic: str
    partition: int
    offset: int
    error: str

    @property
    def range(self) -> OffsetRange:
        """The range of this record alone."""
        return OffsetRange(self.topic, self.partition, self.offset, self.offset + 1)

    def to_list(self) -> list[Any]:
        """Return the JSON form."""
        return [self.topic, self.partition, self.offset, self.error]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> FailingRecord:
        """Read the JSON form."""
        topic, partition, offset, error = values
        return cls(topic_name(topic), integer(partition, 0), integer(offset, 0), text(error))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offset {self.offset}: {self.error}"


@dataclass(frozen=True, slots=True)
class DueLetters:
    """Dead letters that belong to a run's transaction; the attempt that commits the run writes them.

    :param topic: the topic of the letters.
    :param records: the records that failed, in order.
    """

    topic: str
    records: tuple[FailingRecord, ...]

    @classmethod
    def of(cls, topic: str, records: Iterable[FailingRecord]) -> DueLetters:
        """Return the letters of some records, with errors shortened for the ledger."""
        shortened = (FailingRecord(r.topic, r.partition, r.offset, _shortened(r.error)) for r in records)
        return cls(topic, tuple(shortened))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"topic": self.topic, "records": [record.to_list() for record in self.records]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DueLetters:
        """Read the JSON form."""
        return cls(topic_name(data["topic"]), tuple(map(FailingRecord.from_list, data["records"])))


def _shortened(error: str) -> str:
    """Return as much of a text as fits :data:`_ERROR_BYTES`: JSON has up to twelve bytes a character."""
    while (size := len(json.dumps(error))) > _ERROR_BYTES:
        error = error[: min(len(error) - 1, len(error) * _ERROR_BYTES // size)]
    return error
