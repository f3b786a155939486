"""A long-lived Spark Connect server from PySpark's own jars; its clients need no JVM of their own."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.spark.encryption import server_defaults
from airflow_eos.spark_host.connect_server import Access, read_access
from airflow_eos_testing.exceptions import EmbeddedSparkError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Mapping


class SparkConnectServer(EmbeddedServer):
    """Run a Spark Connect server on loopback for the duration of a ``with`` block.

    ::

        with SparkConnectServer() as spark:
            connections = {"spark_shared": spark.connection()}      # conn_id of the operators

    :param master: Spark master of the server.
    :param settings: further Spark settings.
    :param env: further environment variables of the server and its Python workers.
    """

    name = "The Spark Connect server"
    folder_prefix = "airflow-eos-connect-"
    start_timeout = 180.0
    error = EmbeddedSparkError

    def __init__(
        self,
        master: str = "local[2]",
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._master = master
        self._settings = {
            "spark.ui.enabled": "false",
            **server_defaults(master),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **(settings or {}),
        }
        self._env = dict(env or {})
        self.port = 0

    @property
    def url(self) -> str:
        """``sc://host:port``."""
        return f"sc://{HOST}:{self.port}"

    def connection(self) -> dict[str, Any]:
        """Return the JSON form of an Airflow connection to the server."""
        return {"conn_type": "spark_connect", "host": HOST, "port": self.port}

    def _command(self) -> list[str]:
        import pyspark

        spark_home = Path(pyspark.__file__).parent
        (self.port,) = free_ports(1)
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": HOST,
            "spark.sql.warehouse.dir": str(self.home / "warehouse"),
            **self._settings,
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--master", self._master]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        last = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        return [*command, *last]

    def _environment(self) -> Mapping[str, str]:
        import pyspark

        return {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_DIRS": str(self.home),
            "PYSPARK_PYTHON": sys.executable,
            **self._env,
        }

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1):
                return True
        except OSError:
            return False


class HostSparkServer(EmbeddedServer):
    """Run ``airflow eos spark-server`` for the duration of a ``with`` block.

    :param folder: folder of its connection; the same folder gives the same address and token.
    :param options: further options of the command.
    """

    name = "The Spark Connect server of the host"
    folder_prefix = "airflow-eos-spark-server-"
    start_timeout = 180.0
    error = EmbeddedSparkError

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__()
        self.folder = folder
        self._options = options

    @property
    def access(self) -> Access:
        """The server's port and token."""
        access = read_access(self.folder)
        assert access is not None, f"{self.name} was never started"
        return access

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "airflow_eos", "spark-server", "--folder", str(self.folder)]
        return [*command, *self._options]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.access.port), timeout=1):
                return True
        except (OSError, AssertionError):
            return False
