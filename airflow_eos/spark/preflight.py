"""Checks by one small job that every executor can do the work.

Executors that lack this package, or have another version of it, get it shipped. A local session whose tasks
find the driver's own modules needs no job.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EnvironmentMismatch
from airflow_eos.spark import probe
from airflow_eos.spark.by_value import module_by_value
from airflow_eos.spark.code_shipping import our_modules, ship_code
from airflow_eos.spark.errors import environment_error
from airflow_eos.spark.local_python import has_drivers_modules, is_local
from airflow_eos.spark.session import check_version, is_connect, local_python
from airflow_eos.spark.stage_log import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reports = list[dict[str, str]]

# spark.range has a partition per core in every kind of session, so each core runs a task.
_ROWS = 1 << 16
_FIX = (
    "Install the driver's Python minor version, pyarrow, numpy and google-crc32c there, or ship an "
    "environment with spark.archives and PYSPARK_PYTHON"
)
_RESTART = (
    "Their Python daemon (spark.python.daemon.module) has imported this package, so none can be shipped: "
    "install the driver's version there and restart the server or the application"
)
_SLOTS = "spark.sql.leafNodeDefaultParallelism"
_SHIPPED = ("airflow_eos", "kafka")
_environments: weakref.WeakKeyDictionary[Any, Environment] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Environment:
    """The executors of a session.

    :param slots: tasks that run at once, according to Spark's default parallelism.
    :param executors: executors that answered, ``host/process``; others may start later.
    :param local: whether driver and executor are one process.
    :param shipped: whether they needed this package's code.
    :param without_lz4: hosts that cannot write or read that codec.
    """

    spark: str
    application_id: str
    connect: bool
    slots: int
    executors: tuple[str, ...]
    local: bool
    shipped: bool
    versions: Mapping[str, str]
    without_lz4: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the form kept in the run record."""
        return {
            "spark": self.spark,
            "application_id": self.application_id,
            "connect": self.connect,
            "slots": self.slots,
            "executors": len(self.executors),
            "shipped": self.shipped,
            "versions": dict(self.versions),
        }


def check_environment(spark: SparkSession, compression: str = "zstd") -> Environment:
    """Compare every executor's versions with the driver's; once per session.

    :param compression: codec of the run; lz4 needs a separate package. A read task that meets lz4 records
        without it names the missing package.
    :raises EnvironmentMismatch: names host, difference and fix.
    """
    with _lock:
        if spark not in _environments:
            _environments[spark] = _look(spark)
        environment = _environments[spark]
    if compression == "lz4" and environment.without_lz4:
        hosts = ", ".join(environment.without_lz4)
        raise EnvironmentMismatch(
            f"compression 'lz4' needs the package lz4 on every executor, it is missing on {hosts}. {_FIX}"
        )
    return environment


def _look(spark: SparkSession) -> Environment:
    check_version(spark)
    on_driver = probe.versions(our_modules())
    reports = _local_reports(spark, on_driver) or _ask(spark)
    shipped = any(r[name] != on_driver[name] for r in reports for name in _SHIPPED)
    if shipped and not differences({k: v for k, v in on_driver.items() if k not in _SHIPPED}, reports):
        try:
            ship_code(spark)
        except Exception as error:
            raise environment_error(error, _fix(spark)) from error
        reports = _ask(spark)
    different = differences(on_driver, reports)
    if different:
        listed = "; ".join(f"{host}: {', '.join(sorted(lines))}" for host, lines in sorted(different.items()))
        is_shipped = all(line.startswith(_SHIPPED) for lines in different.values() for line in lines)
        fix = _RESTART if is_shipped else _fix(spark)
        raise EnvironmentMismatch(f"executors differ from the driver: {listed}. {fix}")
    without = sorted({_host(r) for r in reports if r["lz4"] == probe.MISSING})
    return Environment(
        spark=spark.version,
        application_id=str(spark.conf.get("spark.app.id") or ""),  # on Connect, the server's
        connect=is_connect(spark),
        slots=max(1, len(reports)),
        executors=tuple(sorted({r["executor"] for r in reports})),
        local=is_local(str(spark.conf.get("spark.master", ""))),
        shipped=shipped,
        versions={**on_driver, "lz4": probe.MISSING if without else min(r["lz4"] for r in reports)},
        without_lz4=tuple(without),
    )


def _local_reports(spark: SparkSession, on_driver: Mapping[str, str]) -> Reports | None:
    """Return the reports of a local session that runs the driver's own Python; None if it does not."""
    if is_connect(spark) or not has_drivers_modules(spark):
        return None
    slots = spark.conf.get(_SLOTS, None) or spark.sparkContext.defaultParallelism
    return [{**on_driver, "executor": f"{socket.gethostname()}/{os.getpid()}"}] * int(slots)


def _ask(spark: SparkSession) -> Reports:
    task = functools.partial(probe.report, modules=our_modules())
    try:
        # A cluster without free cores, or a server with its log elsewhere, is silent meanwhile.
        with module_by_value(probe), progress(spark, "asking the executors for their versions"):
            rows = spark.range(_ROWS).mapInArrow(task, "report string").collect()
    except Exception as error:
        raise environment_error(error, _fix(spark)) from error
    return [json.loads(row.report) for row in rows]


def _fix(spark: SparkSession) -> str:
    python = local_python(spark)
    interpreter = python and (shutil.which(python) or python)
    # Not resolved: the Python of a virtual environment is a link to an interpreter without its packages.
    if not interpreter or interpreter == sys.executable:
        return _FIX
    return (
        f"This program runs on {sys.executable}, and its session starts {interpreter} for tasks: set "
        f"PYSPARK_PYTHON={sys.executable} before the session starts"
    )


def _host(report: Mapping[str, str]) -> str:
    return report["executor"].rpartition("/")[0]


def differences(on_driver: Mapping[str, str], reports: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Return the differences per host; compiled modules may differ in minor versions."""
    different: dict[str, set[str]] = {}
    for report in reports:
        host = _host(report)
        for name, wanted in on_driver.items():
            version = report.get(name, probe.MISSING)
            exact = name in ("python", *_SHIPPED)
            if name == "lz4" or version == wanted:
                continue
            if version == probe.MISSING or exact or version.split(".")[0] != wanted.split(".")[0]:
                different.setdefault(host, set()).add(f"{name} is {version} (driver: {wanted})")
    return different
