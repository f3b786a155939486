"""Spark's own Kafka connector, fetched by PySpark's Ivy into the cache of the test brokers.

A peer to measure against; not part of the product.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from airflow_eos_testing.jars import cache_root, file_lock, pyspark_jar
from airflow_eos_testing.java import find_java

SPARK = "4.2.0"
# The token provider of the connector's own version is not published everywhere; this one is compatible.
MODULES = (
    ("spark-sql-kafka-0-10_2.13", SPARK),
    ("spark-token-provider-kafka-0-10_2.13", "4.0.0"),
)
TRANSITIVE = (
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)


def connector_jars() -> list[Path]:
    """Return the connector's jars and its dependencies that Spark does not ship."""
    folder = cache_root() / f"spark-kafka-{SPARK}"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock")):
        wanted = [("org.apache.spark", name, version) for name, version in MODULES] + list(TRANSITIVE)
        for organisation, name, version in wanted:
            if not (folder / f"{name}-{version}.jar").is_file():
                fetch(folder, organisation, name, version)
    return sorted(folder.glob("*.jar"))


def fetch(folder: Path, organisation: str, name: str, version: str) -> None:
    """Download one jar of a Maven repository into a folder."""
    command = [
        str(find_java()), "-jar", str(pyspark_jar("ivy-*.jar")),
        "-dependency", organisation, name, version,
        "-confs", "master",
        "-types", "jar", "bundle",
        "-retrieve", f"{folder}/[artifact]-[revision].[ext]",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if not (folder / f"{name}-{version}.jar").is_file():
        raise RuntimeError(f"{name} {version} could not be fetched:\n{done.stdout[-2000:]}")
