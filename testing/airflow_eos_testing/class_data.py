"""Class-data archives of the test equipment's JVMs, in its cache.

The first cluster of a machine has its first broker write one; later clusters map it. Spark's is written by
:mod:`~airflow_eos_testing.spark_jvm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.spark_host import class_data
from airflow_eos.spark_host.class_data import dump_options, install, use_options
from airflow_eos_testing.jars import cache_root

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["archive_path", "dump_options", "folder", "install", "use_options"]


def folder() -> Path:
    """Where the archives are."""
    return cache_root() / "class-data"


def archive_path(name: str, java: Path, classpath: Sequence[Path]) -> Path:
    """Where the archive for this Java and exactly these jars belongs, whether it exists or not."""
    return class_data.archive_path(folder(), name, java, classpath)
