"""PySpark and its client: two distributions that share a folder and must have the same minor version.

The Spark provider requires ``pyspark-client`` without an upper bound. pip therefore installs the newest
client over the files of an older ``pyspark``, and ``pip check`` does not report it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EnvironmentMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = ("4.0", "4.1", "4.2")
"""Minor versions of Spark that are supported; each has an extra of this package: ``pyspark42`` and so on."""
LINES_WITHOUT_CLIENT = ("4.3",)
"""Minor versions that are supported and have no extra: no client was published that an extra could name."""
PYSPARK, CLIENT = "pyspark", "pyspark-client"


@dataclass(frozen=True, slots=True)
class SparkDistributions:
    """The versions of Spark with its jars, and of the Spark Connect client; None if not installed."""

    pyspark: str | None
    client: str | None

    @property
    def agree(self) -> bool:
        """Whether both have the same minor version, or only one is installed."""
        if self.pyspark is None or self.client is None:
            return True
        return minor_version(self.pyspark) == minor_version(self.client)

    @property
    def repair(self) -> str:
        """The command that installs both in one minor version: Spark's, if that is supported."""
        installed = self.pyspark or self.client or ""
        line = _line(installed)
        if line in LINES_WITHOUT_CLIENT and self.pyspark is not None:
            # PySpark alone is whole: it holds the client's modules too.
            reinstall = f"pip install --force-reinstall --no-deps '{PYSPARK}=={self.pyspark}'"
            return reinstall if self.client is None else f"pip uninstall --yes {CLIENT} && {reinstall}"
        if line not in LINES:
            return f"pip install 'airflow-eos[{extra_of(LINES[-1])}]'"
        packages = [f"'{CLIENT}=={line}.*'"]
        if self.pyspark is not None:
            packages.insert(0, f"'{PYSPARK}=={self.pyspark}'")
        return f"pip install --force-reinstall --no-deps {' '.join(packages)}"

    def __str__(self) -> str:
        named = ((PYSPARK, self.pyspark), (CLIENT, self.client))
        return ", ".join(f"{name} {version}" for name, version in named if version is not None) or "none"


def extra_of(line: str) -> str:
    """Return the extra of this package for a minor version of Spark: ``4.1`` -> ``pyspark41``."""
    return f"pyspark{line.replace('.', '')}"


def minor_version(version: str) -> tuple[int, int]:
    """Return ``(4, 2)`` of ``4.2.0``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _line(version: str) -> str:
    return ".".join(version.split(".")[:2])


def installed_distributions(path: Sequence[str] | None = None) -> SparkDistributions:
    """Return the versions in the folder from which ``import pyspark`` loads; imports nothing.

    A Spark that ``SPARK_HOME`` puts on the path has no metadata and hides the installed one: then there is
    nothing to compare.

    :param path: folders to search; None: ``sys.path``.
    """
    spec = PathFinder.find_spec("pyspark", path)
    folders = {str(Path(folder).resolve()) for folder in (spec and spec.submodule_search_locations) or ()}
    searched: dict[str, Any] = {} if path is None else {"path": list(path)}

    def version_of(name: str) -> str | None:
        installed: list[Distribution] = list(distributions(name=name, **searched))
        if not installed:
            return None
        place = str(Path(str(installed[0].locate_file("pyspark"))).resolve())
        # Without a folder at all, the files were removed with the other distribution.
        return installed[0].version if not folders or place in folders else None

    return SparkDistributions(version_of(PYSPARK), version_of(CLIENT))


def check_distributions(path: Sequence[str] | None = None) -> SparkDistributions:
    """Return the installed versions after a check that they match.

    :param path: folders to search; None: ``sys.path``.
    :raises EnvironmentMismatch: the minor versions differ; names both and the repair command.
    """
    installed = installed_distributions(path)
    if not installed.agree:
        raise EnvironmentMismatch(
            f"{installed} share one folder and overwrite each other's files: they must have one minor "
            f"version. Run: {installed.repair}"
        )
    return installed


def import_session_class() -> type[SparkSession]:
    """Return PySpark's ``SparkSession``.

    :raises EnvironmentMismatch: ``pyspark`` and ``pyspark-client`` do not match, or uninstalling one removed
        files of the other; names the repair command.
    """
    installed = check_distributions()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EnvironmentMismatch(
            f"PySpark cannot be imported ({error}); installed: {installed}. pyspark and pyspark-client share "
            f"one folder: removing one removes files of the other. Run: {installed.repair}"
        ) from error
    return SparkSession
