"""The Arrow seal task: reads a slice, calls the author's Arrow function and seals, in one Python task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.spark.arrow_contract import sink_rows
from airflow_eos.spark.context import call_process
from airflow_eos.spark.errors import task_errors
from airflow_eos.spark.sealed_rows import READ_TRAILER_PARTITION, SealedRows
from airflow_eos.spark.source import arrow_batches
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_range

if TYPE_CHECKING:
    from airflow_eos.model.ranges import OffsetRange
    from airflow_eos.spark.context import RunContext
    from airflow_eos.spark.seal import SealTask

_ROWS = 65_536
_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ArrowSealTask:
    """What ``mapInArrow`` calls, with the number of a slice in its one row; pickled with the plan.

    :param slices: what is read, by seal task.
    :param process: declared by :func:`airflow_eos.spark.arrow_process.arrow_process`.
    """

    seal: SealTask = field(repr=False)
    slices: Sequence[OffsetRange]
    process: Callable[..., Any]
    run: RunContext

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of :data:`airflow_eos.spark.sealed_rows.SCHEMA`."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for number in numbers:
            with task_errors():
                yield from self.read_and_seal(number, context.taskAttemptId())

    def read_and_seal(self, number: int, attempt_id: int) -> Iterator[pa.RecordBatch]:
        """Read, transform and seal slice ``number``; ends with the count of what was read."""
        read = _Read(self)
        yield from self.seal.seal(read.transformed(self.slices[number]), number, attempt_id)
        rows = SealedRows(number, attempt_id)
        rows.add(0, None, READ_TRAILER_PARTITION, read.late, read.records, None)
        yield rows.batch()


class _Read:
    """One slice while it is read."""

    def __init__(self, task: ArrowSealTask) -> None:
        self._task = task
        interval = task.run.interval
        # Microseconds, as the column has them.
        self._late_before = None if interval is None else int(interval.start.timestamp() * 1000) * 1000
        self.records = 0
        self.late = 0

    def transformed(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        task = self._task
        with BrokerConnections(task.seal.config) as connections:
            batches = fetch_range(connections, wanted.topic, wanted.partition, wanted.start, wanted.end)
            for batch in arrow_batches(
                batches, wanted.topic, wanted.partition, headers=True, rows=_ROWS, size=_BYTES
            ):
                self._count(batch)
                result = call_process(task.process, batch, task.run)
                table = sink_rows(result, task.run.sink_topic, task.run.source_topics)
                if table is not None:
                    yield from table.to_batches()

    def _count(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        if self._late_before is not None:
            older = pc.less(batch.column("timestamp").cast(pa.int64()), self._late_before)
            self.late += pc.sum(older).as_py() or 0
