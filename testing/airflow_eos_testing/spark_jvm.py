"""JVM options for Spark processes that live for a minute, as those of tests and demonstrations do.

The optimising compiler and loading classes from jars take most of the CPU of such a process. Without the one,
and with a class-data archive instead of the other, a local session with its first jobs takes about a third.

``python -m airflow_eos_testing.spark_jvm`` writes the archive, once per environment.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_eos_testing import class_data
from airflow_eos_testing.java import find_java

log = logging.getLogger(__name__)

OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"
"""What ``spark-submit``, and so every local PySpark session, adds to its JVM's options."""

_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_TIMEOUT = 180.0

_JOBS = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
numbers.selectExpr("id % 7 AS k", "cast(id AS string) AS v").groupBy("k").count().repartition(2).collect()
spark.stop()
gateway = __import__("pyspark").SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def quick_start() -> dict[str, str]:
    """Environment with which Spark starts quickly; what the caller has set stays."""
    if os.environ.get(OPTIONS_VARIABLE):
        return {}
    archive = _archive()
    sharing = class_data.use_options(archive) if archive.exists() else []
    return {OPTIONS_VARIABLE: " ".join((*_OPTIONS, *sharing))}


def write_archive() -> None:
    """Run a few jobs in a session of their own and keep the classes they needed, unless that was done."""
    archive = _archive()
    if archive.exists():
        return
    with tempfile.TemporaryDirectory(prefix="airflow-eos-spark-") as folder:
        dumped = Path(folder) / "classes.jsa"
        options = " ".join((*_OPTIONS, *class_data.dump_options(dumped)))
        done = subprocess.run(
            [sys.executable, "-c", _JOBS],
            env={
                **os.environ,
                OPTIONS_VARIABLE: options,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode or not dumped.exists():
            log.warning("No class-data archive was written, Spark starts slower: %s", done.stdout[-500:])
            return
        class_data.install(dumped, archive)


def _archive() -> Path:
    import pyspark

    jars = sorted((Path(str(pyspark.__file__)).parent / "jars").glob("*.jar"))
    return class_data.archive_path(f"spark-{pyspark.__version__}", find_java(), jars)


if __name__ == "__main__":
    write_archive()
