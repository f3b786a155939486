"""One small job before anything else: can every executor do the work, and how many tasks run at once?"""

from __future__ import annotations

import json
import os
import platform
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EosError, EnvironmentMismatch
from airflow_eos.spark.code_shipping import ship_code
from airflow_eos.spark.errors import environment_error
from airflow_eos.spark.session import application_id, check_version, is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

REPORT_DDL = "report string"
# A task per core: spark.range has as many partitions as there are cores, whatever the session is.
_ROWS = 1 << 16
_known: weakref.WeakKeyDictionary[Any, Environment] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Environment:
    """What the executors are.

    :param slots: tasks that run at once, as far as Spark tells (its default parallelism).
    :param executors: executors that answered, ``host/process``.
    """

    spark: str
    application_id: str
    connect: bool
    slots: int
    executors: tuple[str, ...]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the form kept in the run record."""
        return {
            "spark": self.spark,
            "application_id": self.application_id,
            "connect": self.connect,
            "slots": self.slots,
            "executors": len(self.executors),
            **self.versions,
        }


def check_environment(spark: SparkSession, compression: str = "zstd") -> Environment:
    """Ship the code, ask every executor for its versions, compare them with the driver's; once per session.

    :raises EnvironmentMismatch: listing host, difference and fix.
    """
    with _lock:
        if spark in _known:
            return _known[spark]
        try:
            check_version(spark)
            ship_code(spark)
            rows = spark.range(_ROWS).mapInArrow(report_versions, REPORT_DDL).collect()
        except EosError:
            raise
        except Exception as error:
            raise environment_error(error) from error
        reports = [json.loads(row.report) for row in rows]
        mine = versions()
        check_versions(mine, reports, compression)
        environment = Environment(
            spark=spark.version,
            application_id=application_id(spark),
            connect=is_connect(spark),
            slots=max(1, len(reports)),
            executors=tuple(sorted({report["executor"] for report in reports})),
            versions=mine,
        )
        _known[spark] = environment
        return environment


def report_versions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Answer with this process's versions; runs in a task."""
    import pyarrow as pa

    for _ in batches:
        pass
    # Workers of one executor are children of one daemon.
    executor = f"{socket.gethostname()}/{os.getppid()}"
    yield pa.RecordBatch.from_pydict({"report": [json.dumps({**versions(), "executor": executor})]})


def versions() -> dict[str, str]:
    """Return what must agree between driver and executors; a missing module has the version ``missing``."""
    import airflow_eos

    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "airflow_eos": airflow_eos.__version__,
    }
    for module in ("pyarrow", "numpy", "kafka", "google_crc32c", "lz4"):
        try:
            imported = __import__(module)
        except ImportError:
            found[module] = "missing"
        else:
            found[module] = str(getattr(imported, "__version__", "present"))
    return found


def check_versions(mine: dict[str, str], reports: Iterable[dict[str, str]], compression: str) -> None:
    """Compare; major versions of pyarrow and numpy may differ by nothing, since pickled code runs there.

    :raises EnvironmentMismatch: one message with every host that differs.
    """
    problems: dict[str, set[str]] = {}
    for report in reports:
        host = report["executor"].split("/")[0]
        for name, wanted in mine.items():
            there = report.get(name, "missing")
            if name == "lz4" and compression != "lz4":
                continue
            if there == "missing":
                problems.setdefault(host, set()).add(f"{name} is missing (driver: {wanted})")
            elif name in ("python", "airflow_eos") and there != wanted:
                problems.setdefault(host, set()).add(f"{name} is {there} (driver: {wanted})")
            elif name in ("pyarrow", "numpy") and there.split(".")[0] != wanted.split(".")[0]:
                problems.setdefault(host, set()).add(f"{name} is {there} (driver: {wanted})")
    if problems:
        listed = "; ".join(f"{host}: {', '.join(sorted(found))}" for host, found in sorted(problems.items()))
        raise EnvironmentMismatch(
            f"executors differ from the driver: {listed}. Install the driver's versions there, or ship an environment "
            "with spark.archives and PYSPARK_PYTHON"
        )
