"""The seal task of a table: writes rows to data files, and yields a sealed row with the name of each.

Like :mod:`airflow_eos.spark.seal_task`, it may be repeated: no commit names the files of an attempt that is
not counted. It holds the rows of one file in memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.exceptions import EosError, SendError
from airflow_eos.spark.dead_letters import DeadLetters
from airflow_eos.spark.errors import ErrorMark, root_cause
from airflow_eos.spark.running_task import running_task, tidy
from airflow_eos.spark.sealed_rows import TASK_TRAILER_PARTITION, Row, sealed_rows

if TYPE_CHECKING:
    from airflow_eos.model.table import DataFileMade
    from airflow_eos.spark.dead_letters import DeadLetterRule
    from airflow_eos.spark.process import RunContext
    from airflow_eos.table_ports import TableWriter
    from airflow_eos.wire.client_config import ClientConfig

PLACE = ("table", 0)
"""Placeholder for topic and partition in rows that name data files."""
_FLUSH_ROWS = 2_000_000


@dataclass(frozen=True, slots=True)
class TableSealTask:
    """The function that ``mapInArrow`` calls in every seal task of a table; pickled with credentials.

    :param config: client configuration, for the records that an Arrow process reads.
    :param writes: False: a trial, whose rows are discarded.
    :param names: the original names of a DataFrame's columns, if they were replaced by numbers.
    """

    config: ClientConfig = field(repr=False)
    writer: TableWriter
    mark: ErrorMark = field(default_factory=ErrorMark)
    writes: bool = True
    names: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of :data:`airflow_eos.spark.sealed_rows.SCHEMA`."""
        context = running_task()
        with self.mark.errors():
            yield from self.seal(self._in_columns(batches), context.partitionId(), context.taskAttemptId())

    def seal(
        self, batches: Iterator[pa.RecordBatch], seal_partition: int, attempt_id: int
    ) -> Iterator[pa.RecordBatch]:
        """Write one task's rows, which have the table's columns; yield a row per file, and the trailers."""
        files, count = 0, 0
        try:
            for table in flushes(batches, self.writer.flush_bytes, _FLUSH_ROWS):
                if not self.writes:
                    continue
                rows: list[Row] = []
                for file in self._written(table):
                    rows.append((0, *PLACE, files, file.rows, pickle.dumps((seal_partition, files, file))))
                    files, count = files + 1, count + file.rows
                del table  # otherwise it would stay in memory with the rows of the next file
                yield sealed_rows(seal_partition, attempt_id, rows)
        finally:
            tidy()
        trailers: list[Row] = [(0, *PLACE, files, count, None)] if files else []
        trailers.append((0, None, TASK_TRAILER_PARTITION, int(files > 0), count, None))
        yield sealed_rows(seal_partition, attempt_id, trailers)

    def rows_of(self, result: Any, run: RunContext) -> pa.Table | None:  # noqa: ARG002 - as a topic's
        """Return the result of an Arrow process as rows of the table."""
        return self.writer.columns(result)

    def letters(self, rule: DeadLetterRule) -> DeadLetters:
        """Return a collector of the places of dead letters, which are made when the run commits."""
        return DeadLetters(rule, only_names=True)

    def _in_columns(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            named = pa.RecordBatch.from_arrays(batch.columns, self.names) if self.names else batch
            table = self.writer.columns(named)
            if table is not None:
                yield from table.to_batches()

    def _written(self, table: pa.Table) -> list[DataFileMade]:
        try:
            return list(self.writer.write(table))
        except EosError:
            raise
        except Exception as error:
            raise SendError(
                f"{self.writer.name}: a data file cannot be written: {root_cause(error)}"
            ) from error


def flushes(batches: Iterator[pa.RecordBatch], most_bytes: int, most_rows: int) -> Iterator[pa.Table]:
    """Merge neighbouring batches into tables of about ``most_bytes`` or ``most_rows``; split larger ones.

    The JVM gets the output of a flush as one Arrow batch, and the author's function may return any size.
    Batches with other columns begin a new table: the function may leave a column out of some.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for result in batches:
        most = max(1, result.num_rows * most_bytes // max(1, result.nbytes))
        for start in range(0, result.num_rows, most):
            batch = result.slice(start, most)
            if waiting and batch.schema != waiting[0].schema:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if size >= most_bytes or rows >= most_rows:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
