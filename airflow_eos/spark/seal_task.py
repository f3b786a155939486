"""The seal task: turns rows of the transformed DataFrame into sealed record batches with an owner.

It writes nothing to Kafka, so Spark may repeat it. It gathers rows until they fill batches well, seals them,
and yields them; it holds one flush in memory.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import EosError, ProcessFailed, RecordRefused, RecordTooLarge
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.versioned import is_topic_name
from airflow_eos.recordbatch.compression import Compressor
from airflow_eos.recordbatch.partitioner import NULL_KEY_RUN, partitions_for
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.sink_columns import distinct_topics, with_headers
from airflow_eos.spark.arrow_contract import sink_rows
from airflow_eos.spark.dead_letters import DeadLetterRule, DeadLetters, is_records, place_of
from airflow_eos.spark.errors import ErrorMark, process_failed
from airflow_eos.spark.failing_records import FailingPart, named
from airflow_eos.spark.placement import OwnerLayout
from airflow_eos.spark.process import RunContext, call_process
from airflow_eos.spark.read_counts import SliceCount
from airflow_eos.spark.running_task import running_task, tidy
from airflow_eos.spark.sealed_rows import (
    DEAD_TRAILER_PARTITION,
    READ_TRAILER_PARTITION,
    TASK_TRAILER_PARTITION,
    Row,
    sealed_rows,
)
from airflow_eos.spark.source import read_slices
from airflow_eos.spark.table_seal_task import TableSealTask, flushes
from airflow_eos.spark.targets import TargetTopic, describe_targets
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections

# Per target partition, so that batches of many targets are large enough for their header and compress well.
_FLUSH_PER_TARGET = 256 << 10
_FLUSH_LEAST = 4 << 20
_FLUSH_MOST = 64 << 20
_FLUSH_ROWS = 200_000
_UNKNOWN_TARGETS = 16


@dataclass(frozen=True, slots=True)
class SealTask:
    """The function that ``mapInArrow`` calls in every seal task; pickled with the plan and credentials.

    :param config: client configuration, for topics that only rows name.
    :param targets: topics that the driver knows.
    :param sink_topic: topic of all rows if there is no ``topic`` column.
    :param headers: added to every record.
    """

    config: ClientConfig = field(repr=False)
    layout: OwnerLayout
    targets: Mapping[str, TargetTopic]
    sink_topic: str | None
    compression: str
    mark: ErrorMark = field(default_factory=ErrorMark)
    headers: tuple[tuple[str, str], ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of :data:`airflow_eos.spark.sealed_rows.SCHEMA`."""
        context = running_task()
        with self.mark.errors():
            yield from self.seal(batches, context.partitionId(), context.taskAttemptId())

    def seal(
        self, batches: Iterator[pa.RecordBatch], seal_partition: int, attempt_id: int
    ) -> Iterator[pa.RecordBatch]:
        """Seal one task's rows.

        :param seal_partition: number of the task; earlier records of a source partition have lower ones.
        :param attempt_id: Spark's unique number of this attempt.
        """
        sealer = _Sealer(self, seal_partition, attempt_id)
        try:
            yield from sealer.run(batches)
        finally:
            sealer.close()
            tidy()

    def rows_of(self, result: Any, run: RunContext) -> pa.Table | None:
        """Return the result of an Arrow process as rows for the sink."""
        return sink_rows(result, run.sink_topic, run.source_topics)

    def letters(self, rule: DeadLetterRule) -> DeadLetters:
        """Return the dead letters of one task, which are cut to the limits of their topic."""
        target = self.targets.get(rule.topic)
        return DeadLetters(rule, target, lambda letter: self.fits(letter, target))

    def fits(self, rows: pa.Table, target: TargetTopic | None) -> bool:
        """Return whether the largest record of some rows fits into a topic."""
        if target is None:
            return True
        table = with_headers(rows, self.headers) if self.headers else rows
        batches = seal(
            table["value"],
            np.zeros(table.num_rows, np.int32),
            topic=target.topic,
            key=table["key"],
            headers=table["headers"],
            compressor=target.codec or self.compression,
            max_message_bytes=target.max_message_bytes,
        )
        try:
            deque(batches, maxlen=0)
        except RecordTooLarge:
            return False
        return True

    @property
    def flush_bytes(self) -> int:
        """Bytes of rows that are gathered before they are sealed."""
        partitions = sum(t.partitions for t in self.targets.values()) or _UNKNOWN_TARGETS
        return min(max(partitions * _FLUSH_PER_TARGET, _FLUSH_LEAST), _FLUSH_MOST)


