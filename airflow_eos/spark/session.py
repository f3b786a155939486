"""The differences between classic sessions and Spark Connect."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.distributions import (
    LINES,
    LINES_WITHOUT_CLIENT,
    check_distributions,
    minor_version,
)
from airflow_eos.spark.spark_failure import is_server_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
CANCEL_TIMEOUT = 5.0
"""Seconds to wait for Spark's answer to a cancellation."""
Restore = Callable[[], object]
_lock = threading.Lock()
_changing = threading.Lock()
_changes: dict[Hashable, tuple[int, Restore]] = {}
"""The number of active blocks per change, and the function that undoes it."""
_held: weakref.WeakKeyDictionary[Any, dict[str, list[str | None]]] = weakref.WeakKeyDictionary()
"""By session and setting: the original value, then those of the active blocks."""
_OF_ONE_RUN = 2
"""Values of a setting that one run has reserved: the original value, and None for it."""
_tag: ContextVar[str | None] = ContextVar("the tag of the jobs that this thread starts", default=None)


@contextmanager
def changed(key: Hashable, change: Callable[[], Restore]) -> Iterator[None]:
    """Change something in this block; of concurrent blocks the first changes it, and the last restores it.

    :param change: makes the change and returns the function that undoes it.
    """
    with _changing:
        blocks, restore = _changes.get(key) or (0, change())
        _changes[key] = blocks + 1, restore
    try:
        yield
    finally:
        with _changing:
            blocks, restore = _changes.pop(key)
            if blocks > 1:
                _changes[key] = blocks - 1, restore
            else:
                restore()


def check_version(spark: SparkSession) -> None:
    """Refuse Spark below 4.0, and a PySpark whose files are of two versions.

    :raises ConfigurationError: Spark is below 4.0; names its version.
    :raises EnvironmentMismatch: see :func:`~airflow_eos.spark.distributions.check_distributions`.
    """
    import pyspark

    check_distributions()
    for component, version in (("the Spark server", spark.version), ("this Python", pyspark.__version__)):
        if minor_version(version) < minor_version(LINES[0]):
            raise ConfigurationError(
                f"{component} runs Spark {version}, which this package does not support; use one of "
                f"{', '.join((*LINES, *LINES_WITHOUT_CLIENT))}"
            )


def spark_version(spark: SparkSession) -> tuple[int, int]:
    """Return major and minor version of the Spark that computes: on Connect, the server's."""
    return minor_version(spark.version)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_on(spark: SparkSession, name: str) -> bool:
    """Whether a setting of the session, or of Spark's configuration, is ``true``."""
    return str(spark.conf.get(name, "false")).lower() == "true"


def is_stopped(spark: SparkSession) -> bool:
    """Whether code of this process has stopped the session."""
    session: Any = spark
    return bool(session.is_stopped) if is_connect(spark) else session.sparkContext._jsc is None  # noqa: SLF001


def local_python(spark: SparkSession) -> str | None:
    """Return the Python that a session in this process starts for its tasks; None for other sessions."""
    if is_connect(spark) or not str(spark.conf.get("spark.master", "")).startswith("local"):
        return None
    return str(spark.sparkContext.pythonExec)


def speculates(spark: SparkSession) -> bool:
    """Return whether Spark may run speculative copies of tasks; True if unknown."""
    try:
        return str(spark.conf.get("spark.speculation", "false")).lower() != "false"
    except Exception as error:  # noqa: BLE001 - a platform that hides its settings
        log.debug("spark.speculation cannot be read: %s", error)
        return True


