"""The jars of a Kafka broker, of YARN and of an Iceberg catalog, fetched once by the Ivy that PySpark ships.

The cache is ``$AIRFLOW_EOS_CACHE``, else ``$XDG_CACHE_HOME/airflow-eos``, else ``~/.cache/airflow-eos``, with
one folder ``kafka-<version>`` (about 45 jars, 44 MB), ``yarn-<version>`` (4 jars, 65 MB) or
``iceberg-rest-<version>`` (17 jars, 25 MB). A folder that exists is complete: it is filled under another name
and renamed, under a file lock, so that concurrent processes fetch once.

Behind a mirror, ``$AIRFLOW_EOS_IVY_SETTINGS`` names an Ivy settings file (as ``spark.jars.ivySettings``).
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.exceptions import EmbeddedKafkaError, EmbeddedServerError, EmbeddedYarnError
from airflow_eos_testing.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

SCALA_VERSION = "2.13"
FETCH_TIMEOUT = 900.0
"""Seconds for resolving and downloading; a cold resolve takes about 40."""

# Kafka's own dependencies include no logging backend; PySpark ships a matching set of these four.
_LOGGING_JARS = ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-2*.jar", "log4j-core-*.jar")
_YARN_SHARED_JARS = (
    "hadoop-client-api-*.jar",
    "hadoop-client-runtime-*.jar",
    "log4j-1.2-api-*.jar",
    "jcl-over-slf4j-*.jar",
)
# PySpark has the minicluster's dependencies, but not Bouncy Castle, which YARN's web proxy needs.
_YARN_IVY = """<ivy-module version="2.0"><info organisation="airflow-eos" module="yarn"/><dependencies>
<dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{version}" transitive="false"/>
<dependency org="org.bouncycastle" name="bcpkix-jdk18on" rev="1.82"/>
</dependencies></ivy-module>
"""


ICEBERG_VERSION = "1.10.0"
_ICEBERG_SHARED_JARS = (
    "hadoop-client-api-*.jar",
    "hadoop-client-runtime-*.jar",
    "jackson-annotations-2*.jar",
    "jackson-core-2*.jar",
    "jackson-databind-2*.jar",
    "avro-1*.jar",
)
# Listed by name: Jetty's modules have transitive dependencies on artifacts that only its own build has.
_ICEBERG_IVY = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="airflow-eos" module="iceberg-rest"/><dependencies>
<dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{version}" transitive="false">
<artifact name="iceberg-open-api" type="jar" ext="jar" m:classifier="test-fixtures"/></dependency>
<dependency org="org.apache.iceberg" name="iceberg-core" rev="{version}" transitive="false">
<artifact name="iceberg-core" type="jar" ext="jar"/>
<artifact name="iceberg-core" type="jar" ext="jar" m:classifier="tests"/></dependency>
{others}</dependencies></ivy-module>
"""
_ICEBERG_OTHERS = (
    ("org.apache.iceberg", "iceberg-api", ICEBERG_VERSION),
    ("org.apache.iceberg", "iceberg-common", ICEBERG_VERSION),
    ("org.apache.iceberg", "iceberg-bundled-guava", ICEBERG_VERSION),
    ("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
    ("org.apache.httpcomponents.client5", "httpclient5", "5.5"),
    ("org.apache.httpcomponents.core5", "httpcore5", "5.3.4"),
    *(
        ("org.eclipse.jetty", f"jetty-{module}", "11.0.25")
        for module in ("http", "io", "security", "server", "servlet", "util")
    ),
    ("org.eclipse.jetty.toolchain", "jetty-jakarta-servlet-api", "5.0.2"),
    ("org.xerial", "sqlite-jdbc", "3.46.1.3"),
)


def cache_root() -> Path:
    """Return the folder that holds one folder of jars per Kafka version."""
    own = os.environ.get("AIRFLOW_EOS_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "airflow-eos"


def broker_classpath(version: str) -> tuple[Path, ...]:
    """Return the jars to run the broker of a Kafka version, fetched if they are not in the cache yet.

    PySpark's logging jars come first: their newer ``slf4j-api`` serves Kafka's 1.7 calls and finds log4j 2.
    The order is stable, as a class-data archive requires.
    """
    return (*logging_jars(), *sorted(fetch_jars(version).glob("*.jar")))


def fetch_jars(version: str) -> Path:
    """Return the folder with the broker jars of a Kafka version; downloads them on first use.

    :raises EmbeddedKafkaError: the fetch failed; the message holds the end of Ivy's output.
    :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
    """
    target = cache_root() / f"kafka-{version}"
    marker = f"kafka_{SCALA_VERSION}-{version}.jar"
    wanted = ["-dependency", "org.apache.kafka", f"kafka_{SCALA_VERSION}", version]
    return _fetched(
        target, marker, f"Kafka {version}", f"the Kafka {version} broker (about 44 MB)", lambda _: wanted
    )


def yarn_classpath() -> tuple[Path, ...]:
    """Return the jars to run YARN's daemons, fetched if they are not in the cache yet.

    The version is that of the Hadoop client in PySpark, whose jars provide the rest.

    :raises EmbeddedYarnError: the fetch failed; the message holds the end of Ivy's output.
    :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
    """
    version = pyspark_jar("hadoop-client-api-*.jar").stem.removeprefix("hadoop-client-api-")
    marker = f"hadoop-client-minicluster-{version}.jar"
    try:
        jars = fetch_described(
            f"yarn-{version}", marker, f"YARN {version} (about 65 MB)", _YARN_IVY.format(version=version)
        )
    except EmbeddedKafkaError as error:
        raise EmbeddedYarnError(str(error)) from error
    own = tuple(pyspark_jar(pattern) for pattern in _YARN_SHARED_JARS)
    return (*logging_jars(), *own, *sorted(jars.glob("*.jar")))


def iceberg_classpath() -> tuple[Path, ...]:
    """Return the jars to run Iceberg's own REST catalog on SQLite, fetched if they are not in the cache yet.

    :raises EmbeddedServerError: the fetch failed; the message holds the end of Ivy's output.
    :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
    """
    others = "".join(
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" transitive="false"/>'
        for organisation, name, revision in _ICEBERG_OTHERS
    )
    try:
        jars = fetch_described(
            f"iceberg-rest-{ICEBERG_VERSION}",
            f"iceberg-open-api-{ICEBERG_VERSION}-test-fixtures.jar",
            f"the Iceberg REST catalog {ICEBERG_VERSION} (about 25 MB)",
            _ICEBERG_IVY.format(version=ICEBERG_VERSION, others=others),
        )
    except EmbeddedKafkaError as error:
        raise EmbeddedServerError(str(error)) from error
    own = tuple(pyspark_jar(pattern) for pattern in _ICEBERG_SHARED_JARS)
    return (*logging_jars(), *own, *sorted(jars.glob("*.jar")))


def fetch_described(folder: str, marker: str, label: str, ivy: str) -> Path:
    """Return the cache folder with the jars of an Ivy module description; downloads them on first use.

    :param marker: a jar that the complete folder contains.
    :param label: name and size, for messages.
    :param ivy: text of an ``ivy.xml``.
    :raises EmbeddedKafkaError: the fetch failed; the message holds the end of Ivy's output.
    """

    def wanted(scratch: Path) -> list[str]:
        file = scratch / "ivy.xml"
        file.write_text(ivy)
        return ["-ivy", str(file)]

    return _fetched(cache_root() / folder, marker, label.partition(" (")[0], label, wanted)


def _fetched(target: Path, marker: str, name: str, label: str, wanted: Callable[[Path], list[str]]) -> Path:
    """Return a folder of the cache, filled on first use.

    :param marker: a jar that a complete folder contains.
    :param wanted: gets a scratch folder, returns the arguments that tell Ivy what to resolve.
    """
    if not target.is_dir():
        with file_lock(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():  # another process may have fetched while this one waited
                _fetch(target, marker, name, label, wanted)
    if not (target / marker).exists():
        raise EmbeddedKafkaError(f"{target} holds no {marker}: remove the folder and retry")
    return target


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the system releases it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(target: Path, marker: str, name: str, label: str, wanted: Callable[[Path], list[str]]) -> None:
    ivy = pyspark_jar("ivy-*.jar")
    java = find_java()
    for stale in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)  # left by a process that was killed while fetching
    log.warning("Fetching %s into %s; this is done once", label, target)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        staged = Path(scratch) / "jars"
        command = [str(java), "-jar", str(ivy)]
        settings = os.environ.get("AIRFLOW_EOS_IVY_SETTINGS")
        if settings:
            command += ["-settings", settings]
        # A separate cache: a Spark session may be resolving in Ivy's default one at the same time.
        command += ["-cache", str(Path(scratch) / "ivy"), "-confs", "default"]
        command += wanted(Path(scratch))
        # "bundle" is the packaging of some dependencies (scala-logging): "jar" alone misses them.
        command += [
            "-types",
            "jar",
            "bundle",
            "-retrieve",
            f"{staged}/[artifact]-[revision](-[classifier]).[ext]",
        ]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=FETCH_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedKafkaError(
                f"Fetching {name} took more than {FETCH_TIMEOUT:.0f} s: check the network and retry"
            ) from error
        if done.returncode or not (staged / marker).exists():
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise EmbeddedKafkaError(
                f"Fetching {name} failed (exit code {done.returncode}): check the version, the "
                f"network and, behind a mirror, AIRFLOW_EOS_IVY_SETTINGS. Ivy said:\n{tail}"
            )
        staged.rename(target)


def logging_jars() -> tuple[Path, ...]:
    """Return PySpark's slf4j and log4j jars, in a fixed order."""
    return tuple(pyspark_jar(pattern) for pattern in _LOGGING_JARS)


def pyspark_jar(pattern: str) -> Path:
    """Return the newest jar in the installed PySpark that matches a pattern.

    :raises ConfigurationError: PySpark is missing or is a client-only installation.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "PySpark is not installed; the embedded broker needs its jars: pip install pyspark"
        )
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    paths = sorted(jars.glob(pattern))
    if not paths:
        raise ConfigurationError(
            f"{jars} holds no {pattern}: install the full pyspark distribution, not pyspark-client"
        )
    return paths[-1]
