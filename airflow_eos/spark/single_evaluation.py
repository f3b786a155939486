"""Checks that the sealed rows come from one evaluation of the transform.

Spark recomputes data that is lost with an executor: map outputs of a shuffle, blocks of a cached DataFrame.
Tasks that have read the first evaluation keep its data, others read the second one. Unless a transform
returns the same rows in the same order each time, records are then lost and duplicated without an error
(SPARK-23207, SPARK-38160, SPARK-51016). A transform that runs only in the seal tasks needs no check: the rows
name the attempt of their task (:mod:`airflow_eos.spark.sealed_rows`).

========================  ================================================================================
session                   evidence
========================  ================================================================================
classic                   the driver's status store: a stage that ran in a second attempt or again in a
                          later job, or an executor that was lost while a cached DataFrame was read; and
                          the places of cached blocks (:mod:`airflow_eos.spark.cached_blocks`)
Connect, server from 4.2  Spark's own: it compares checksums of map outputs with those of the first
                          evaluation, and where they differ runs all tasks again that read them. It does
                          not cover cached DataFrames: plans that read them are refused
Connect, older server     none, as a client cannot query the driver: plans that shuffle are refused, too
one process (`local`)     not needed: if an output is lost, so are all its readers
========================  ================================================================================

A memory-only cache loses blocks even without the loss of an executor: those that do not fit are recomputed at
each read. Plans that read such a cache are refused in every session.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.cached_blocks import CachedBlocks
from airflow_eos.spark.errors import whole_text
from airflow_eos.spark.sealed_blocks import InconsistentSeal
from airflow_eos.spark.sealing import FrameSealing
from airflow_eos.spark.session import elements_of, is_connect, is_on, settings, spark_version, tagged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.spark.sealing import Sealing

REPEATABLE = "spark.airflowEos.repeatable"
"""``true`` in Spark's configuration: the author asserts that transforms return the same rows each time."""
_CHECKSUMS_FROM = (4, 2)
_CHECKSUMS = {
    f"spark.sql.shuffle.orderIndependentChecksum.{name}": "true"
    for name in ("enabled", "enableFullRetryOnMismatch", "enableQueryLevelRollbackOnMismatch")
}
# A checkpoint of the author's function hides its source.
_SHUFFLES = re.compile(r"(?<!Broadcast)Exchange|Shuffle|ExistingRDD")
_CACHED = "InMemory"
_CACHE = "InMemoryRelation"
_CACHED_IN_MEMORY_ONLY = re.compile(_CACHE + r" .*StorageLevel\((?!disk)")
_ABORTED = "Job aborted due to stage failure: "
_NOT_ROLLED_BACK = re.compile(
    f"{_ABORTED}(?:A shuffle map stage with indeterminate output|cannot rollback|rollback failed)",
    re.IGNORECASE,
)
_STORE_TIMEOUT = 60.0
"""Seconds to wait until the status store has seen the events of the seal."""
_POLL = 0.01
_UNKNOWN = "it cannot be told whether the transform was evaluated once"
_NOT_RUN = ("PENDING", "SKIPPED")
_OF_RUNS = "airflow-eos-"
"""Prefix of all tags of this package."""


class SingleEvaluation:
    """Watches one seal, from before the author's function is called until the blocks are counted.

    This base class accepts everything: it is for plans with nothing below the seal tasks.
    """

    def admit(self, sealed: DataFrame) -> None:
        """Refuse a plan whose evaluation could not be checked.

        :raises ConfigurationError: this session can never check it: names its version and the next step.
        """

    def check(self) -> None:
        """Check that everything was evaluated once.

        :raises InconsistentSeal: something below the seal was, or may have been, computed twice.
        """


@contextmanager
def single_evaluation(
    spark: SparkSession, sealing: Sealing, tag: str, *, local: bool
) -> Iterator[SingleEvaluation]:
    """Watch the seal that is made in this block.

    :param tag: tag of its jobs.
    :param local: whether driver and executor are one process: if an output is lost, Spark counts all as lost.
    """
    if not isinstance(sealing, FrameSealing):
        yield SingleEvaluation()
    elif local:
        yield OneProcess(spark)
    elif not is_connect(spark):
        yield StatusStoreEvidence(spark, tag)
    else:
        with settings(spark, _CHECKSUMS if spark_version(spark) >= _CHECKSUMS_FROM else {}):
            yield ServerEvidence(spark)


@dataclass(frozen=True, slots=True)
class OneProcess(SingleEvaluation):
    """For sessions of one process: if an output is lost, so are all its readers."""

    spark: SparkSession

    def admit(self, sealed: DataFrame) -> None:
        """Refuse memory-only caches."""
        refuse_caches_in_memory_only(self.spark, sealed)


