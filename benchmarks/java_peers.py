"""Java peers of the benchmark: plain clients, Kafka Streams and Flink; not part of the product."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from airflow_eos_testing.jars import cache_root, fetch_described, fetch_jars, file_lock
from airflow_eos_testing.java import find_java
from benchmarks.spark_kafka_jars import fetch

KAFKA = "4.3.1"
STREAMS = (("org.apache.kafka", "kafka-streams", KAFKA), ("org.rocksdb", "rocksdbjni", "10.1.3"))
CLIENTS = ("kafka-clients", "lz4-java", "slf4j-api", "snappy-java", "zstd-jni", "jackson-")
FLINK = "2.2.1"
FLINK_CONNECTOR = "5.0.0-2.2"
_FLINK_IVY = f"""<ivy-module version="2.0"><info organisation="airflow-eos" module="flink"/>
<configurations><conf name="default"/></configurations>
<dependencies defaultconf="default->default">
<dependency org="org.apache.flink" name="flink-clients" rev="{FLINK}"/>
<dependency org="org.apache.flink" name="flink-connector-base" rev="{FLINK}"/>
<dependency org="org.apache.flink" name="flink-connector-kafka" rev="{FLINK_CONNECTOR}"/>
</dependencies></ivy-module>
"""
_SOURCES = Path(__file__).parent / "java"


def command(kind: str) -> list[str]:
    """Compile a peer and return its command; append the other arguments of ``Copy.java``.

    :param kind: ``clients``, ``streams`` or ``flink``.
    """
    program = "FlinkCopy" if kind == "flink" else "Copy"
    jars = _flink_jars() if kind == "flink" else _jars()
    classes = _compiled(program, jars)
    path = os.pathsep.join(map(str, (classes, *jars)))
    return [str(find_java()), "-Xmx2g", "-cp", path, program, kind]


def _flink_jars() -> list[Path]:
    name = f"flink-{FLINK}-kafka-{FLINK_CONNECTOR}"
    marker = f"flink-connector-kafka-{FLINK_CONNECTOR}.jar"
    return sorted(fetch_described(name, marker, f"Flink {FLINK} (about 84 MB)", _FLINK_IVY).glob("*.jar"))


def _jars() -> list[Path]:
    folder = cache_root() / f"kafka-streams-{KAFKA}"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock")):
        for organisation, name, version in STREAMS:
            if not (folder / f"{name}-{version}.jar").is_file():
                fetch(folder, organisation, name, version)
    kafka = [jar for jar in fetch_jars(KAFKA).glob("*.jar") if jar.name.startswith(CLIENTS)]
    return sorted((*folder.glob("*.jar"), *kafka))


def _compiled(program: str, jars: list[Path]) -> Path:
    folder = cache_root() / "benchmark-classes"
    source = _SOURCES / f"{program}.java"
    with file_lock(folder.with_suffix(".lock")):
        compiled = folder / f"{program}.class"
        if not compiled.is_file() or compiled.stat().st_mtime < source.stat().st_mtime:
            compiler = find_java().with_name("javac")
            path = os.pathsep.join(map(str, jars))
            subprocess.run([compiler, "-d", folder, "-cp", path, source], check=True, timeout=120)
    return folder
