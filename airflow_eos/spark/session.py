"""What differs between a classic session and Spark Connect, in one place."""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.distributions import LINES, check_distributions, minor_version

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
CANCEL_TIMEOUT = 5.0
"""Seconds to wait for Spark's answer to a cancellation."""
# Clients whose retries are off at the moment: how many sends hold them, and what to restore.
_once_lock = threading.Lock()
_once: dict[int, tuple[int, list[Any], bool]] = {}


def check_version(spark: SparkSession) -> None:
    """Refuse Spark below 4.0, and a PySpark whose files are of two versions.

    :raises ConfigurationError: Spark is below 4.0; names its version.
    :raises EnvironmentMismatch: see :func:`~airflow_eos.spark.distributions.check_distributions`.
    """
    import pyspark

    check_distributions()
    for where, version in (("the Spark server", spark.version), ("this Python", pyspark.__version__)):
        if minor_version(version) < minor_version(LINES[0]):
            raise ConfigurationError(
                f"{where} runs Spark {version}, which this package does not support; use one of "
                f"{', '.join(LINES)}"
            )


def spark_version(spark: SparkSession) -> tuple[int, int]:
    """Return major and minor version of the Spark that computes; on Connect the server's."""
    return minor_version(spark.version)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def local_python(spark: SparkSession) -> str | None:
    """Return the Python that a session in this process starts for its tasks; None where others start it."""
    if is_connect(spark) or not str(spark.conf.get("spark.master", "")).startswith("local"):
        return None
    return str(spark.sparkContext.pythonExec)


def application_id(spark: SparkSession) -> str:
    """Return Spark's application id; on Connect that of the server."""
    return str(spark.conf.get("spark.app.id") or "")


def speculates(spark: SparkSession) -> bool:
    """Whether Spark may run a copy of a task beside it; where it does not say, it may."""
    try:
        return str(spark.conf.get("spark.speculation", "false")).lower() != "false"
    except Exception as error:  # noqa: BLE001 - a platform that hides its settings
        log.debug("spark.speculation cannot be read: %s", error)
        return True


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts, so that any thread can cancel them without touching others.

    A classic session's own tags are visible to the thread that set them only, so its context's are taken.
    """
    context = None if is_connect(spark) else spark.sparkContext
    if context is None:
        spark.addTag(tag)
    else:
        context.addJobTag(tag)
    try:
        yield
    finally:
        # A session that was stopped in the meantime (a killed task) must not hide the first error.
        with suppress(Exception):
            if context is None:
                spark.removeTag(tag)
            else:
                context.removeJobTag(tag)


def cancel_tag(spark: SparkSession, tag: str, timeout: float = CANCEL_TIMEOUT) -> None:
    """Cancel the jobs of a tag, from any thread or signal handler; never raises.

    A thread of its own asks Spark: the caller may be in the midst of a call, and its channel is then in use.
    """

    def cancel() -> None:
        try:
            if is_connect(spark):
                spark.interruptTag(tag)
            else:
                spark.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:  # noqa: BLE001 - a session that is gone has no jobs
            log.warning("Spark jobs with tag %s could not be cancelled: %s", tag, error)

    _aside(cancel, "airflow-eos-cancel", timeout)


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session settings for a while and restore what was there."""
    before = {key: spark.conf.get(key, None) for key in values}
    try:
        for key, value in values.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            with suppress(Exception):
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)


@contextmanager
def executed_once(spark: SparkSession) -> Iterator[None]:
    """Keep Spark Connect's client from sending an execution twice (law 1).

    Reattachable execution sends ExecutePlan again when the server has lost the operation, and retry policies
    send any request again. Both are switched off in the block, for this client, and restored. Classic
    sessions have neither.
    """
    if not is_connect(spark):
        yield
        return
    client: Any = spark.client
    with _once_lock:
        holders, policies, reattach = _once.get(
            id(client),
            (0, client.get_retry_policies(), client._use_reattachable_execute),  # noqa: SLF001
        )
        _once[id(client)] = (holders + 1, policies, reattach)
        client.disable_reattachable_execute()
        client.set_retry_policies([])
    try:
        yield
    finally:
        with _once_lock:
            holders, policies, reattach = _once.pop(id(client))
            if holders > 1:
                _once[id(client)] = (holders - 1, policies, reattach)
            else:
                client.set_retry_policies(policies)
                if reattach:
                    client.enable_reattachable_execute()


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_soon(spark: SparkSession, address: str) -> None:
    """Let the client of a Spark Connect server of this host retry every two seconds, for a minute.

    By itself it waits up to a minute between tries, ten minutes in all. A server of this host is back within
    seconds or not at all, and a run cannot use it then: its session is lost.

    :param address: ``sc://host:port/;...``; of another host, or no such address: nothing is changed.
    """
    if not (
        address.startswith("sc://") and is_connect(spark) and is_loopback(urlsplit(address).hostname or "")
    ):
        return
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: Any = spark.client
    client.set_retry_policies([DefaultPolicy(max_retries=35, backoff_multiplier=2.0, max_backoff=2_000)])


def observed(df: DataFrame, name: str) -> list[int] | None:
    """Return the metrics that ``df.observe(name, ...)`` collected on Spark Connect in the action of ``df``.

    None where they cannot be had. :class:`pyspark.sql.Observation` is no way: it blocks for ever when the
    action never met the observed plan, and belongs to the first action, not to ours.
    """
    try:
        flows = dict(df.executionInfo.flows)
        return [int(v) for v in flows[name].values()] if name in flows else None
    except Exception as error:  # noqa: BLE001 - a count that informs must never fail a run
        log.debug("observed metrics are not available: %s", error)
        return None


def checkpointed(df: DataFrame, level: Any) -> DataFrame:
    """Materialise a DataFrame on the executors, cut off from what it was computed from.

    To be freed by :func:`free_checkpoint`: on Connect the client would otherwise free it whenever Python's
    garbage collector finds it, by a request without time-out in the midst of anything.
    """
    frame = df.localCheckpoint(eager=True, storageLevel=level)
    if is_connect(df.sparkSession):
        frame._plan._spark_session = None  # noqa: SLF001 - what the relation's __del__ looks at
    return frame


def free_checkpoint(df: DataFrame, timeout: float = CANCEL_TIMEOUT) -> None:
    """Free the blocks of a checkpoint now, not at some garbage collection; never raises."""

    def free() -> None:
        try:
            if is_connect(df.sparkSession):
                from pyspark.sql.connect.plan import RemoveRemoteCachedRelation

                client: Any = df.sparkSession.client
                command = RemoveRemoteCachedRelation(df._plan).command(client)  # noqa: SLF001
                client.execute_command(command)
            else:
                df._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001, FBT003
        except Exception as error:  # noqa: BLE001 - the session's end will do it
            log.debug("checkpoint blocks are left to the end of the session: %s", error)

    _aside(free, "airflow-eos-free", timeout)


def free_elements(elements: RDD[bytes], timeout: float = CANCEL_TIMEOUT) -> None:
    """Free the blocks of a checkpoint that is no DataFrame; never raises."""

    def free() -> None:
        try:
            elements.unpersist()
        except Exception as error:  # noqa: BLE001 - the session's end will do it
            log.debug("checkpoint blocks are left to the end of the session: %s", error)

    _aside(free, "airflow-eos-free", timeout)


def _aside(call: Callable[[], None], name: str, timeout: float) -> None:
    """Run a call in a thread of its own and wait a while."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    thread.join(timeout)
