"""Seals a planned run on Spark and sends it.

The run protocol decides when, and under which identity; this module knows nothing of transactions. Sealing
writes nothing to Kafka, so Spark may repeat it. Sending is one job with one stage over blocks that are on the
executors: no transform, no shuffle, no second attempt.
"""

from __future__ import annotations

import logging
import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EosError, ProcessFailed, RecordRefused, RunFailed
from airflow_eos.model.output import SealedManifest
from airflow_eos.spark.arrow_batches import OWN_LIMITS
from airflow_eos.spark.blocks import intact_batches, planned_blocks
from airflow_eos.spark.by_value import pickled_by_value
from airflow_eos.spark.dead_letters import may_be_records
from airflow_eos.spark.errors import (
    ErrorMark,
    RecordsAreLarge,
    process_error,
    process_failed,
    root_cause,
    send_error,
    whole_text,
)
from airflow_eos.spark.failure_search import FailureSearch
from airflow_eos.spark.first_attempts import first_attempts_only
from airflow_eos.spark.preflight import Environment, check_environment
from airflow_eos.spark.process import is_arrow_process
from airflow_eos.spark.sealed_blocks import InconsistentSeal
from airflow_eos.spark.sealing import ArrowSealing, FrameSealing
from airflow_eos.spark.session import (
    add_tag,
    cancel_tag,
    cancelled_after,
    is_connect,
    is_stopped,
    settings,
    speculates,
    tagged,
)
from airflow_eos.spark.set_aside import RecordsRaise, SetAside
from airflow_eos.spark.single_evaluation import not_rolled_back, single_evaluation
from airflow_eos.spark.spark_failure import is_block_lost
from airflow_eos.spark.stage_log import progress
from airflow_eos.spark.task_log import hide_tasks
from airflow_eos.wire.client_config import CLUSTER_SETTING, ClientConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.output import PartitionReceipt
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.model.table import DataFileMade
    from airflow_eos.spark.blocks import FrameBlocks, OpaqueBlocks
    from airflow_eos.spark.sealing import Sealing
    from airflow_eos.spark.single_evaluation import SingleEvaluation
    from airflow_eos.table_ports import TableWriter

log = logging.getLogger(__name__)
Process = Callable[..., Any]

MAX_SEALS = 3
"""Seals with inconsistent blocks before the run fails."""
STREAMED_FROM = 64 << 20
"""Bytes of one owner task above which Spark sorts its batches and the task streams them."""
_CANCEL_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class SealedBlocks:
    """Sealed batches on the executors.

    :param blocks: one partition per owner task; see :mod:`airflow_eos.spark.sealed_rows`.
    :param attempts: the attempt whose rows the manifest counted, per seal task.
    """

    manifest: SealedManifest
    blocks: FrameBlocks | OpaqueBlocks
    attempts: Mapping[int, int]

    @property
    def largest_owner(self) -> int:
        """Bytes of the owner task with the most to send."""
        sizes: Counter[int] = Counter()
        for target in self.manifest.targets:
            sizes[self.blocks.layout.owner(target.topic, target.partition)] += target.size
        return max(sizes.values(), default=0)


@dataclass(frozen=True, slots=True)
class SealedFiles:
    """Data files of a table, written by the counted task attempts; no blocks are left on the executors."""

    manifest: SealedManifest
    files: tuple[DataFileMade, ...]


def _files_of(sealed: SealedBlocks) -> SealedFiles:
    """Read the names of data files from their blocks, and free the blocks."""
    manifest = sealed.manifest
    try:
        named = [pickle.loads(data) for data in sealed.blocks.batches()]  # noqa: S301 - tasks of ours
    except Exception as error:
        raise InconsistentSeal(f"the names of data files cannot be read: {error}") from error
    finally:
        sealed.blocks.free()
    # In read order: an earlier task has earlier records.
    files = tuple(file for *_, file in sorted(named, key=lambda entry: entry[:2]))
    counted = (sum(target.batches for target in manifest.targets), manifest.records)
    if (len(files), sum(file.rows for file in files)) != counted:
        raise InconsistentSeal(f"(files, rows) {counted} were written, the blocks name {len(files)} files")
    return SealedFiles(replace(manifest, targets=()), files)


