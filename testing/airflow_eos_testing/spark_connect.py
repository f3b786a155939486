"""A long-lived Spark Connect server from PySpark's own jars: tasks that use it need no JVM of their own."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.exceptions import EmbeddedSparkError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_START_TIMEOUT = 180.0
_POLL = 0.1


class SparkConnectServer:
    """Run a Spark Connect server on loopback for the length of a ``with`` block.

    After the block no process and no file is left, also when this process is killed. Linux only.

    ::

        with SparkConnectServer() as spark:
            connections = {"spark_shared": spark.connection()}      # conn_id of the operators

    :param master: where it computes.
    :param settings: further Spark settings.
    :param env: further environment of the server and its Python workers.
    """

    def __init__(
        self,
        master: str = "local[2]",
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._master = master
        self._settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **(settings or {}),
        }
        self._env = dict(env or {})
        self._session: Session | None = None
        self._home: Path | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """``sc://host:port``."""
        return f"sc://{HOST}:{self.port}"

    def connection(self) -> dict[str, Any]:
        """Return the JSON form of an Airflow connection to it."""
        return {"conn_type": "spark_connect", "host": HOST, "port": self.port}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it and wait until it takes connections.

        :raises EmbeddedSparkError: it ended, or took none in time; with the end of its log.
        """
        import pyspark

        spark_home = Path(pyspark.__file__).parent
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-connect-"))
        (self.port,) = free_ports(1)
        settings = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": HOST,
            "spark.sql.warehouse.dir": str(self._home / "warehouse"),
            **self._settings,
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--master", self._master]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        env = {
            **os.environ,
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_DIRS": str(self._home),
            "PYSPARK_PYTHON": sys.executable,
            **self._env,
        }
        log_path = self._home / "server.log"
        try:
            self._session = Session(command, env=env, home=self._home, log_path=log_path)
            self._wait(self._session, log_path)
        except BaseException:
            self.close()
            raise

    def _wait(self, session: Session, log_path: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._listens():
            if not session.is_alive or time.monotonic() > deadline:
                end = "\n".join(log_path.read_text(errors="replace").splitlines()[-40:])
                raise EmbeddedSparkError(f"The Spark Connect server did not start.\n{end}")
            time.sleep(_POLL)

    def close(self) -> None:
        """Kill its processes and remove its folder; a second call does nothing."""
        session, self._session = self._session, None
        home, self._home = self._home, None
        if session is not None:
            session.end()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _listens(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1):
                return True
        except OSError:
            return False
