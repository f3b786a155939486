"""Options for the JVM of a session that a task starts itself, and the class-data archive that speeds it up.

A scheduled task starts a JVM, runs once and ends. Most of its CPU goes into loading classes from jars and
into the optimising compiler, whose work does not pay off before such a task ends.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.distributions import import_session_class
from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark_host import class_data

log = logging.getLogger(__name__)

OPTIONS = "spark.driver.extraJavaOptions"
OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"
"""Variable with options that ``spark-submit``, and so every local PySpark session, adds to its JVM's."""

SMALL_PLAN = 100_000
"""Offsets up to which a run ends before the optimising compiler pays off."""

FEW_CORES = 2
"""Cores of this process up to which a concurrent garbage collector would take CPU from Spark's tasks."""

SERIAL_COLLECTOR = "-XX:+UseSerialGC"
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", SERIAL_COLLECTOR, "-XX:-UsePerfData")
LATE_OPTIMISER = (
    "-XX:Tier4InvocationThreshold=40000",
    "-XX:Tier4MinInvocationThreshold=4800",
    "-XX:Tier4CompileThreshold=120000",
    "-XX:Tier4BackEdgeThreshold=320000",
)
"""Eight times HotSpot's defaults: only code that runs for each record of a large plan is worth optimising."""
_TIMEOUT = 180.0
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_OF_AIRFLOW = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")

_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    **local_defaults("local[2]", private_folders=True),
}
_JOBS = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.config(map=json.loads(sys.argv[1])).getOrCreate()
numbers = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
numbers.selectExpr("id % 7 AS k", "cast(id AS string) AS v").groupBy("k").count().repartition(2).collect()
spark.stop()
gateway = __import__("pyspark").SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def options_for(offsets: int, folder: Path, *, rows: bool = True) -> str:
    """Return the options of a local session's JVM.

    :param offsets: number of offsets that the run reads: up to :data:`SMALL_PLAN` code is compiled fast but
        not optimised, and beyond that only the hottest code is.
    :param rows: whether records pass the JVM as rows; otherwise optimised code never pays off.
    :param folder: where archives are, see :func:`write_archive`.
    """
    options = log_options()
    if offsets <= SMALL_PLAN or not rows:
        options += SHORT_LIVED
    else:
        options += LATE_OPTIMISER
        if len(os.sched_getaffinity(0)) <= FEW_CORES:
            options.append(SERIAL_COLLECTOR)
    archive = archive_of(folder, java())
    if class_data.is_trusted(archive):
        options += class_data.use_options(archive)
    else:
        log.info(
            "Spark would start in about half the time with class data in %s: airflow eos warm-spark", folder
        )
    return shlex.join(options)


def environment() -> dict[str, str]:
    """Return this process's environment without Airflow's configuration, connections and variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_AIRFLOW)}


def check_spark() -> None:
    """Check that a JVM of Spark can start here.

    :raises ConfigurationError: only Spark's client is installed.
    :raises EnvironmentMismatch: PySpark and its client, as installed here, do not fit together.
    """
    import_session_class()
    from pyspark.util import is_remote_only

    if is_remote_only():
        raise ConfigurationError("only Spark's client is installed: no JVM of Spark starts here")


def log_options() -> list[str]:
    """Return the option that sends Spark's log to standard output, and only errors to standard error.

    Empty if there is a Log4j configuration of the user, which Spark then uses.
    """
    if os.environ.get("LOG4J_CONFIGURATION_FILE"):
        return []
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in os.environ:
        folder = str(Path(os.environ["SPARK_HOME"]) / "conf")
    if folder is not None and any(
        settings.suffix != ".template" for settings in Path(folder).glob("log4j2*")
    ):
        return []
    return [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"]


def java() -> Path:
    """Return the Java that Spark uses: of ``JAVA_HOME``, else the first on ``PATH``.

    :raises ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if path is None:
        raise ConfigurationError("Spark needs Java 17 or later: none in JAVA_HOME or on PATH")
    return Path(path)


def archive_of(folder: Path, java: Path) -> Path:
    """Return the path of the archive for the installed Spark, whether it exists or not."""
    import pyspark

    jars = sorted((Path(str(pyspark.__file__)).parent / "jars").glob("*.jar"))
    return class_data.archive_path(folder, f"spark-{pyspark.__version__}", java, jars)


def write_archive(folder: Path, java: Path) -> Path:
    """Run a few jobs in a separate session and archive the classes they load, unless the archive exists.

    :return: path of the archive, 150 MB.
    :raises ConfigurationError: only Spark's client is installed, the folder cannot hold an archive, or the
        session failed: with its last lines.
    :raises EnvironmentMismatch: PySpark and its client, as installed here, do not fit together.
    """
    check_spark()
    archive = archive_of(folder, java)
    if class_data.is_trusted(archive):
        return archive
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        if not class_data.is_private(folder):
            raise ConfigurationError(
                f"other users can write to {folder}: no class data of Spark are used there (chmod go-w)"
            )
        # Not in /tmp: others could replace the folder there while the JVM still writes.
        with tempfile.TemporaryDirectory(prefix=".airflow-eos-spark-", dir=folder) as temporary:
            dumped = Path(temporary) / "classes.jsa"
            exit_code, output = _run_jobs(dumped)
            if exit_code or not dumped.exists():
                raise ConfigurationError(f"Spark wrote no class-data archive: {output[-500:]}")
            class_data.install(dumped, archive)
    except OSError as error:
        raise ConfigurationError(f"Spark's class data cannot be kept in {folder}: {error}") from error
    return archive


def _run_jobs(dumped: Path) -> tuple[int, str]:
    """Run the jobs in a session whose JVM writes an archive at exit; return its exit code and output."""
    process = subprocess.Popen(  # noqa: S603 - our own Python, our own text
        [sys.executable, "-c", _JOBS, json.dumps(_SETTINGS)],
        env={
            **environment(),
            OPTIONS_VARIABLE: shlex.join((*log_options(), *SHORT_LIVED, *class_data.dump_options(dumped))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_TIMEOUT)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()  # until the JVM, too, has closed its output
        if isinstance(error, subprocess.TimeoutExpired):
            raise ConfigurationError(
                f"Spark wrote no class-data archive within {_TIMEOUT:g} s: try again when this host has less "
                "to do"
            ) from None
        raise
    return process.returncode, output