class SparkDataPlane:
    """Implements ``airflow_eos.ports.SealAndSend`` on a Spark session, classic or Connect.

    :param spark: the author's session; its settings are restored.
    :param spec: the run; its client configuration reaches executors only inside serialised tasks.
    :param process: ``process(df)`` or ``process(df, run)``; see :mod:`airflow_eos.spark.process`.
    :param cluster_id: id of the driver's Kafka cluster: tasks refuse brokers of another one.
    """

    def __init__(
        self, spark: SparkSession, spec: RunSpec, process: Process, cluster_id: str | None = None
    ) -> None:
        hide_tasks()
        self._spark = spark
        self._spec = spec
        self._process = process
        given = ClientConfig.of(spec.kafka)
        self._config = ClientConfig.of({**dict(given.items), CLUSTER_SETTING: cluster_id})
        self._settings: Mapping[str, str | None] = {} if is_connect(spark) else OWN_LIMITS
        with suppress(Exception):  # of a session that is gone: its next call says so
            self._settings = {**self._settings, **intact_batches(spark)}
        self._tag = f"airflow-eos-{uuid.uuid4().hex[:12]}"
        self._mark = ErrorMark()
        self._cancelled = threading.Event()

    def seal(self, plan: RunPlan, writer: TableWriter | None = None) -> SealedBlocks | SealedFiles:
        """See :class:`~airflow_eos.ports.SealAndSend`.

        :raises RecordRefused: the settings of a target topic refuse a record.
        :raises UnknownTopic: a target topic does not exist.
        :raises RunFailed: a Spark job failed.
        """
        self._check_cancelled()
        with tagged(self._spark, self._tag):
            environment = check_environment(self._spark, self._spec.compression)
        self._check_cancelled()
        set_aside = SetAside()
        are_small = True
        inconsistent = 0
        while inconsistent < MAX_SEALS:
            with (
                tagged(self._spark, self._tag),
                pickled_by_value(self._process),
                settings(self._spark, self._settings),
            ):
                try:
                    return self._seal(plan, environment, set_aside, writer, are_small=are_small)
                except InconsistentSeal as problem:
                    inconsistent += 1
                    log.warning("sealed batches are inconsistent (try %d): %s", inconsistent, problem)
                    last = problem
                except RecordsAreLarge as large:
                    are_small = False
                    log.info("%s: the ranges are read again, in batches for large records", large)
                except RecordsRaise as more:
                    # At least one more each time, and max_dead_letters bounds them.
                    set_aside = more.set_aside
                except BaseException:
                    # Also for a kill or a time-out of the Airflow task: no job of ours may go on.
                    cancel_tag(self._spark, self._tag)
                    raise
        raise RunFailed(f"the ranges were sealed {MAX_SEALS} times and never consistently: {last}")

    def send(
        self, sealed: SealedBlocks, identity: ProducerIdentity, timeout: float
    ) -> Sequence[PartitionReceipt]:
        """See :class:`~airflow_eos.ports.SealAndSend`."""
        from airflow_eos.spark.send_task import SECOND_ATTEMPT_WAIT, SendTask, read_answers

        manifest = sealed.manifest
        if not manifest.targets:
            return []
        self._check_cancelled()
        # Without speculation a second attempt means that the first is lost, so it need not wait to be killed.
        wait = 0.0
        watched: AbstractContextManager[None] = nullcontext()
        if speculates(self._spark):
            wait = SECOND_ATTEMPT_WAIT
            if not is_connect(self._spark):
                wait, watched = timeout, first_attempts_only(self._spark)
        task = SendTask(
            config=self._config,
            identity=identity,
            expected={t.topic_partition: (t.batches, t.records) for t in manifest.targets},
            attempts=sealed.attempts,
            delivery_timeout=self._spec.delivery_timeout.total_seconds(),
            timeout=timeout,
            streamed=sealed.largest_owner > STREAMED_FROM,
            second_attempt_wait=wait,
            mark=self._mark,
        )
        try:
            with (
                # Tasks enforce the time-out themselves; this covers those that start late or never, or hang.
                cancelled_after(self._spark, self._tag, timeout + _CANCEL_GRACE),
                tagged(self._spark, self._tag, once=True),
                settings(self._spark, self._settings),
                progress(self._spark, f"sending {manifest.records} records"),
                watched,
            ):
                answers = sealed.blocks.send(task)
            return read_answers(answers, manifest)
        except BaseException as error:
            # Tasks that still run must not go on writing.
            cancel_tag(self._spark, self._tag)
            if isinstance(error, Exception):
                raise send_error(error, self._mark) from error
            raise

    def release(self, sealed: SealedBlocks | SealedFiles) -> None:
        """Free the materialised blocks; the table's upkeep removes data files of runs without a commit."""
        if isinstance(sealed, SealedBlocks):
            sealed.blocks.free()

    def cancel(self, timeout: float) -> None:
        """Cancel this object's Spark jobs, from any thread; never raises.

        :param timeout: seconds to wait for Spark's answer.
        """
        self._cancelled.set()
        cancel_tag(self._spark, self._tag, timeout)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise RunFailed("the run was cancelled; nothing more is sealed or sent")

    # -- sealing ------------------------------------------------------------------------------------------

    def _seal(
        self,
        plan: RunPlan,
        environment: Environment,
        set_aside: SetAside,
        writer: TableWriter | None,
        *,
        are_small: bool,
    ) -> SealedBlocks | SealedFiles:
        sealing_class = ArrowSealing if is_arrow_process(self._process) else FrameSealing
        sealing = sealing_class(
            self._spark,
            self._spec,
            plan,
            self._config,
            self._process,
            environment.slots,
            self._mark,
            set_aside,
            writer,
        )
        with single_evaluation(self._spark, sealing, self._tag, local=environment.local) as evaluation:
            with self._process_errors():
                blocks = planned_blocks(self._spark, sealing, evaluation, are_small=are_small)
                add_tag(self._spark, self._tag)  # the author's function may have cleared all tags
            kept = self._kept(plan, environment, sealing, blocks, evaluation)
        return kept if writer is None else _files_of(kept)

    def _kept(
        self,
        plan: RunPlan,
        environment: Environment,
        sealing: Sealing,
        blocks: FrameBlocks | OpaqueBlocks,
        evaluation: SingleEvaluation,
    ) -> SealedBlocks:
        # The author's function may have run for long without a job that could be cancelled.
        self._check_cancelled()
        with (
            progress(self._spark, f"sealing {sum(r.span for r in plan.ranges)} offsets"),
            self._process_errors(sealing),
        ):
            try:
                counts = blocks.keep(local=environment.local)
                evaluation.check()
                if sealing.dead_letters is not None:
                    sealing.dead_letters.check(counts.dead_letters, counts.failing)
                read, late = sealing.reads(blocks.source, counts)
            except BaseException:
                cancel_tag(self._spark, self._tag)  # first: an interrupted JVM call goes on running
                blocks.free()
                raise
        dead_letters = counts.dead_letters + len(sealing.set_aside.records)
        due = sealing.letters_due(counts)
        manifest = SealedManifest(counts.targets, read, late, dead_letters, due, environment.to_dict())
        if dead_letters:
            log.warning(
                "process failed on %d records, which go to topic %s with the error in their headers",
                dead_letters,
                self._spec.dead_letter_topic,
            )
        return SealedBlocks(manifest, blocks, counts.attempts)

    @contextmanager
    def _process_errors(self, sealing: Sealing | None = None) -> Iterator[None]:
        """Translate errors of Spark and of the author's code, except an inconsistent seal.

        :param sealing: the failed seal, whose failing records are searched for; None before its tasks run.
        :raises RecordsRaise: names the failing records, if there are dead letters.
        """
        try:
            yield
        except (InconsistentSeal, EosError):
            raise  # raised in this process, not by Spark
        except Exception as error:
            if sealing is None and is_stopped(self._spark):  # Spark's own errors do not say so
                self._check_cancelled()
                raise ProcessFailed(
                    "process stopped the Spark session, in which its result was to be computed, nothing was "
                    "written: take stop() out of the function, then run the task again"
                ) from error
            inconsistent = not_rolled_back(error)
            if inconsistent is not None:
                raise inconsistent from error
            if is_block_lost(error):
                # Blocks of the seal, or of a checkpoint by the author's function, which makes a new one.
                raise InconsistentSeal(f"blocks are gone with their executor: {root_cause(error)}") from error
            failure = process_error(error, self._mark)
            search = FailureSearch(self._spark, self._tag, self._mark, self._check_cancelled)
            # If a task has named the error, Spark's stack trace adds nothing to it.
            named_by_task = self._mark.error_in(error) is not None
            if sealing is not None and isinstance(failure, RecordRefused):
                raise search.of_refusal(sealing, error) from None
            if named_by_task:
                raise failure from None
            if sealing is None or type(failure) is not ProcessFailed:
                raise failure from error
            log.info("::group::What Spark says of the failure\n%s\n::endgroup::", whole_text(error))
            search.refuse_broken_spark(error)
            if sealing.dead_letters is not None and may_be_records(failure.raised):
                raise RecordsRaise(search.more_set_aside(sealing, sealing.dead_letters, error)) from None
            smallest, place, way = search.smallest_failure(sealing, error)
            raise process_failed(smallest, place, way if may_be_records(failure.raised) else "") from None
