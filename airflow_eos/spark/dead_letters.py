"""Dead letters: records on which the author's Arrow process raises, sent to a separate topic.

A batch that raises is halved until the failing records are found, and all others are processed; the size of a
batch is not part of the contract. Dead letters are rows of the output: sealed, counted and committed with it.
Every record and exception fits into one: parts that its topic would refuse are cut.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import EosError, ProcessFailed
from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE, with_headers
from airflow_eos.spark.errors import root_cause
from airflow_eos.task_signals import class_names, signal_of

if TYPE_CHECKING:
    from airflow_eos.spark.targets import TargetTopic

T = TypeVar("T")

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("headers", HEADERS_TYPE),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_NOT_THE_RECORDS = (MemoryError, ImportError, KeyboardInterrupt)
# This package's errors are not either: a process raises ``ProcessFailed`` to fail the run.
_GROUP = getattr(builtins, "BaseExceptionGroup", ())  # of Python 3.11
_SHORT = 100
CUT = "source.cut"
"""Header of a dead letter that names the missing parts of its record."""


def is_records(error: BaseException) -> bool:
    """Return whether an exception of the process is caused by its record.

    This includes ``SystemExit`` and other exceptions that libraries derive from ``BaseException``. An
    exception group counts if all of its exceptions do.
    """
    if isinstance(error, _GROUP):
        return all(is_records(inner) for inner in error.exceptions)
    return may_be_records(class_names(error))


def may_be_records(raised: Iterable[str]) -> bool:
    """Return whether a record may have caused an exception, by the names of its class and bases."""
    names = [name.removeprefix("builtins.") for name in raised]
    kinds = [getattr(builtins, name, None) for name in names]
    never = any(isinstance(kind, type) and issubclass(kind, _NOT_THE_RECORDS) for kind in kinds)
    is_own = any(name.startswith(f"{EosError.__module__}.") for name in names)
    return not never and not is_own and signal_of(names) is None


def place_of(record: pa.RecordBatch) -> tuple[str, int, int]:
    """Return topic, partition and offset of a batch's first record."""
    topic, partition, offset = (record.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
    return topic, partition, offset


@dataclass(frozen=True, slots=True)
class DeadLetterRule:
    """The destination of records on which the process raises; pickled with the plan.

    :param at_most: number of dead letters per run; one more fails it.
    """

    topic: str
    at_most: int

    def check(self, count: int, records: Sequence[FailingRecord]) -> None:
        """Check the number of dead letters.

        :raises ProcessFailed: there are more than a run may have.
        """
        if count > self.at_most:
            example = f" The first: {records[0]}." if records else ""
            raise ProcessFailed(
                f"process failed on {count} records or more, and max_dead_letters is {self.at_most}; nothing "
                f"was written.{example} Correct the function, or allow more"
            )


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one seal task.

    :param target: the topic of dead letters, if its settings are known.
    :param fits: returns whether that topic takes a dead letter of this size.
    :param only_names: keep only the places of the records; the letters are made later.
    """

    rule: DeadLetterRule
    target: TargetTopic | None = None
    fits: Callable[[pa.Table], bool] = field(default=lambda _letter: True)
    only_names: bool = False
    records: list[FailingRecord] = field(default_factory=list)
    """The records, in the order in which they were read."""
    _letters: list[pa.Table] = field(default_factory=list)

    def results(
        self,
        batch: pa.RecordBatch,
        call: Callable[[pa.RecordBatch], T],
        failed: Callable[[pa.RecordBatch, BaseException], ProcessFailed],
    ) -> Iterator[T]:
        """Yield the function's results for a batch, in order; keep the records on which it raises.

        :param call: calls the author's function and converts its result to rows.
        :param failed: makes the error that fails the run, from an exception that no record caused.
        :raises ProcessFailed: there are more dead letters than a run may have.
        """
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            failure: BaseException | None = None
            try:
                result = call(part)
            except (EosError, KeyboardInterrupt):
                raise
            except BaseException as error:
                if not part.num_rows or not is_records(error):
                    raise failed(part, error) from error
                failure = error
            if failure is None:
                yield result
            elif part.num_rows == 1:
                self.keep(part, root_cause(failure))
            else:
                middle = part.num_rows // 2
                waiting += [part.slice(middle), part.slice(0, middle)]

    def batch(self) -> pa.RecordBatch:
        """Return the dead letters, at least one, as rows in the order of their records."""
        (letters,) = pa.concat_tables(self._letters).combine_chunks().to_batches()
        return letters

    def keep(self, record: pa.RecordBatch, cause: str, lacks: Sequence[str] = ()) -> None:
        """Make a dead letter of a record, as large as its topic accepts.

        :param lacks: parts of the record that are missing in the row.
        :raises ProcessFailed: there are more dead letters than a run may have.
        """
        self.records.append(FailingRecord(*place_of(record), cause))
        self.rule.check(len(self.records), self.records)
        if self.only_names:
            return
        for letter in self._shrinking(record, cause, lacks):
            self._letters.append(letter)
            if self.fits(letter):
                return
            self._letters.pop()
        self._letters.append(letter)  # the sealer raises for a wrong topic

    def _shrinking(self, record: pa.RecordBatch, cause: str, lacks: Sequence[str]) -> Iterator[pa.Table]:
        none = pa.nulls(1, HEADERS_TYPE)
        names = record.schema.names
        value = record.column("value")[0]
        key = record.column("key")[0] if "key" in names else pa.scalar(None, pa.binary())
        own = record.column("headers") if "headers" in names else none
        short = cause[:_SHORT]
        yield self._letter(record, value, key, own, cause, lacks)
        yield self._letter(record, value, key, own, short, lacks)
        cut = ["headers"] if pc.sum(pc.list_value_length(own)).as_py() else []
        if cut:
            yield self._letter(record, value, key, none, short, cut)
        sizes = {"value": len(value.as_buffer() or b""), "key": len(key.as_buffer() or b"")}
        left = max(sizes.values())
        while left > 0:
            left //= 2
            longer = [f"{name} of {size} bytes" for name, size in sizes.items() if size > left]
            yield self._letter(record, value, key, none, short, [*cut, *longer], left)

    def _letter(
        self,
        record: pa.RecordBatch,
        value: pa.Scalar,
        key: pa.Scalar,
        headers: pa.Array,
        cause: str,
        cut: Sequence[str] = (),
        at_most: int | None = None,
    ) -> pa.Table:
        """Return a dead letter without the parts ``cut``; key and value have at most ``at_most`` bytes."""
        topic, partition, offset = place_of(record)
        added = [
            ("error", cause),
            ("source.topic", topic),
            ("source.partition", str(partition)),
            ("source.offset", str(offset)),
        ]
        timestamp = record.column("timestamp")
        moment = timestamp.cast(pa.int64())[0].as_py() // 1000
        if self.target is not None and not self.target.takes_timestamp(moment):
            added.append(("source.timestamp", str(moment)))
            timestamp = pa.nulls(1, timestamp.type)
        if self.target is not None and self.target.needs_keys and not key.is_valid:
            # A unique key: compaction keeps only the last letter of each key.
            key = pa.scalar(f"{topic}-{partition}-{offset}".encode())
            added.append(("source.key", "null"))
        if cut:
            added.append((CUT, ", ".join(cut)))
        columns = {
            "value": _cut(value, at_most),
            "key": _cut(key, at_most),
            "topic": pa.array([self.rule.topic]),
            "headers": headers,
            "timestamp": timestamp,
        }
        return with_headers(pa.table(columns), added).select(SCHEMA.names).cast(SCHEMA)


def _cut(scalar: pa.Scalar, at_most: int | None) -> pa.Array:
    data = scalar.as_buffer()
    if data is not None and at_most is not None:
        data = data.slice(0, min(at_most, data.size))
    return pa.array([None if data is None else data.to_pybytes()], pa.binary())
