"""A Spark session for one task, by the rules of the Spark provider's ``PySparkOperator``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from airflow_eos.exceptions import ConfigurationError, RunFailed
from airflow_eos.hooks.masked_connection import find_connection
from airflow_eos.settings import class_data_folder, writes_class_data
from airflow_eos.spark import local_python
from airflow_eos.spark.address import check_host, is_loopback, is_on_this_host, shown_address
from airflow_eos.spark.distributions import LINES, extra_of, import_session_class
from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark.server_wait import wait_for_server
from airflow_eos.spark_host import jvm, worker_daemon
from airflow_eos.spark_host.background_archive import write_in_background
from airflow_eos.spark_host.jvm_stderr import sorted_first_lines
from airflow_eos.spark_host.local_session import LocalSession

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOCAL = "local[*]"
SERVER_PATIENCE = 60.0
"""Seconds to wait for a Spark Connect server on this host."""
REMOTE_PATIENCE = 600.0
"""Seconds to wait for a Spark Connect server on another host: as long as Spark's client retries."""
_OTHERS_WRITE = 0o022
_DAEMON = "spark.python.daemon.module"
_WORKERS_PATH = "spark.executorEnv.PYTHONPATH"


def spark_settings(conn_id: str | None, app_name: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark configuration: the connection's address and extra, then the task's own settings.

    :param conn_id: a ``spark_connect`` connection, or any connection whose host and port are a Spark master;
        None runs Spark in this process.
    :param config: takes precedence over the connection and its address (``spark.master``, ``spark.remote``).
    :raises ConfigurationError: the connection names no host, or one to which Spark does not send a token.
    :raises AirflowNotFoundException: the connection does not exist, or Airflow could not read it now.
    """
    settings = {"spark.app.name": app_name}
    address = LOCAL
    if conn_id:
        connection = find_connection(conn_id)
        if connection.conn_type == SparkConnectHook.conn_type:
            address = SparkConnectHook(conn_id).get_connection_url()
        elif connection.host:
            address = f"{connection.host}:{connection.port}" if connection.port else connection.host
        else:
            raise ConfigurationError(f"Spark connection {conn_id!r} names no host; give the master's address")
        settings.update({str(key): str(value) for key, value in connection.extra_dejson.items()})
    settings.update({str(key): str(value) for key, value in config.items()})
    if "spark.remote" not in settings and "spark.master" not in settings:
        settings["spark.remote" if address.startswith("sc://") else "spark.master"] = address
    _check_token(settings.get("spark.remote", ""))
    if "spark.remote" not in settings:
        # A progress bar redraws its line: in a task log that is noise. (A static setting: not for a server.)
        settings.setdefault("spark.ui.showConsoleProgress", "false")
        # By default a stream keeps the last hundred rows: sealed ones have a megabyte each.
        settings.setdefault("spark.serializer.objectStreamReset", "4")
    settings = {**local_defaults(settings.get("spark.master", ""), private_folders=True), **settings}
    if settings.get("spark.master", "").startswith("local") and _sockets_are_private():
        # Over TCP every small Python task waits 40 ms for a delayed acknowledgement. (Spark 4.1 and newer.)
        settings.setdefault("spark.python.unix.domain.socket.enabled", "true")
    return settings


def _check_token(remote: str) -> None:
    """Refuse a token without TLS for a loopback address, which the client would retry for ten minutes."""
    address = urlsplit(remote)
    in_clear = "token=" in address.path and "use_ssl=true" not in address.path.lower()
    if in_clear and address.hostname != "localhost" and is_loopback(address.hostname or ""):
        raise ConfigurationError(
            f"Spark Connect at {address.hostname}: without TLS, Spark's client sends a token to the host "
            "localhost only; give the connection that host"
        )


def _sockets_are_private() -> bool:
    """Return whether the umask keeps other users from writing, and so connecting, to Unix sockets made here.

    Over Unix sockets PySpark's workers require no secret.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return int(fields.get("Umask", "0"), 8) & _OTHERS_WRITE == _OTHERS_WRITE


def _not_started(error: Exception, address: str) -> RunFailed:
    """Return the error of a session that could not start."""
    from airflow_eos.hooks.spark_driver import nameless_user
    from airflow_eos.spark.errors import root_cause
    from airflow_eos.spark.spark_failure import is_infrastructure

    # If the JVM has ended, Python sees only a refused connection, or the last step of the application.
    has_ended = is_infrastructure(error) or "[JAVA_GATEWAY_EXITED]" in str(error)
    reason = "it has ended, and its last lines say why" if has_ended else root_cause(error)
    reason = "; ".join(filter(None, [reason, nameless_user()]))
    return RunFailed(f"Spark at {address} could not start: {reason}; nothing was read")


class TaskSession:
    """Starts the session on demand, and stops it at the end if it was started here.

    An existing session (``dag.test()`` in a program that has one) is used and left running.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._started: SparkSession | LocalSession | None = None
        self._has_own_jvm = False

    @property
    def address(self) -> str:
        """Spark's address, without the parameters of a Spark Connect address, which may contain a token."""
        address = self._settings.get("spark.remote") or self._settings.get("spark.master") or LOCAL
        return shown_address(address)

    def start(self, offsets: int, *, rows: bool = True) -> SparkSession:
        """Return the session; the first call may start a JVM.

        :param offsets: number of offsets that the run reads, for
            :func:`airflow_eos.spark_host.jvm.options_for`.
        :param rows: whether records pass the JVM as rows, which those of an Arrow process do not.
        :raises ConfigurationError: Spark should run here, and only its client is installed; or the address of
            a Spark Connect server has no host.
        :raises EnvironmentMismatch: PySpark and its client, as installed here, do not fit together.
        :raises SparkUnavailable: the Spark Connect server accepts no connections.
        :raises RunFailed: a session of this process could not start; names the reason.
        """
        workers = self._check_workers()
        SparkSession = import_session_class()  # noqa: N806 - a class
        from pyspark.util import is_remote_only

        if "spark.remote" not in self._settings and is_remote_only():
            raise ConfigurationError(
                f"master {self.address!r} needs Spark itself, and only its client is installed here: "
                f"pip install 'airflow-eos[{extra_of(LINES[-1])}]', or give conn_id a spark_connect "
                "connection"
            )
        active = SparkSession.getActiveSession()
        # Airflow logs every library at INFO, and py4j logs each connection that it closes.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        if active is not None:
            return SparkSession.builder.config(map=self._settings).getOrCreate()
        log.info("Starting Spark: %s", self.address)
        remote = self._settings.get("spark.remote")
        if remote is not None:
            from airflow_eos.spark.connect_client import retry_soon

            check_host(remote)
            wait_for_server(remote, SERVER_PATIENCE if is_on_this_host(remote) else REMOTE_PATIENCE)
            self._started = session = SparkSession.builder.config(map=self._settings).getOrCreate()
            retry_soon(session.client, remote)
            return session
        own = self._jvm_options(offsets, rows=rows)
        self._has_own_jvm = bool(own)
        # Forks Python workers with their imports done.
        daemon = {_DAEMON: worker_daemon.__name__} if workers is not None and workers.result() else {}
        try:
            with sorted_first_lines():
                started = LocalSession.start({**own, **daemon, **self._settings}, early_worker=bool(daemon))
        except Exception as error:
            raise _not_started(error, self.address) from error
        self._started = started
        return started.session

    def _check_workers(self) -> Future[bool] | None:
        """Check in the background, while Spark is imported, whether a local session's tasks run this Python.

        Spark would use the first python3 on PATH, which may be another one. Returns None if Spark runs
        elsewhere, or with its own modules.
        """
        if not local_python.is_local(self._settings.get("spark.master", "")):
            return None
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if self._settings.get("spark.submit.pyFiles"):
            return None
        paths = self._settings.get(_WORKERS_PATH), os.environ.get("PYTHONPATH")
        return local_python.ask(python, os.pathsep.join(filter(None, paths)))

    def _jvm_options(self, offsets: int, *, rows: bool) -> dict[str, str]:
        """Return options for a JVM that starts here; empty if the user has set some."""
        is_local = self._settings.get("spark.master", "").startswith("local")
        if not is_local or jvm.OPTIONS in self._settings or os.environ.get(jvm.OPTIONS_VARIABLE):
            return {}
        return {jvm.OPTIONS: jvm.options_for(offsets, class_data_folder(), rows=rows)}

    def stop(self) -> None:
        """Stop the session if it was started here; idempotent."""
        session: Any = self._started
        self._started = None
        if session is not None:
            try:
                if "spark.remote" in self._settings:
                    session.client.set_retry_policies([])  # to a server that is gone: for ten minutes
                session.stop()
            except Exception:  # the outcome of the run is known: a dead JVM must not fail the task
                log.warning("Spark did not stop cleanly", exc_info=True)
            if self._has_own_jvm and writes_class_data():
                write_in_background(class_data_folder())
