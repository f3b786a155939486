"""The Arrow seal task: reads a slice, calls the author's Arrow function and seals, in one Python task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.spark.arrow_contract import sink_rows
from airflow_eos.spark.errors import task_errors
from airflow_eos.spark.process import call_process
from airflow_eos.spark.read_counts import SliceCount
from airflow_eos.spark.sealed_rows import READ_TRAILER_PARTITION, SealedRows
from airflow_eos.spark.source import read_slice

if TYPE_CHECKING:
    from airflow_eos.model.ranges import OffsetRange
    from airflow_eos.spark.process import RunContext
    from airflow_eos.spark.seal_task import SealTask


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
        interval = self.run.interval
        count = SliceCount(None if interval is None else interval.start)
        yield from self.seal.seal(self._transformed(self.slices[number], count), number, attempt_id)
        rows = SealedRows(number, attempt_id)
        rows.add(0, None, READ_TRAILER_PARTITION, count.late, count.records, None)
        yield rows.batch()

    def _transformed(self, wanted: OffsetRange, count: SliceCount) -> Iterator[pa.RecordBatch]:
        for batch in read_slice(self.seal.config, wanted):
            count.add(batch)
            result = call_process(self.process, batch, self.run)
            table = sink_rows(result, self.run.sink_topic, self.run.source_topics)
            if table is not None:
                yield from table.to_batches()
