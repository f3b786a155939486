"""Seals offset ranges in two ways: through a DataFrame, or in Arrow alone.

In both, earlier tasks read earlier slices, so order and manifest are the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.model.output import NOT_COUNTED, total
from airflow_eos.spark.by_value import apart_if_large
from airflow_eos.spark.dead_letters import DeadLetterRule
from airflow_eos.spark.errors import process_failed
from airflow_eos.spark.frame_contract import addressed, check_frame, sink_columns, table_frame
from airflow_eos.spark.placement import OwnerLayout, pack_slices, plan_owners, plan_slices
from airflow_eos.spark.process import RunContext, call_process
from airflow_eos.spark.read_counts import Counts, ObservedReads, TalliedReads, read_counter, sums
from airflow_eos.spark.seal_task import ArrowSealTask, SealTask
from airflow_eos.spark.sealed_blocks import InconsistentSeal
from airflow_eos.spark.sealed_rows import DDL
from airflow_eos.spark.session import settings
from airflow_eos.spark.set_aside import SetAside, letters_of, with_letters
from airflow_eos.spark.source import source_frame
from airflow_eos.spark.table_seal_task import TableSealTask
from airflow_eos.spark.targets import TargetTopic, describe_targets
from airflow_eos.wire.connection import BrokerConnections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.model.dead_letter import FailingRecord
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.ranges import OffsetRange, TopicPartition
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.spark.errors import ErrorMark
    from airflow_eos.spark.sealed_blocks import BlockCounts
    from airflow_eos.table_ports import TableWriter
    from airflow_eos.wire.client_config import ClientConfig


LARGE_RUN = 100_000
"""Number of offsets from which an analysis of the plan saves more than it costs."""


def _trial(task: SealTask | TableSealTask, writes: bool) -> SealTask | TableSealTask:
    """Return a seal task whose rows are discarded, without data files or staged rows unless ``writes``."""
    return replace(task, writes=writes) if isinstance(task, TableSealTask) else task


def throw_away(rows: DataFrame) -> None:
    """Compute rows and write nothing."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(eq=False)
class _Sealing:
    """One seal of one plan.

    :param writer: writer of the table, if the sink is one.
    :ivar ranges: input of the process.
    :ivar set_aside: records that are dead letters, and not in ``ranges``.
    :ivar dead_letters: destination of records on which the process raises; None: the run fails.
    :ivar is_large: whether the input is large enough for an analysis of the plan to pay off.
    """

    spark: SparkSession
    spec: RunSpec
    plan: RunPlan
    config: ClientConfig
    process: Callable[..., Any]
    slots: int
    mark: ErrorMark
    set_aside: SetAside
    writer: TableWriter | None

    is_large = False

    def __post_init__(self) -> None:
        aside, ranges = self.set_aside, self.plan.ranges
        self.ranges: Sequence[OffsetRange] = aside.without(ranges) if aside.records else ranges
        self._tasks = self._tasks_of(self.ranges)
        self._slices = [offsets for slices in self._tasks for offsets in slices]
        self._context = RunContext.of(self.spec, self.plan)
        topic = self.spec.dead_letter_topic
        self.dead_letters = None if topic is None else DeadLetterRule(topic, self.spec.max_dead_letters)

    def _seal_task(
        self, *, open_ended: bool, names: tuple[str, ...] = ()
    ) -> tuple[SealTask | TableSealTask, OwnerLayout]:
        if self.writer is not None:
            task_of_table = TableSealTask(self.config, self.writer, self.mark, names=names)
            return task_of_table, OwnerLayout(1)
        outputs = self.spec.output_topics
        described = {
            name: TargetTopic.of(name, topic.leaders, topic.settings)
            for name, topic in self.plan.sinks.items()
            if topic.leaders
        }
        missing = set(outputs) - described.keys()
        if missing:
            with BrokerConnections(self.config) as connections:
                described |= describe_targets(connections, missing)

        targets = {name: described[name] for name in outputs}
        leaders = {name: target.leaders for name, target in targets.items()}
        # Few seal tasks do not have enough rows for more owners, however many cores there are.
        undeclared = min(self.slots, len(self._tasks)) if open_ended else 0
        layout = plan_owners(leaders, self.slots, undeclared)
        sink, codec = self.spec.sink_topic, self.spec.compression
        task = SealTask(self.config, layout, targets, sink, codec, self.mark, self.plan.headers)
        return task, layout

    def letters_due(self, counts: BlockCounts) -> tuple[FailingRecord, ...]:
        """Return the records whose dead letters are made at the commit, because the sink is a table."""
        if self.writer is None:
            return ()
        return (*counts.failing, *self.set_aside.records)

    def _tasks_of(self, ranges: Sequence[OffsetRange]) -> Sequence[Sequence[OffsetRange]]:
        return pack_slices(plan_slices(ranges, self.slots), self.slots)