class _Sealer:
    def __init__(self, task: SealTask, seal_partition: int, attempt_id: int) -> None:
        self._task = task
        self._seal_partition = seal_partition
        self._attempt_id = attempt_id
        self._targets = dict(task.targets)
        self._compressor = Compressor(task.compression)
        self._connections: BrokerConnections | None = None
        self._batches: dict[tuple[str, int], int] = {}
        self._records: dict[tuple[str, int], int] = {}
        # Consecutive tasks start to spread null keys at consecutive partitions.
        self._null_keys: dict[str, int] = {}

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(self._sealed, flushes(batches, self._task.flush_bytes, _FLUSH_ROWS))
        yield self._trailers()

    def _sealed(self, table: pa.Table) -> pa.RecordBatch:
        if self._task.headers:
            table = with_headers(table, self._task.headers)
        rows = [row for topic, part in self._by_topic(table) for row in self._seal_topic(topic, part)]
        return sealed_rows(self._seal_partition, self._attempt_id, rows)

    def _by_topic(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if "topic" not in table.column_names:
            assert self._task.sink_topic is not None
            yield self._task.sink_topic, table
            return
        topics = table.column("topic")
        if topics.null_count:
            raise RecordRefused(
                f"process returned {topics.null_count} rows whose 'topic' is null and there is no sink "
                "topic; fill the column, or set sink_topic"
            )
        distinct = distinct_topics(topics)
        if len(distinct) == 1:
            yield distinct[0], table
            return
        for topic in distinct:
            yield topic, table.filter(pc.equal(topics, topic))

    def _seal_topic(self, topic: str, table: pa.Table) -> Iterator[Row]:
        target = self._target(topic)
        columns = {name: table.column(name) for name in table.column_names}
        key, timestamp = columns.get("key"), columns.get("timestamp")
        target.check(table.num_rows, key, timestamp)
        seed = self._null_keys.setdefault(topic, self._seal_partition * NULL_KEY_RUN)
        partition = partitions_for(
            table.num_rows,
            target.partitions,
            topic=topic,
            key=key,
            explicit=columns.get("partition"),
            seed=seed,
        )
        self._null_keys[topic] += table.num_rows if key is None else key.null_count
        for batch in seal(
            columns["value"],
            partition,
            topic=topic,
            key=key,
            timestamp=timestamp,
            headers=columns.get("headers"),
            compressor=target.codec or self._compressor,
            max_message_bytes=target.max_message_bytes,
        ):
            place = (topic, batch.partition)
            seq = self._batches.get(place, 0)
            self._batches[place] = seq + 1
            self._records[place] = self._records.get(place, 0) + batch.records
            owner = self._task.layout.owner(topic, batch.partition)
            yield owner, topic, batch.partition, seq, batch.records, batch.data

    def _target(self, topic: str) -> TargetTopic:
        if topic not in self._targets:
            if not is_topic_name(topic):
                raise RecordRefused(f"process returned the 'topic' {topic[:60]!r}: Kafka allows no such name")
            if self._connections is None:
                self._connections = BrokerConnections(self._task.config)
            self._targets.update(describe_targets(self._connections, [topic]))
        return self._targets[topic]

    def _trailers(self) -> pa.RecordBatch:
        owner = self._task.layout.owner
        rows: list[Row] = [
            (owner(topic, partition), topic, partition, count, self._records[topic, partition], None)
            for (topic, partition), count in sorted(self._batches.items())
        ]
        rows.append((0, None, TASK_TRAILER_PARTITION, len(self._batches), sum(self._records.values()), None))
        return sealed_rows(self._seal_partition, self._attempt_id, rows)


@dataclass(frozen=True, slots=True)
class ArrowSealTask:
    """Reads, transforms and seals; ``mapInArrow`` calls it with the number of the task in its only row.

    :param tasks: the slices of each seal task.
    :param process: declared by :func:`airflow_eos.spark.process.arrow_process`.
    """

    seal: SealTask | TableSealTask = field(repr=False)
    tasks: Sequence[Sequence[OffsetRange]]
    process: Callable[..., Any]
    run: RunContext
    dead_letters: DeadLetterRule | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of :data:`airflow_eos.spark.sealed_rows.SCHEMA`."""
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for number in numbers:
            with self.seal.mark.errors():
                yield from self.read_and_seal(number, running_task().taskAttemptId())

    def read_and_seal(self, number: int, attempt_id: int) -> Iterator[pa.RecordBatch]:
        """Read, transform and seal the slices of task ``number``; yields the read counts last."""
        dead = None if self.dead_letters is None else self.seal.letters(self.dead_letters)
        counts: list[tuple[int, SliceCount]] = []
        yield from self.seal.seal(self._transformed(number, counts, dead), number, attempt_id)
        rows: list[Row] = [
            (0, None, READ_TRAILER_PARTITION - number_read, count.late, count.records, None)
            for number_read, count in counts
        ]
        if dead is not None and dead.records:
            # Letters that are made later need all places, an error message only the first one.
            reported = dead.records if dead.only_names else dead.records[:1]
            places = json.dumps([record.to_list() for record in reported]).encode()
            rows.append((0, None, DEAD_TRAILER_PARTITION, 0, len(dead.records), places))
        yield sealed_rows(number, attempt_id, rows)

    def _transformed(
        self, number: int, counts: list[tuple[int, SliceCount]], dead: DeadLetters | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows for the sink; append number and count of each completed slice to ``counts``."""
        interval = self.run.interval
        first = sum(map(len, self.tasks[:number]))
        for place, records in read_slices(self.seal.config, self.tasks[number]):
            count = SliceCount(None if interval is None else interval.start)
            for batch in records:
                count.add(batch)
                yield from self._rows_of(batch, dead)
            counts.append((first + place, count))
        if dead is not None and dead.records and not dead.only_names:
            table = sink_rows(dead.batch(), None, ())
            assert table is not None
            yield from table.to_batches()

    def _rows_of(self, batch: pa.RecordBatch, dead: DeadLetters | None) -> Iterator[pa.RecordBatch]:
        # Lazy: each result is sealed before the next part of the batch is processed.
        results = self._results(batch) if dead is None else dead.results(batch, self._call, self._located)
        for table in results:
            if table is not None:
                yield from table.to_batches()

    def _results(self, batch: pa.RecordBatch) -> Iterator[pa.Table | None]:
        try:
            result = self._call(batch)
        except (EosError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._located(batch, error) from error
        yield result

    def _call(self, batch: pa.RecordBatch) -> pa.Table | None:
        result = call_process(self.process, batch, self.run)
        return self.seal.rows_of(result, self.run)

    def _located(self, batch: pa.RecordBatch, error: BaseException) -> ProcessFailed:
        """Return the error of the author's function, with the smallest part of the batch that raises."""
        if not batch.num_rows:
            return process_failed(error, " on a batch without records")
        while batch.num_rows > 1:
            middle = batch.num_rows // 2
            halves = (batch.slice(0, middle), batch.slice(middle))
            raising = next(((half, cause) for half in halves if (cause := self._raised_by(half))), None)
            if raising is None:
                break
            batch, error = raising
        topic, partition, first = place_of(batch)
        last = batch.column("offset")[-1].as_py()
        place, way = named(FailingPart([OffsetRange(topic, partition, first, last + 1)]))
        return process_failed(error, place, way if is_records(error) else "")

    def _raised_by(self, batch: pa.RecordBatch) -> BaseException | None:
        try:
            self._call(batch)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the author's function raises
            return error
        return None