@dataclass(frozen=True, slots=True)
class ServerEvidence(SingleEvaluation):
    """For Spark Connect, whose server repeats the readers of a second evaluation, or fails the job."""

    spark: SparkSession

    def admit(self, sealed: DataFrame) -> None:
        """Refuse cached DataFrames, and shuffles if the server keeps no checksums.

        :raises ConfigurationError: see :meth:`SingleEvaluation.admit`.
        """
        if is_on(self.spark, REPEATABLE):
            return
        plan = _text_of(self.spark, sealed._explain_string)  # noqa: SLF001
        if _CACHED in plan:
            action, alternative = "reads a cached DataFrame", "or do not cache it"
        elif _SHUFFLES.search(plan) and spark_version(self.spark) < _CHECKSUMS_FROM:
            action, alternative = "shuffles, or reads a checkpoint", "or Spark 4.2 or newer"
        else:
            return
        raise ConfigurationError(
            f"the transform {action}, and Spark {self.spark.version} does not show over Spark Connect "
            "whether it was evaluated once: after the loss of an executor, rows of an unrepeatable transform "
            f"could be missing or come twice. Use a classic session {alternative}; if the transform gives "
            f"the same rows each time it is evaluated, set {REPEATABLE}=true"
        )


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage that ran, from the status store.

    :param rdds: ids of the RDDs that it computes; a stage with the same ones repeats the work.
    :param attempt: number of its last attempt, from 0.
    :param written: records that this attempt wrote into a shuffle.
    """

    stage: int
    attempt: int
    rdds: frozenset[int]
    written: int


class StatusStoreEvidence(SingleEvaluation):
    """For classic sessions, by the driver's status store."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._context: Any = spark.sparkContext
        self._scala = self._context._jsc.sc()  # noqa: SLF001
        self._store = self._scala.statusStore()
        self._tracker = self._scala.statusTracker()
        self._first_job = self._fence_job()
        self._dropped = self._dropped_events()
        self._lost = self._lost_executors()
        self._cached = CachedBlocks(self._context)

    def admit(self, sealed: DataFrame) -> None:
        """Refuse caches whose blocks one stage may compute twice; :meth:`check` finds all other cases."""
        refuse_caches_in_memory_only(self._spark, sealed)
        refuse_caches_filled_by_several(self._spark, sealed)
        # The author's function may have filled a cache a moment ago.
        self._cached = CachedBlocks(self._context)

    def check(self) -> None:
        """Check all stages of the seal's jobs; the last of them counts the blocks.

        :raises InconsistentSeal: a stage ran twice, or a cache lost blocks, or that cannot be ruled out.
        """
        last_job = self._fence_job()
        if self._dropped_events() != self._dropped:
            raise InconsistentSeal(
                f"Spark's listener bus dropped events, so {_UNKNOWN}; raise "
                "spark.scheduler.listenerbus.eventqueue.appStatus.capacity"
            )
        jobs = {number: self._stages(number, last_job) for number in range(self._first_job + 1, last_job)}
        tagged_jobs = set(self._tracker.getJobIdsForTag(self._tag)) & jobs.keys()
        if not tagged_jobs:
            return
        # Jobs that the author's function starts in its own threads have no tag of a run.
        others = {number for number in jobs.keys() - tagged_jobs if _OF_RUNS in self._tags(number)}
        runs = {
            number: [run for run in map(self._run, jobs[number]) if run]
            for number in sorted(jobs.keys() - others)
        }
        counted = {rdd for run in runs.pop(max(tagged_jobs)) for rdd in run.rdds}
        computed = [run for several in runs.values() for run in several]
        repeated = computed_twice(computed)
        if repeated is not None:
            raise InconsistentSeal(repeated)
        cached = self._cached.kept() & {rdd for run in computed for rdd in run.rdds} - counted
        repeated = self._cached.computed_twice(cached)
        if repeated is not None:
            raise InconsistentSeal(repeated)
        lost = self._lost_executors() - self._lost
        if cached and lost:
            raise InconsistentSeal(
                f"executor {', '.join(sorted(lost))} was lost while the transform read a DataFrame that it "
                "caches: Spark computes the blocks that it held again"
            )

    def _fence_job(self) -> int:
        """Run an empty job and return its id once the status store has it, and so all events before it."""
        fence = f"airflow-eos-fence-{uuid.uuid4().hex[:12]}"
        with tagged(self._spark, fence):
            self._context._jsc.emptyRDD().count()  # noqa: SLF001
        end = time.monotonic() + _STORE_TIMEOUT
        while not (jobs := list(self._tracker.getJobIdsForTag(fence))):
            if time.monotonic() > end:
                raise InconsistentSeal(
                    f"Spark's status store is more than {_STORE_TIMEOUT:.0f} s behind, so {_UNKNOWN}"
                )
            time.sleep(_POLL)
        return int(jobs[0])

    def _tags(self, job: int) -> str:
        return str(self._store.job(job).jobTags().mkString(","))

    def _stages(self, job: int, last_job: int) -> list[int]:
        info = self._tracker.getJobInfo(job)
        if not info.isDefined():
            raise InconsistentSeal(
                f"Spark has forgotten job {job} of {self._first_job} to {last_job}, so {_UNKNOWN}; raise "
                "spark.ui.retainedJobs and spark.ui.retainedStages"
            )
        return list(info.get().stageIds())

    def _run(self, stage: int) -> StageRun | None:
        if not self._tracker.getStageInfo(stage).isDefined():
            raise InconsistentSeal(
                f"Spark has forgotten stage {stage} of the seal, so {_UNKNOWN}; raise spark.ui.retainedStages"
            )
        data = self._store.lastStageAttempt(stage)
        if str(data.status()) in _NOT_RUN:
            return None
        rdds = frozenset(map(int, data.rddIds().mkString(",").split(",")))
        return StageRun(stage, int(data.attemptId()), rdds, int(data.shuffleWriteRecords()))

    def _dropped_events(self) -> int:
        registry = self._scala.listenerBus().metrics().metricRegistry()
        return int(registry.counter("queue.appStatus.numDroppedEvents").getCount())

    def _lost_executors(self) -> set[str]:
        """Return the executors that are gone and held blocks; dynamic allocation removes idle ones."""
        every = elements_of(self._store.executorList(False))  # noqa: FBT003
        return {str(executor.id()) for executor in every if not executor.isActive() and executor.rddBlocks()}


