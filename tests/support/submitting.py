"""Calls spark-submit as the operator does, without Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from airflow_eos.operators.submitted_files import SubmittedFiles
from airflow_eos.spark import submit_main


def submit(
    files: SubmittedFiles, process: str, master: str, log: IO[bytes], *, carried: bool, **conf: str
) -> subprocess.Popen[bytes]:
    """Start a driver in client mode.

    :param process: ``"module:function"`` of a submitted module.
    :param log: receives the driver's output.
    :param carried: the application file contains the specification, as for a driver on the cluster.
    :param conf: Spark settings, with ``__`` for a dot.
    """
    application, specification = Path(submit_main.__file__), str(files.spec)
    if carried:
        application, specification = files.with_specification(application), files.spec.name
        files.spec.unlink()
    settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    settings |= {name.replace("__", "."): value for name, value in conf.items()}
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", master, "--deploy-mode", "client"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        *("--py-files", ",".join(map(str, files.py_files)), str(application)),
        *("--airflow-eos-process", process, "--airflow-eos-spec", specification),
    ]
    pythons = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.Popen(command, env={**os.environ, **pythons}, stdout=log, stderr=log)
