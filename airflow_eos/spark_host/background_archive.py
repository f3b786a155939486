"""Writes the class-data archive for later tasks: once, after the first task on a host without one."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark_host import class_data, jvm

log = logging.getLogger(__name__)

AGAIN_AFTER = 86_400
"""Seconds until a process that left no archive may be followed by another one."""
_SCRIPT = """
import os, sys
os.nice(19)
from pathlib import Path
from airflow_eos.spark_host import jvm
print(jvm.write_archive(Path(sys.argv[1]), Path(sys.argv[2])))
"""


def write_in_background(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a process that writes the class-data archive of the installed Spark, if there is none.

    The process has the lowest priority, ends within a few minutes (:func:`jvm.write_archive` has a time-
    out) and outlives the calling task. It does not see Airflow's configuration, connections and
    variables. Its output goes to ``NAME.log`` next to the archive. The age of that file limits all
    tasks that share the folder to one such process a day.

    :param folder: folder of the archives; created if it is missing.
    :return: the process; None if the archive exists, the folder is writable for other users, another task
        started such a process within a day, or none can be started.
    """
    try:
        java = jvm.java()
        archive = jvm.archive_of(folder, java)
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        if class_data.is_trusted(archive) or not class_data.is_private(folder):
            return None
        with archive.with_suffix(".log").open("ab") as output:
            fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = os.fstat(output.fileno())
            if state.st_size and abs(time.time() - state.st_mtime) < AGAIN_AFTER:
                return None
            output.truncate(0)
            output.write(b"airflow-eos writes Spark's class data: airflow eos warm-spark\n")
            output.flush()
            process = _start(folder, java, output)
    except BlockingIOError:  # another task starts it now
        return None
    except (OSError, ConfigurationError) as error:
        log.info("Spark's class data are not written: %s; see airflow eos warm-spark", error)
        return None
    log.info("Class data for the next start of Spark are written in the background: %s", archive)
    return process


def _start(folder: Path, java: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own Python, our own text
        [sys.executable, "-c", _SCRIPT, str(folder), str(java)],
        env=jvm.environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
