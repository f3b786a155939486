"""Dead letters: records on which the author's Arrow process raises, on their way to a topic of their own.

Halves of a batch are tried until the records are found, so that all others are processed; the size of a batch
is no part of the contract. Dead letters are rows of the output like any other: sealed, counted and committed
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.exceptions import EosError, ProcessFailed
from airflow_eos.recordbatch.columns import HEADERS_TYPE
from airflow_eos.spark.errors import root_cause

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("headers", HEADERS_TYPE),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
NOT_THE_RECORDS = (EosError, MemoryError, ImportError)
"""Errors that are never those of a record; a process raises ``ProcessFailed`` to fail the run."""


@dataclass(frozen=True, slots=True)
class DeadLetterRule:
    """Where records go on which the process raises; pickled with the plan.

    :param topic: their topic.
    :param at_most: so many of a run; one more fails it.
    """

    topic: str
    at_most: int

    def check(self, found: int) -> None:
        """Raise where all tasks together found too many.

        :raises ProcessFailed: they did.
        """
        if found > self.at_most:
            raise self.too_many(found)

    def too_many(self, found: int, last: str = "") -> ProcessFailed:
        """Return the error of a run with more than that."""
        return ProcessFailed(
            f"process failed on {found} records or more, and max_dead_letters is {self.at_most}; nothing was "
            f"written{last}; correct the function, or allow more"
        )


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one seal task.

    :param call: the author's function.
    """

    rule: DeadLetterRule
    call: Callable[[pa.RecordBatch], Any]
    _rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._rows)

    def results(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Yield what the function returns for a batch, in order; keep the records on which it raises.

        :raises ProcessFailed: there are more of them than a run may have.
        """
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            try:
                result = self.call(part)
            except NOT_THE_RECORDS:
                raise
            except Exception as error:
                if not part.num_rows:
                    raise
                if part.num_rows == 1:
                    self._keep(part, error)
                    continue
                middle = part.num_rows // 2
                waiting += [part.slice(middle), part.slice(0, middle)]
            else:
                yield result

    def batch(self) -> pa.RecordBatch:
        """Return the dead letters as rows for the sink, in the order in which they were read."""
        return pa.RecordBatch.from_pylist(self._rows, SCHEMA)

    def _keep(self, record: pa.RecordBatch, error: Exception) -> None:
        (row,) = record.to_pylist()
        cause = root_cause(error)
        if len(self._rows) >= self.rule.at_most:
            place = f"{row['topic']}-{row['partition']}, offset {row['offset']}"
            raise self.rule.too_many(len(self._rows) + 1, f"; the last one: {place}: {cause}") from error
        said = {
            "error": cause,
            "source.topic": row["topic"],
            "source.partition": str(row["partition"]),
            "source.offset": str(row["offset"]),
        }
        headers: Sequence[dict[str, Any]] = row.get("headers") or ()
        self._rows.append(
            {
                "value": row["value"],
                "key": row.get("key"),
                "topic": self.rule.topic,
                "headers": [*headers, *({"key": key, "value": text.encode()} for key, text in said.items())],
                "timestamp": row["timestamp"],
            }
        )
