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

    from airflow_eos.spark_host.local_session import LocalSession


def connector() -> dict[str, str]:
    """Return the setting that puts Spark's own Kafka connector on the class path."""
    return {"spark.jars": ",".join(map(str, connector_jars()))}


def spark_session(master: str = "local[2]", *, peers: bool = True, **settings: str) -> SparkSession:
    """Return a session with 4 GB for the JVM and no UI; it talks to Python workers as an operator's does.

    :param peers: put Spark's own Kafka connector on its class path.
    :param settings: further Spark settings.
    """
    from pyspark.sql import SparkSession

    added = connector() if peers else {}
    return _silent(SparkSession.builder.config(map={**_settings(master), **added, **settings}).getOrCreate())


def task_session(offsets: int, *, rows: bool = True, **changes: str) -> LocalSession:
    """Return a session as an operator starts it for a task that reads ``offsets`` offsets.

    :param rows: whether the records pass through the JVM as rows.
    :param changes: further Spark settings.
    """
    from airflow_eos.spark_host import jvm, worker_daemon
    from airflow_eos.spark_host.local_session import LocalSession

    options = jvm.options_for(offsets, class_data.folder(), rows=rows)
    settings = {jvm.OPTIONS: options, "spark.python.daemon.module": worker_daemon.__name__}
    started = LocalSession.start({**_settings("local[2]"), **settings, **changes}, early_worker=True)
    _silent(started.session)
    return started


def _settings(master: str) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {
        "spark.master": master,
        "spark.app.name": "airflow-eos benchmark",
        "spark.ui.enabled": "false",
        **local_defaults(master, private_folders=True),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "4",
        "spark.python.unix.domain.socket.enabled": "true",
    }


def _silent(session: SparkSession) -> SparkSession:
    session.sparkContext.setLogLevel("ERROR")
    return session


def connect_session(remote: str) -> SparkSession:
    """Return a session on a Spark Connect server; Spark's client finds its token in the environment."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(remote).getOrCreate()
