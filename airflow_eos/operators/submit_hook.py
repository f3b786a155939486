"""Reads a submission from the Spark provider's hook; only this module uses its private members.

The hook is the provider's ``SparkSubmitHook``, whose own operator uses these members in the same way.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil

from airflow_eos import exceptions
from airflow_eos.exceptions import ConfigurationError, EosError, ProcessFailed
from airflow_eos.hooks.spark_driver import Backend, SparkDriver

log = logging.getLogger(__name__)

_SUBMITTED_POD = re.compile(r"submission ID \S+:(\S+)")
"""Matches namespace and driver pod in the last line of Spark's submission client on Kubernetes."""


def is_in_cluster(hook: Any) -> bool:
    """Return whether the driver runs on the cluster (``deploy_mode``)."""
    return bool(hook._connection["deploy_mode"] == "cluster")  # noqa: SLF001


def master_of(hook: Any) -> str:
    """Return Spark's master."""
    return str(hook._connection["master"])  # noqa: SLF001


def settings_of(hook: Any) -> dict[str, str]:
    """Return the application's Spark settings, as far as the hook knows them."""
    return {**hook._conf, "spark.master": master_of(hook)}  # noqa: SLF001


def cluster_manager(hook: Any) -> Backend:
    """Return the cluster manager of a driver in cluster mode."""
    if hook._is_yarn_cluster_mode:  # noqa: SLF001
        return "yarn"
    return "kubernetes" if hook._is_kubernetes else "standalone"  # noqa: SLF001


def check_deferrable(hook: Any, task_id: str) -> None:
    """Raise ConfigurationError, naming what is missing, where the provider would wait on the worker."""
    if hook._should_track_driver_status:  # noqa: SLF001
        return
    if not is_in_cluster(hook):
        advice = "a driver in client mode runs in the task itself: set deploy_mode='cluster' or leave it out"
    elif hook._is_kubernetes and not hook._should_track_driver_via_k8s_api():  # noqa: SLF001
        advice = "on Kubernetes it needs track_driver_via_k8s_api=True"
    elif hook._is_yarn_cluster_mode and not hook._yarn_track_via_rm_api:  # noqa: SLF001
        advice = "on YARN it needs yarn_track_via_rm_api=True"
    else:
        return
    raise ConfigurationError(f"deferrable=True of task {task_id!r} would be ignored: {advice}")


def call_when_started(hook: Any, call: Callable[[], None]) -> None:
    """Let the hook call a function once the process of ``spark-submit`` exists."""
    read = hook._process_spark_submit_log  # noqa: SLF001 - the first method that is called then

    def called_and_read(lines: Iterator[str]) -> None:
        call()
        read(_naming_pod(hook, lines) if hook._is_kubernetes else lines)  # noqa: SLF001

    hook._process_spark_submit_log = called_and_read  # noqa: SLF001


def _naming_pod(hook: Any, lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines of ``spark-submit``, and set the hook's driver pod.

    The provider itself recognises only submissions to a namespace called ``spark``.
    """
    for line in lines:
        match = _SUBMITTED_POD.search(line)
        if match:
            hook._kubernetes_driver_pod = match[1]  # noqa: SLF001
        yield line


def terminate_children(pid: int, timeout: float) -> None:
    """Terminate the Python driver that ``spark-submit`` started here: SIGTERM to its children; never raises.

    :param timeout: seconds to wait for their end.
    """
    with suppress(psutil.Error):
        children = psutil.Process(pid).children()
        for child in children:
            with suppress(psutil.Error):
                child.terminate()
        psutil.wait_procs(children, timeout)


def kill_on_yarn(hook: Any, conn_id: str, seconds: float) -> bool:
    """Kill the application over REST; return False if that does not apply to this job."""
    job = getattr(hook, "_yarn_application_id", None)
    if not (job and hook._is_yarn_cluster_mode and hook._yarn_track_via_rm_api):  # noqa: SLF001
        return False
    try:
        SparkDriver("yarn", job, conn_id, hook=hook).kill(seconds)
    except Exception as error:  # noqa: BLE001 - the next attempt fences it in any case
        log.warning("Application %s could not be killed: %s", job, error)
    return True


def error_in_output(hook: Any, mark: str) -> EosError | None:
    """Return the error that the application printed (client mode).

    :param mark: prefix of the error's line, which nobody else can write.
    """
    for line in reversed(list(getattr(hook, "_last_submit_log_lines", ()))):
        match = re.search(rf"{re.escape(mark)} (\w+)((?: \[[\w.]+\])?): (.*)", line)
        if match:
            kind = getattr(exceptions, match[1], None)
            if kind is ProcessFailed:
                return ProcessFailed(match[3], raised=(match[2].strip(" []"),))
            if isinstance(kind, type) and issubclass(kind, EosError):
                return kind(match[3])
    return None
