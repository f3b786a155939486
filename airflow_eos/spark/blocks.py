"""Materialised blocks of sealed rows: of a DataFrame, or of bytes that Spark does not interpret.

Arrow processes of a local session need no DataFrame: no plan, no generated code, no Arrow stream in the JVM,
and two jobs instead of four. The first job reads, transforms, seals, shuffles, keeps the blocks and reads
their heads; the second one sends. Sessions on clusters use the DataFrame: opaque blocks are not tested with
lost executors.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.spark import opaque_rows
from airflow_eos.spark.arrow_batches import large_records_refused, settings_of_small_records
from airflow_eos.spark.local_python import is_local
from airflow_eos.spark.placement import route
from airflow_eos.spark.sealed_blocks import BlockCounts, count_blocks, read_manifest
from airflow_eos.spark.sealing import ArrowSealing
from airflow_eos.spark.send_task import ANSWER_DDL, STREAM_ORDER
from airflow_eos.spark.session import checkpointed, free_blocks, free_checkpoint, is_connect, is_on, settings
from airflow_eos.spark.used_columns import only_selects, only_used_columns

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.spark.placement import OwnerLayout
    from airflow_eos.spark.seal_task import ArrowSealTask
    from airflow_eos.spark.sealing import Sealing
    from airflow_eos.spark.send_task import SendTask
    from airflow_eos.spark.single_evaluation import SingleEvaluation

log = logging.getLogger(__name__)

SWITCH = "spark.airflowEos.opaqueBlocks"
"""``false`` in Spark's configuration: Arrow processes go through a DataFrame in local sessions, too."""
GENERATED_CODE = "spark.airflowEos.generatedCode"
"""``true`` in Spark's configuration or the session's: Spark generates code for small runs, too."""
_CODEC = "spark.sql.execution.arrow.compression.codec"
_SPLIT = "spark.sql.execution.arrow.maxRecordsPerOutputBatch"
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_SEND_SETTINGS = {
    # A row is a record batch of up to 1 MB: the default of 10,000 rows would be one Arrow batch of gigabytes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    # A task answers once, when all is sent: Spark would take it for idle.
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "false",
}
_KEY_BYTES = 8


def intact_batches(spark: SparkSession) -> Mapping[str, str]:
    """Return settings under which Arrow batches pass unchanged; empty if the session's own let them pass."""
    # PyArrow cannot read what lz4 of Arrow's Java code (19) makes of a column of nulls or empty values.
    values = {_CODEC: "none"} if str(spark.conf.get(_CODEC, "none")).lower() == "lz4" else {}
    # Spark 4.2 yields rows of a batch twice that it splits by a number of rows.
    return values if spark.conf.get(_SPLIT, None) is None else {**values, _SPLIT: "-1"}


def planned_blocks(
    spark: SparkSession, sealing: Sealing, evaluation: SingleEvaluation, *, are_small: bool = True
) -> FrameBlocks | OpaqueBlocks:
    """Return the blocks of a seal, not yet materialised; calls a function that takes a DataFrame.

    :param are_small: False: the read tasks have met large records.
    :raises ConfigurationError: ``evaluation`` does not admit the plan.
    """
    if isinstance(sealing, ArrowSealing) and is_opaque(spark):
        task, layout = sealing.task()
        return OpaqueBlocks(spark, _routed(spark, task, layout.tasks), layout)
    frame, layout = sealing.rows()
    evaluation.admit(frame)
    return FrameBlocks(
        spark, route(frame, layout.tasks), layout, is_large=sealing.is_large, are_small=are_small
    )


def is_opaque(spark: SparkSession) -> bool:
    """Return whether Arrow processes need no DataFrame in this session."""
    if is_connect(spark) or not is_local(spark.sparkContext.master):
        return False
    return spark.sparkContext.getConf().get(SWITCH, "true") != "false"


