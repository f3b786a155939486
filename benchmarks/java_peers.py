"""Java peers of the benchmark: plain transactional clients and Kafka Streams; no part of the product."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from airflow_eos_testing.jars import cache_root, fetch_jars, file_lock
from airflow_eos_testing.java import find_java
from benchmarks.spark_kafka_jars import fetch

KAFKA = "4.3.1"
STREAMS = (("org.apache.kafka", "kafka-streams", KAFKA), ("org.rocksdb", "rocksdbjni", "10.1.3"))
CLIENTS = ("kafka-clients", "lz4-java", "slf4j-api", "snappy-java", "zstd-jni", "jackson-")
_SOURCE = Path(__file__).parent / "java" / "Copy.java"


def command(kind: str) -> list[str]:
    """Return how a peer is started, compiled first; more arguments follow, see ``Copy.java``.

    :param kind: ``clients`` or ``streams``.
    """
    jars = _jars()
    classes = _compiled(jars)
    path = os.pathsep.join(map(str, (classes, *jars)))
    return [str(find_java()), "-Xmx2g", "-cp", path, "Copy", kind]


def _jars() -> list[Path]:
    folder = cache_root() / f"kafka-streams-{KAFKA}"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock")):
        for organisation, name, version in STREAMS:
            if not (folder / f"{name}-{version}.jar").is_file():
                fetch(folder, organisation, name, version)
    kafka = [jar for jar in fetch_jars(KAFKA).glob("*.jar") if jar.name.startswith(CLIENTS)]
    return sorted((*folder.glob("*.jar"), *kafka))


def _compiled(jars: list[Path]) -> Path:
    folder = cache_root() / "benchmark-classes"
    with file_lock(folder.with_suffix(".lock")):
        made = folder / "Copy.class"
        if not made.is_file() or made.stat().st_mtime < _SOURCE.stat().st_mtime:
            compiler = find_java().with_name("javac")
            path = os.pathsep.join(map(str, jars))
            subprocess.run([compiler, "-d", folder, "-cp", path, _SOURCE], check=True, timeout=120)
    return folder
