"""The Python interpreter of a local session's tasks: usually the driver's own.

A local session starts its workers by the name of an interpreter, in its own folder and environment. A
subprocess checks, without importing them, whether that interpreter finds the driver's modules. This takes
0.1 s; the first job of a session takes ten times as long.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow_eos.daemon_thread import in_daemon_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

MODULES = ("airflow_eos", "kafka", "pyarrow", "numpy", "google_crc32c", "lz4")
_TIMEOUT = 10.0
_LOCAL = re.compile(r"local(\[.*\])?")
# Prints the file of each module, which the driver compares with its own, imported or not.
_QUESTION = """
import importlib.util, json, sys
specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps([list(sys.version_info), {name: spec and spec.origin for name, spec in specs.items()}]))
"""
_checks: dict[tuple[str, str], Future[bool]] = {}
_lock = Lock()


def is_local(master: str) -> bool:
    """Return whether a Spark master's address means driver and executor in one process."""
    return _LOCAL.fullmatch(master) is not None


def ask(python: str, path: str) -> Future[bool]:
    """Check, in the background and once, whether an interpreter finds the modules that this process has.

    :param python: as Spark starts it: a path, or a name on ``PATH``.
    :param path: its ``PYTHONPATH``.
    """
    with _lock:
        if (python, path) not in _checks:
            _checks[python, path] = in_daemon_thread("airflow-eos-python", partial(_finds_ours, python, path))
        return _checks[python, path]


def has_drivers_modules(spark: SparkSession) -> bool:
    """Return whether the tasks of a classic local session find the modules that this process has.

    False if files were added to the session, because these are found first.
    """
    context: Any = spark.sparkContext
    if not is_local(context.master) or context.listFiles or _added(spark):
        return False
    paths = context.environment.get("PYTHONPATH"), context._jvm.System.getenv("PYTHONPATH")  # noqa: SLF001
    return ask(context.pythonExec, os.pathsep.join(filter(None, paths))).result()


def _added(spark: SparkSession) -> bool:
    try:
        manager = spark._jsparkSession.artifactManager()  # noqa: SLF001
        return not manager.getPythonIncludes().isEmpty()
    except Exception as error:  # noqa: BLE001 - of another version of Spark
        log.debug("Artifacts of the session cannot be listed: %s", error)
        return True


def _finds_ours(python: str, path: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        process = subprocess.run(  # noqa: S603 - the same that Spark starts for its tasks
            [python, "-c", _QUESTION, *MODULES],
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=True,
        )
        version, worker_origins = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.debug("%s does not say which modules it finds: %s", python, error)
        return False
    origins = {name: spec and spec.origin for name in MODULES for spec in [find_spec(name)]}
    return bool(version == list(sys.version_info) and worker_origins == origins)
