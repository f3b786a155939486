"""Iceberg's own REST catalog as a process that can be killed and restarted. Linux only."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from airflow_eos_testing.jars import iceberg_classpath
from airflow_eos_testing.java import find_java
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class IcebergRestCatalog(EmbeddedServer):
    """Run the REST catalog of Iceberg's tests for the duration of a ``with`` block.

    ::

        with IcebergRestCatalog(folder) as catalog:
            sink = IcebergTable("db.t", properties=catalog.properties)
            catalog.kill()
            catalog.start()  # at the same address, with all that was committed

    :param folder: holds the catalog's database and the warehouse; it is not removed.
    """

    name = "The Iceberg REST catalog"
    folder_prefix = "airflow-eos-iceberg-"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        (self._port,) = free_ports(1)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self._port

    @property
    def properties(self) -> dict[str, str]:
        """The catalog's properties for pyiceberg."""
        return {"type": "rest", "uri": f"http://{HOST}:{self._port}/"}

    def kill(self) -> None:
        """SIGKILL the catalog; :meth:`start` restarts it."""
        self.close()

    def _command(self) -> list[str]:
        classpath = ":".join(map(str, iceberg_classpath()))
        return [str(find_java()), "-Xmx256m", "-cp", classpath, "org.apache.iceberg.rest.RESTCatalogServer"]

    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/rest-catalog.db",
            "CATALOG_WAREHOUSE": f"file://{self._folder}",
            # With two connections, its default, one that finds the journal of a killed catalog keeps its
            # read lock, and from then on SQLite refuses every commit of the other.
            "CATALOG_CLIENTS": "1",
        }

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/v1/config", timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False