def refuse_caches_in_memory_only(spark: Any, sealed: Any) -> None:
    """Refuse a plan that reads a DataFrame cached without a copy on disk.

    :raises ConfigurationError: names the alternatives.
    """
    if is_connect(spark):
        plan = _text_of(spark, sealed._explain_string)  # noqa: SLF001
    elif spark._jsparkSession.sharedState().cacheManager().isEmpty():  # noqa: SLF001
        return
    else:
        plan = _text_of(spark, sealed._jdf.queryExecution().optimizedPlan().toString)  # noqa: SLF001
    if _CACHED_IN_MEMORY_ONLY.search(plan) is None or is_on(spark, REPEATABLE):
        return
    raise ConfigurationError(
        "the transform reads a DataFrame that is cached in memory only, and Spark computes blocks again that "
        "do not fit: rows of an unrepeatable transform could be missing or come twice. Persist it at the "
        "default level, which spills to disk, or use localCheckpoint(); if the transform gives the same rows "
        f"each time it is evaluated, set {REPEATABLE}=true"
    )


def refuse_caches_filled_by_several(spark: Any, sealed: Any) -> None:
    """Refuse a plan on a cluster that reads an unfilled cache in several places.

    Each place has a stage, or tasks, that compute missing blocks: two executors may compute the same block at
    the same time, and each keeps its own copy.

    :raises ConfigurationError: names the alternatives.
    """
    if _unfilled_caches(spark, sealed) <= 1 or is_on(spark, REPEATABLE):
        return
    raise ConfigurationError(
        "the transform caches DataFrames and reads them at several places: executors may compute the same "
        "block side by side, and rows of an unrepeatable transform could be missing or come twice. Use "
        "localCheckpoint() in place of the cache, or count() the cached DataFrame before it is used; if the "
        f"transform gives the same rows each time it is evaluated, set {REPEATABLE}=true"
    )


def _unfilled_caches(spark: Any, sealed: Any) -> int:
    """Return in how many places a classic session's plan reads a cache that may be filled twice."""
    if spark._jsparkSession.sharedState().cacheManager().isEmpty():  # noqa: SLF001
        return 0
    leaves = sealed._jdf.queryExecution().optimizedPlan().collectLeaves()  # noqa: SLF001
    caches = [leaf for leaf in elements_of(leaves) if leaf.getClass().getSimpleName() == _CACHE]
    if str(spark.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true":
        return len(caches)
    return sum(not leaf.cacheBuilder().isCachedColumnBuffersLoaded() for leaf in caches)


def _text_of(spark: Any, plan: Callable[[], Any]) -> str:
    """Return the full text of a plan, which a setting of the session might truncate."""
    with settings(spark, {"spark.sql.maxPlanStringLength": str(2**31 - 16)}):
        return str(plan())


def not_rolled_back(error: BaseException) -> InconsistentSeal | None:
    """Return the error of a job that Spark aborted because a result came from two evaluations; else None.

    Spark has no class for it, but its own words come first in the text, before those of any task.
    """
    text = whole_text(error)
    if _NOT_ROLLED_BACK.match(text[max(0, text.find(_ABORTED)) :]) is None:
        return None
    return InconsistentSeal("Spark computed a shuffle of the transform again while its result was being kept")


def computed_twice(runs: list[StageRun]) -> str | None:
    """Return a description of a stage that a seal ran twice; None if there is none.

    The last two stages are the seal itself, whose repetitions the rows' attempts reveal.

    :param runs: the stages that ran, in reverse order.
    """
    by_rdds: defaultdict[frozenset[int], list[StageRun]] = defaultdict(list)
    for run in runs:
        by_rdds[run.rdds].append(run)
    if len(by_rdds) <= 2:  # noqa: PLR2004 - the seal tasks, and the owners of their batches
        return None
    for same in by_rdds.values():
        rerun = next((run for run in same if run.attempt), None)
        if rerun is not None:
            return f"Spark ran stage {rerun.stage} of the transform again (attempt {rerun.attempt})"
        if len(same) > 1 and any(run.written for run in same):
            return f"Spark ran stage {same[0].stage} of the transform again, as stage {same[-1].stage}"
    return None
