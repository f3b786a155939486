"""Class-data sharing (CDS) archives of the test equipment's JVMs, in its cache.

The first broker of a machine's first cluster writes one; later clusters map it. Spark's is written by
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
    """Return the folder of the archives."""
    return cache_root() / "class-data"


def archive_path(name: str, java: Path, classpath: Sequence[Path]) -> Path:
    """Return the archive's path for this Java and exactly these jars, whether it exists or not."""
    return class_data.archive_path(folder(), name, java, classpath)