def elements_of(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence in the JVM of a classic session."""
    return [sequence.apply(number) for number in range(sequence.size())]


def block_manager(context: Any) -> Any:
    """Return the driver's block manager, by fields: methods of SparkEnv name a type that Spark 4.3 lacks."""
    holder: Any = context._jsc.sc()  # noqa: SLF001
    owner = holder.getClass()
    for name in ("_env", "blockManager"):
        field = owner.getDeclaredField(name)
        field.setAccessible(True)
        holder, owner = field.get(holder), field.getType()
    return holder


def add_tag(spark: SparkSession, tag: str) -> None:
    """Tag the jobs that this thread starts from now on."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


@contextmanager
def tagged(spark: SparkSession, tag: str, *, once: bool = False) -> Iterator[None]:
    """Tag the jobs that this thread starts, so that any thread can cancel them and no others.

    A classic session's own tags are visible only to the thread that set them, so the context's are used.

    :param once: send a plan to a Spark Connect server at most once, whatever happens (law 1).
    """
    context = None if is_connect(spark) else spark.sparkContext
    add_tag(spark, tag)
    outer = _tag.set(tag)
    try:
        with nullcontext() if context is not None else _prepared_client(spark, once=once):
            yield
    finally:
        _tag.reset(outer)
        # A session that was stopped in the meantime (a killed task) must not hide the first error.
        with suppress(Exception):
            if context is None:
                spark.removeTag(tag)
            else:
                context.removeJobTag(tag)


@contextmanager
def _prepared_client(spark: SparkSession, *, once: bool) -> Iterator[None]:
    from airflow_eos.spark.connect_client import distinct_errors, executed_once

    # PySpark gives the result of a checkpoint to the thread's active session, or to the first of the process.
    threads: Any = type(spark)._active_session  # noqa: SLF001
    active, threads.session = getattr(threads, "session", None), spark
    try:
        with distinct_errors(spark.client), executed_once(spark.client) if once else nullcontext():
            yield
    finally:
        threads.session = active


def cancel_tag(spark: SparkSession, tag: str, timeout: float = CANCEL_TIMEOUT) -> None:
    """Cancel the jobs of a tag, from any thread or signal handler; never raises.

    Another thread asks Spark, because the caller's own channel may be in use.
    """

    def cancel() -> None:
        try:
            if is_connect(spark):
                spark.interruptTag(tag)
            else:
                spark.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:  # noqa: BLE001 - a session that is gone has no jobs
            log.warning("Spark jobs with tag %s could not be cancelled: %s", tag, error)

    wait([in_daemon_thread("airflow-eos-cancel", cancel)], timeout)


@contextmanager
def cancelled_after(spark: SparkSession, tag: str, seconds: float) -> Iterator[None]:
    """Cancel the jobs of a tag if this block takes longer."""
    timer = threading.Timer(seconds, cancel_tag, (spark, tag))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str | None], *, alone: bool = False) -> Iterator[None]:
    """Set session settings in this block; the last of concurrent blocks restores the original values.

    An exception out of the block cancels the tagged jobs before the settings are restored. The time-out of a
    task interrupts a JVM call, which goes on; the next call of this thread would wait for its end.

    :param values: None: the original value, whatever an outer or concurrent block has set.
    :param alone: set nothing if another run has a block with one of these settings.
    """
    with _lock:
        held = _held.setdefault(spark, {})
        if alone and any(len(held.get(key, ())) > _OF_ONE_RUN for key in values):
            values = {}
        for key, value in values.items():
            held.setdefault(key, [spark.conf.get(key, None)]).append(value)
    is_lost = False  # a server that is gone has no settings, and its client asks for ten minutes
    try:
        for key, value in values.items():
            with _lock:
                if value is not None or len(held[key]) > _OF_ONE_RUN:
                    _put(spark, key, held[key])
        yield
    except BaseException as error:
        is_lost = is_server_gone(error.__cause__ or error)
        tag = _tag.get()
        if tag is not None and not is_lost:
            cancel_tag(spark, tag)
        raise
    finally:
        for key, value in values.items():
            with suppress(Exception), _lock:
                active = held[key]
                del active[-1 - active[::-1].index(value)]  # the last such; the first one is the original
                if len(active) == 1:
                    del held[key]
                if not is_lost and (value is not None or key in held):
                    _put(spark, key, active)


def _put(spark: SparkSession, key: str, active: list[str | None]) -> None:
    """Set a setting to the value of the last active block, or to the original value."""
    now = active[0] if active[-1] is None else active[-1]
    if now is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, now)


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a property of the jobs that this thread starts in this block; classic sessions only."""
    context = spark.sparkContext
    try:
        context.setLocalProperty(name, value)
        yield
    finally:
        with suppress(Exception):  # a session that was stopped has no more jobs
            context.setLocalProperty(name, None)


def observed(df: DataFrame, name: str) -> list[int] | None:
    """Return the metrics of ``df.observe(name, ...)`` in the action of ``df`` on Connect; None if unknown.

    :class:`pyspark.sql.Observation` is unsuitable: it blocks forever if the action does not run the observed
        plan, and it belongs to the first action, which is not ours.
    """
    try:
        flows = dict(df.executionInfo.flows)
        return [int(v) for v in flows[name].values()] if name in flows else None
    except Exception as error:  # noqa: BLE001 - a count that informs must never fail a run
        log.debug("observed metrics are not available: %s", error)
        return None


def checkpointed(df: DataFrame, level: Any) -> DataFrame:
    """Materialise a DataFrame on the executors, cut off from its source.

    To be freed by :func:`free_checkpoint`: on Connect, the client would otherwise free it at some garbage
    collection, by a request without time-out.
    """
    frame = df.localCheckpoint(eager=True, storageLevel=level)
    if is_connect(df.sparkSession):
        frame._plan._spark_session = None  # noqa: SLF001 - read by the relation's __del__
    return frame


def free_checkpoint(df: DataFrame) -> None:
    """Free the blocks of a checkpoint; never raises."""

    def free() -> None:
        if is_connect(df.sparkSession):
            from pyspark.sql.connect.plan import RemoveRemoteCachedRelation

            client: Any = df.sparkSession.client
            command = RemoveRemoteCachedRelation(df._plan).command(client)  # noqa: SLF001
            client.execute_command(command)
        else:
            df._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001, FBT003

    free_blocks(free)


def free_blocks(free: Callable[[], object]) -> None:
    """Run a call that frees the blocks of a checkpoint; wait up to :data:`CANCEL_TIMEOUT`; never raises."""

    def attempt() -> None:
        try:
            free()
        except Exception as error:  # noqa: BLE001 - the session's end will do it
            log.debug("checkpoint blocks are left to the end of the session: %s", error)

    wait([in_daemon_thread("airflow-eos-free", attempt)], CANCEL_TIMEOUT)
