"""Real Airflows on PostgreSQL with the test Dags."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import kafka_connection
from airflow_eos_testing.airflow_platform import AirflowPlatform
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.system.airflow_env import ROOT

DAG_FILES = ("shared_spark.py", "gates.py", "backfilled.py")


@contextmanager
def big_airflow(
    kafka: EmbeddedKafka,
    spark: SparkConnectServer,
    folder: Path,
    deployed: Path,
    *,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[AirflowPlatform]:
    """Start two schedulers on PostgreSQL, deployed in an empty folder; the Dags' gates are in ``folder``.

    :param env: further environment variables; they take precedence.
    :param options: options of :class:`AirflowPlatform`.
    """
    (deployed / "dags").mkdir()
    (deployed / "spark_apps").symlink_to(ROOT / "spark_apps")
    for name in DAG_FILES:
        (deployed / "dags" / name).symlink_to(ROOT / "tests" / "system" / "dags" / name)
    given = {
        "EOS_TEST_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW__OPENLINEAGE__DISABLED": "True",
        **(env or {}),
    }
    connections = {
        "kafka_default": kafka_connection(kafka.bootstrap_servers),
        "spark_shared": spark.connection(),
    }
    with AirflowPlatform(deployed / "dags", connections=connections, env=given, **options) as running:
        yield running