def interpreted(spark: SparkSession, frame: DataFrame) -> Mapping[str, str]:
    """Return settings that make Spark interpret the plan of a small run; empty if generated code pays off.

    Spark generates Java code for a plan and compiles it. In a new JVM this takes longer than processing the
    rows of a small run. Expressions have the same values either way: Spark also interprets plans whose code
    does not compile. A plan that reads more than the run's source may be large.
    """
    if is_on(spark, GENERATED_CODE):
        return {}
    try:
        plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        is_small = plan.collectLeaves().size() == 1 and plan.subqueriesAll().size() == 0
    except Exception as error:  # noqa: BLE001 - of a platform that hides plans
        log.debug("what the plan reads is not known: %s", error)
        is_small = False
    return INTERPRETED if is_small else {}


@dataclass(eq=False)
class FrameBlocks:
    """Sealed rows as a local checkpoint of a DataFrame, classic or Connect: those of owner i in partition i.

    :param source: the sealed rows before they are materialised.
    :param layout: which task owns which target partition.
    :param is_large: whether the input is large enough for an analysis of the plan to pay off.
    :param are_small: False: the read tasks have met large records.
    """

    spark: SparkSession
    source: DataFrame
    layout: OwnerLayout
    is_large: bool
    are_small: bool
    frame: DataFrame | None = field(default=None, init=False)
    _plan_settings: Mapping[str, str] = field(default_factory=dict, init=False)

    def keep(self, *, local: bool) -> BlockCounts:
        """Materialise the rows on executors, cut off from their source; count them by another action.

        They are on disk: in memory, rows and buffers of a megabyte take up to twice the space in G1 that
        Spark accounts for, until the JVM runs out of memory.

        :param local: in this process; otherwise two replicas are kept, so that the loss of an executor does
            not require a new seal.
        :raises InconsistentSeal: names the difference.
        """
        from pyspark import StorageLevel

        level = StorageLevel.DISK_ONLY if local else StorageLevel.DISK_ONLY_2
        if local and not self.is_large:
            self._plan_settings = interpreted(self.spark, self.source)
        self._plan_settings = {**self._plan_settings, **intact_batches(self.spark)}  # process may set another
        row_settings: Mapping[str, str] = {}
        if self.is_large and self.are_small and only_selects(self.spark, self.source):
            row_settings = settings_of_small_records(self.spark)
        columns = only_used_columns(self.spark, self.source) if self.is_large else nullcontext()
        bound = large_records_refused(self.spark) if row_settings else nullcontext()
        # The settings are the inner blocks: on an interrupt they cancel the job before properties are reset.
        with (
            columns,
            bound,
            settings(self.spark, self._plan_settings),
            settings(self.spark, row_settings, alone=True),
        ):
            self.frame = checkpointed(self.source, level)
        with settings(self.spark, self._plan_settings):
            return read_manifest(self.frame)

    def send(self, task: SendTask) -> list[str]:
        """Run a task per owner, in one narrow job; return the tasks' answers."""
        frame = self.frame
        assert frame is not None, "keep() comes first"
        if task.streamed:
            frame = frame.sortWithinPartitions(*STREAM_ORDER)
        with settings(self.spark, {**self._plan_settings, **_SEND_SETTINGS}):
            return [row.answer for row in frame.mapInArrow(task, ANSWER_DDL).collect()]

    def batches(self) -> list[bytes]:
        """Return the batches, without trailers; for tables, whose batches are few and small."""
        assert self.frame is not None, "keep() comes first"
        named = self.frame.where("topic is not null and batch is not null")
        return [bytes(row.batch) for row in named.select("batch").collect()]

    def free(self) -> None:
        """Free the materialised rows; never raises."""
        if self.frame is not None:
            free_checkpoint(self.frame)


