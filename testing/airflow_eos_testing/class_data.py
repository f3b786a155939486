"""Class-data archives for JVMs of tests: they halve the time and the CPU that a start takes.

Java writes such an archive when a process ends in an orderly way (``-XX:ArchiveClassesAtExit``, JEP 350). The
first cluster of a machine has its first broker write one; later clusters map it. Spark's is written by
:mod:`~airflow_eos_testing.spark_jvm`. An archive that does not fit is ignored by the JVM, so a wrong guess
here costs time only.
"""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from airflow_eos_testing.jars import cache_root

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KEPT = 4
"""Archives (50 to 150 MB each) that stay per name: one per environment that shares the cache."""


def archive_path(name: str, java: Path, classpath: Sequence[Path]) -> Path:
    """Where the archive for this Java and exactly these jars belongs, whether it exists or not.

    :param name: what runs on them, with its version.
    """
    identity = hashlib.sha256(str(java.resolve()).encode())
    for jar in classpath:
        # Java compares the path, the size and the time of every jar.
        status = jar.stat()
        identity.update(f"\0{jar}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return cache_root() / "class-data" / f"{name}-{identity.hexdigest()[:16]}.jsa"


def use_options(archive: Path) -> list[str]:
    """JVM options that map an existing archive and stay silent where it does not fit."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def dump_options(target: Path) -> list[str]:
    """JVM options that write an archive at an orderly end."""
    return [f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def install(dumped: Path, archive: Path) -> None:
    """Publish a dumped archive under its final name, atomically, and drop the oldest of its name."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    staged = archive.with_name(f".{dumped.parent.name}-{archive.name}")
    shutil.copyfile(dumped, staged)
    staged.replace(archive)
    name = archive.name.rsplit("-", 1)[0]
    present = sorted(archive.parent.glob(f"{name}-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in present[:-_KEPT]:
        old.unlink(missing_ok=True)
