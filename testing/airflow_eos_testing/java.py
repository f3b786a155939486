"""Find a Java runtime that can run a Kafka broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from airflow_eos.exceptions import ConfigurationError

MINIMUM_JAVA = 17
"""Kafka 4.x brokers and Spark 4.x are compiled for Java 17."""

JVM_FOLDER = Path("/usr/lib/jvm")
"""Where Linux distributions put their Java runtimes."""


def find_java() -> Path:
    """Return the path of a ``java`` executable of version 17 or later.

    ``$JAVA_HOME`` comes first, then ``PATH``, then the usual folder of Linux distributions: a machine whose
    default Java is too old often has a newer one installed.

    :raises ConfigurationError: there is none; the message says what to install.
    """
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""), JVM_FOLDER)


@lru_cache(maxsize=8)
def _find_java(java_home: str, path: str, jvm_folder: Path) -> Path:
    too_old = []
    for candidate in _candidates(java_home, path, jvm_folder):
        major = java_major_version(candidate)
        if major is not None and major >= MINIMUM_JAVA:
            return candidate
        if major is not None:
            too_old.append(f"{candidate} is Java {major}")
    older = f" (found: {'; '.join(too_old)})" if too_old else ""
    raise ConfigurationError(
        f"Java {MINIMUM_JAVA} or later is needed to run a Kafka broker{older}: install it "
        "(Debian/Ubuntu: apt-get install openjdk-17-jre-headless) or point JAVA_HOME to it"
    )


def _candidates(java_home: str, path: str, jvm_folder: Path) -> list[Path]:
    candidates = []
    if java_home:
        candidates.append(Path(java_home) / "bin" / "java")
    on_path = shutil.which("java", path=path)
    if on_path:
        candidates.append(Path(on_path))
    candidates.extend(sorted(jvm_folder.glob("*/bin/java")))
    return [candidate for candidate in candidates if os.access(candidate, os.X_OK)]


def java_major_version(java: Path) -> int | None:
    """Return the major version of a ``java`` executable (8 for ``1.8.0``), or None if it prints none."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(done.stderr + done.stdout)


def parse_java_version(banner: str) -> int | None:
    """Return the major version in the output of ``java -version``, or None."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match.group(1)) if match else None