@dataclass(eq=False)
class OpaqueBlocks:
    """Like :class:`FrameBlocks`, as a local checkpoint of :mod:`airflow_eos.spark.opaque_rows`."""

    spark: SparkSession
    source: RDD[bytes]
    layout: OwnerLayout

    def keep(self, *, local: bool) -> BlockCounts:
        """Materialise and count in one action."""
        from pyspark import StorageLevel

        # Deserialised storage: elements are bytes, so there is nothing to serialise.
        self.source.persist(StorageLevel(True, True, False, True, 1 if local else 2))  # noqa: FBT003
        self.source.localCheckpoint()
        heads = self.source.mapPartitionsWithIndex(_heads)
        with settings(self.spark, {}):
            # Like collect, without its extra call of the JVM at the end.
            rows = self.spark.sparkContext.runJob(heads, iter)
        return count_blocks(rows)

    def send(self, task: SendTask) -> list[str]:
        """Send in one narrow job; Spark sorts first if an owner has many batches."""
        if task.streamed:
            sorted_rows = self._frame().sortWithinPartitions("value")
            send = partial(_send_sorted, task)
            with settings(self.spark, _SEND_SETTINGS):
                return [row.answer for row in sorted_rows.mapInArrow(send, ANSWER_DDL).collect()]
        return list(self.source.mapPartitionsWithIndex(partial(_send_elements, task)).collect())

    def batches(self) -> list[bytes]:
        """Collect the batches."""
        return list(self.source.mapPartitionsWithIndex(_batches).collect())

    def free(self) -> None:
        """Free the blocks."""
        free_blocks(self.source.unpersist)

    def _frame(self) -> DataFrame:
        from pyspark.sql import DataFrame

        binary = self.spark.sparkContext._jvm.org.apache.spark.sql.Encoders.BINARY()  # noqa: SLF001
        session: Any = self.spark._jsparkSession  # noqa: SLF001
        return DataFrame(session.createDataset(self.source._jrdd.rdd(), binary).toDF(), self.spark)  # noqa: SLF001


def _routed(spark: SparkSession, task: ArrowSealTask, owners: int) -> RDD[bytes]:
    """Return sealed elements, those of owner i in partition i; lazy."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    context: Any = spark.sparkContext
    places = context.parallelize([], max(1, len(task.tasks)))
    sealed: Any = places.mapPartitionsWithIndex(partial(_sealed_elements, task))
    # As in RDD.partitionBy: the elements go to the JVM unchanged, a number and bytes in turn.
    sealed._bypass_serializer = True  # noqa: SLF001
    jvm = context._jvm  # noqa: SLF001
    pairs = jvm.PairwiseRDD(sealed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    placed = pairs.partitionBy(jvm.PythonPartitioner(owners, 0))
    return RDD(jvm.PythonRDD.valueOfPair(placed), context, NoOpSerializer())


def _sealed_elements(task: ArrowSealTask, number: int, rows: Iterable[Any]) -> Iterator[bytes]:
    """Run seal task i in partition i; yield the number of an owner and an element in turn."""
    # Read the empty input to its end: otherwise Spark does not reuse the worker.
    deque(rows, maxlen=0)
    numbers = pa.RecordBatch.from_pydict({"id": [number]})
    for owner, element in opaque_rows.packed(task(iter([numbers]))):
        yield owner.to_bytes(_KEY_BYTES, "big")
        yield element


def _heads(task: int, elements: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    for element in elements:
        head, start = opaque_rows.head(element)
        is_note = head.topic is None and head.size is not None
        yield task, *head, bytes(element[start:]) if is_note else None


def _batches(_number: int, elements: Iterable[bytes]) -> Iterator[bytes]:
    for element in elements:
        head, start = opaque_rows.head(element)
        if head.topic is not None and head.size is not None:
            yield bytes(element[start:])


def _send_elements(task: SendTask, _number: int, elements: Iterable[bytes]) -> Iterator[str]:
    for answers in task(opaque_rows.unpacked(elements)):
        yield from answers.column(0).to_pylist()


def _send_sorted(task: SendTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    elements = (value.as_py() for batch in batches for value in batch.column(0))
    return task(opaque_rows.unpacked(elements))
