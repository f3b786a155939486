"""A Spark session in this process that starts and stops faster.

Spark creates a session in one thread, and starts the daemon of its Python workers, whose imports take about
as long, when the first task needs it. Here both happen at once. At the end PySpark waits up to a second and a
half until its accumulator server notices that it should stop. Here it stops in the background.

Permissions keep other users of the host out of the session's block folders. Encrypting the files would take a
sixth of the CPU of a run with an Arrow process, whose JVM has no optimising compiler.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark.session import block_manager, is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

SWITCH = "spark.airflowEos.earlyWorker"
"""``false`` in Spark's configuration: the first task starts the daemon of the Python workers."""
# With these, PySpark may return a Spark Connect session for a local master.
_API_MODE = "spark.api.mode"
_CONNECT_VARIABLES = ("SPARK_API_MODE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")
_SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_SIMPLIFIED_VARIABLE = "SPARK_SIMPLIFIED_TRACEBACK"
_WORKER_TIMEOUT = 5.0
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Matches the names of secret settings, like Spark's own ``spark.redaction.regex``."""
_FETCHED = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
"""Settings with URLs that ``spark-submit`` fetches at its start, with the credentials on its command line."""


@dataclass(eq=False)
class LocalSession:
    """A session that was started here.

    :param worker: the thread that starts the first Python worker; None: the first task starts it.
    """

    session: SparkSession
    worker: threading.Thread | None = None

    @classmethod
    def start(cls, settings: Mapping[str, str], *, early_worker: bool) -> LocalSession:
        """Start a session, and a JVM for it if this process has none.

        :param early_worker: start a Python worker while the session is created; for sessions whose tasks run
            on this host.
        """
        from pyspark.sql import SparkSession

        if not _is_classic(settings):
            encrypted = {**local_defaults(settings.get("spark.master", "")), **settings}
            return cls(SparkSession.builder.config(map=encrypted).getOrCreate())
        _start_jvm(settings)
        early_worker = early_worker and settings.get(SWITCH, "true").lower() != "false"
        worker = _start_worker(settings) if early_worker else None
        session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        _keep_others_out(session.sparkContext)
        return cls(session, worker)

    def stop(self) -> None:
        """Stop the session and its context."""
        if is_connect(self.session):
            self.session.stop()
            return
        if self.worker is not None:
            self.worker.join(_WORKER_TIMEOUT)  # Spark logs an error for a job that ends with its context
        context: Any = self.session.sparkContext
        server = getattr(context, "_accumulatorServer", None)
        context._accumulatorServer = None  # noqa: SLF001 - PySpark would wait for it
        try:
            self.session.stop()
        finally:
            if server is not None:
                _stop_in_background(server)


def _stop_in_background(server: Any) -> None:
    def stop() -> None:
        with suppress(OSError):  # the file of its socket is gone
            server.shutdown()

    threading.Thread(target=stop, name="airflow-eos-accumulators", daemon=True).start()
    if isinstance(server.server_address, str):  # of a Unix socket: the process may end before the server
        Path(server.server_address).unlink(missing_ok=True)


def _is_classic(settings: Mapping[str, str]) -> bool:
    return settings.get(_API_MODE, "classic").lower() == "classic" and not any(
        name in os.environ for name in _CONNECT_VARIABLES
    )


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start a JVM if this process has none, without secrets on its command line, which all users can read.

    Secrets follow with the context's settings. PySpark would put all settings on the command line.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._jvm is None:  # noqa: SLF001
        fetches = any("://" in settings.get(name, "") for name in _FETCHED)
        shown = [(name, value) for name, value in settings.items() if fetches or not _SECRET.search(name)]
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))  # noqa: SLF001


def _start_worker(settings: Mapping[str, str]) -> threading.Thread:
    """Start a context, and a thread whose job starts a Python worker."""
    from pyspark import InheritableThread, SparkConf, SparkContext

    context = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    if settings.get(_SIMPLIFIED, "true").lower() != "false":
        # A daemon serves workers of one environment; Spark sets this variable only for SQL workers.
        context.environment[_SIMPLIFIED_VARIABLE] = "1"
    thread = InheritableThread(target=_run_empty_task, args=(context,), name="airflow-eos-worker")
    thread.daemon = True
    thread.start()
    return thread


def _keep_others_out(context: Any) -> None:
    """Deny other users access to the block folders, which they can read with the usual umask."""
    for folder in block_manager(context).diskBlockManager().localDirs():
        Path(folder.getPath()).chmod(0o700)


def _run_empty_task(context: SparkContext) -> None:
    try:
        context.runJob(context.parallelize([], 1), iter)
    except Exception as error:  # noqa: BLE001 - the first task of the run meets the same error, and reports it
        log.debug("no Python worker was started early: %s", error)
