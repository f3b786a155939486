"""An isolated Airflow for ``dag.test()`` in a process of its own, as cold as a scheduled task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_eos_testing.airflow_settings import airflow_environment, kafka_connection

ROOT = Path(__file__).resolve().parents[2]
_RUNNER = Path(__file__).with_name("dag_test_runner.py")


class AirflowEnv:
    """An ``AIRFLOW_HOME`` with a migrated SQLite database and the connection ``kafka_default``.

    :param home: empty folder, removed by the caller.
    :param bootstrap_servers: brokers of the connection.
    :param dags_folder: folder of the Dag files.
    """

    _migrated: bytes | None = None

    def __init__(
        self,
        home: Path,
        bootstrap_servers: str,
        dags_folder: Path = ROOT / "dags",
        connections: Mapping[str, Any] | None = None,
    ) -> None:
        self.home = home
        self.env = airflow_environment(
            home,
            dags_folder,
            port=8080,
            log_ports=(8793, 8794, 8974),  # set but never bound: nothing is served here
            connections={"kafka_default": kafka_connection(bootstrap_servers), **(connections or {})},
        )
        self.env["PYTHONPATH"] = str(ROOT)
        # As under a scheduler: the `airflow` of this interpreter comes first, whatever PATH is.
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env.get('PATH', '')}"
        self._migrate()

    def dag_test(
        self, file: Path, dag_id: str, logical_date: str, *, conf: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run ``dag.test()`` and return ``{"state", "run_id", "clear_number", "tasks": {id: {...}}}``.

        Each call is a separate run: Airflow replaces the logical date's Dag run by one with a new name.
        """
        (done,) = self.dag_tests((file, dag_id, logical_date), conf=conf)
        return done

    def dag_tests(
        self, *runs: tuple[Path, str, str], conf: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Run ``dag.test()`` several times in one process; return a result per run.

        :param runs: file, Dag id and logical date of each.
        """
        result = self.home / "result.json"
        result.unlink(missing_ok=True)
        calls = [(str(file), dag_id, logical_date, dict(conf or {})) for file, dag_id, logical_date in runs]
        output = self._call([sys.executable, str(_RUNNER), json.dumps(calls), str(result)])
        assert result.exists(), output
        return [{**done, "output": output} for done in json.loads(result.read_text())]

    def _migrate(self) -> None:
        """Migrate the database, once per process: later databases are copies."""
        database = self.home / "airflow.db"
        if AirflowEnv._migrated is None:
            self._call([sys.executable, "-m", "airflow", "db", "migrate"])
            AirflowEnv._migrated = database.read_bytes()
        else:
            database.write_bytes(AirflowEnv._migrated)

    def _call(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self.env, cwd=self.home, capture_output=True, text=True, timeout=240, check=False
        )
        output = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, output[-6000:]
        return output
