"""The Spark session of the benchmarks, with Spark's own Kafka connector for the peers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from airflow_eos.spark.encryption import local_defaults
from airflow_eos_testing import class_data
from benchmarks.spark_kafka_jars import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(master: str = "local[2]", *, connector: bool = True, **settings: str) -> SparkSession:
    """Return a session with 4 GB for the JVM and no UI; its Python workers are reached as an operator's are.

    :param connector: with Spark's own Kafka connector on its class path.
    :param settings: more of Spark's.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName("airflow-eos benchmark")
        .config("spark.ui.enabled", "false")
        .config(map=local_defaults(master))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    if connector:
        builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def task_session(offsets: int, *, rows: bool = True) -> SparkSession:
    """Return a session as an operator starts one for a task that reads so many offsets.

    :param rows: whether they pass the JVM as rows.
    """
    from airflow_eos.spark_host import jvm, worker_daemon

    options = jvm.options_for(offsets, class_data.folder(), rows=rows)
    return spark_session(
        connector=False, **{jvm.OPTIONS: options, "spark.python.daemon.module": worker_daemon.__name__}
    )


def connect_session(remote: str) -> SparkSession:
    """Return a session on a Spark Connect server; Spark's client finds its token in the environment."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(remote).getOrCreate()