class FrameSealing(_Sealing):
    """For functions that take and return a DataFrame."""

    def __post_init__(self) -> None:
        super().__post_init__()
        interval = self._context.interval
        self._late_before = None if interval is None else interval.start
        self._counter = read_counter(self.spark, self.plan.ranges, self._slices, self._late_before)
        self._letter_counter: TalliedReads | ObservedReads | None = None
        self.is_large = sum(offsets.span for offsets in self.ranges) >= LARGE_RUN

    def rows(self) -> tuple[DataFrame, OwnerLayout]:
        """Return the lazy sealed rows, not yet routed, and their owners; calls the author's function."""
        source = source_frame(
            self.spark, self.config, self._tasks, self._counter.tally, self._late_before, self.mark
        )
        rows, names = self._processed(self._counter.attach(source))
        self._sealer, layout = self._seal_task(open_ended="topic" in rows.columns, names=names)
        if self.set_aside.records and self.writer is None:
            rows = with_letters(rows, self._letters(), self.spec.sink_topic)
        return rows.mapInArrow(self._sealer, DDL), layout

    def _letters(self) -> DataFrame:
        assert self.dead_letters is not None
        assert isinstance(self._sealer, SealTask), "dead letters beside a table are made by the driver"
        records = [record.range for record in self.set_aside.records]
        partitions = {record.topic_partition: record for record in records}
        self._letter_counter = counter = read_counter(
            self.spark, list(partitions.values()), records, self._late_before
        )
        source = source_frame(self.spark, self.config, [records], counter.tally, self._late_before, self.mark)
        return letters_of(counter.attach(source), self.set_aside, self.dead_letters, self._sealer)

    def _processed(self, source: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the rows to seal, and the names of their columns where they are numbered."""
        try:
            result = call_process(self.process, source, self._context)
        except (SystemExit, GeneratorExit) as error:
            # As in tasks: otherwise the application would exit with success but without a commit.
            raise process_failed(error) from error
        check_frame(result, self.spark)
        if self.writer is not None:
            return addressed(table_frame(result, self.writer.check))
        return sink_columns(result, self.spec.sink_topic, self.spec.source_topics), ()

    def try_on(self, ranges: Sequence[OffsetRange], *, writes: bool = False) -> None:
        """Process and seal some of the ranges and discard the result; raises any error of that.

        :param writes: also write a table's data files or stage its rows, to see what its storage refuses.
        """
        source = source_frame(self.spark, self.config, self._tasks_of(ranges), mark=self.mark)
        with settings(self.spark, {}):  # cancels the job of a try that is interrupted
            rows, _ = self._processed(source)
            throw_away(rows.mapInArrow(_trial(self._sealer, writes), DDL))

    def reads(self, routed: Any, counts: BlockCounts) -> Counts:  # noqa: ARG002 - the counter knows
        """Return the counts of the source DataFrame and of the records that are set aside."""
        read, late = self._counter.read(routed)
        if self.plan.mode == "reprocess" and self.writer is not None and self._counter.tally is None:
            # Observation counts repeated reads twice, and the rows to be replaced may be the last copy.
            read = {tp: count and NOT_COUNTED for tp, count in read.items()}
        if not self.set_aside.records:
            return read, late
        if self._letter_counter is None:
            # With a table sink they are read when the run commits: whether they are late is not yet known.
            letters: Mapping[TopicPartition, int] = Counter(
                r.range.topic_partition for r in self.set_aside.records
            )
            late_letters = 0
        else:
            letters, late_letters = self._letter_counter.read(routed)
        counts_by_partition = {tp: total((count, letters.get(tp, 0))) for tp, count in read.items()}
        return counts_by_partition, total((late, late_letters))


class ArrowSealing(_Sealing):
    """For functions that take and return Arrow record batches; no record enters the JVM."""

    def rows(self) -> tuple[DataFrame, OwnerLayout]:
        """Return the sealed rows and who owns them; the tasks call the author's function."""
        task, layout = self.task()
        return self._rows_of(task), layout

    def _rows_of(self, task: ArrowSealTask) -> DataFrame:
        count = len(task.tasks)
        # Row i of a range in as many partitions as rows is in partition i.
        return self.spark.range(0, count, 1, max(1, count)).mapInArrow(task, DDL)

    def try_on(self, ranges: Sequence[OffsetRange], *, writes: bool = False) -> None:
        """Process and seal some of the ranges and discard the result."""
        seal = _trial(self._task.seal, writes)
        throw_away(self._rows_of(replace(self._task, tasks=self._tasks_of(ranges), seal=seal)))

    def task(self) -> tuple[ArrowSealTask, OwnerLayout]:
        """Return the function of the seal tasks, which need no DataFrame, and the owners of partitions."""
        seal, layout = self._seal_task(open_ended=True)
        process = apart_if_large(self.spark, self.process)
        self._task = ArrowSealTask(seal, self._tasks, process, self._context, self.dead_letters)
        return self._task, layout

    def reads(self, routed: Any, counts: BlockCounts) -> Counts:  # noqa: ARG002 - the blocks know
        """Return the seal tasks' counts of exactly the sealed records.

        :raises InconsistentSeal: a slice is missing.
        """
        if sorted(counts.reads) != list(range(len(self._slices))):
            raise InconsistentSeal(f"{len(self._slices)} slices were to be read, {len(counts.reads)} were")
        return sums(self.plan.ranges, self._slices, counts.reads)


Sealing = FrameSealing | ArrowSealing
