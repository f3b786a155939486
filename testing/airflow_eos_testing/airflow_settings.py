"""Settings of an Airflow for tests: an environment that isolates it, and connections."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.ports import HOST
from airflow_eos_testing.spark_jvm import quick_start

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


def airflow_environment(
    home: Path,
    dags_folder: Path,
    *,
    port: int,
    log_ports: Collection[int],
    connections: Mapping[str, str | Mapping[str, Any]],
) -> dict[str, str]:
    """Return the environment of an isolated Airflow: all in ``home``, nothing from the caller's Airflow."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    worker_log_port, trigger_log_port, health_port = log_ports
    (home / "tmp").mkdir(exist_ok=True)
    return {
        **inherited,
        **quick_start(),
        "AIRFLOW_HOME": str(home),
        "TMPDIR": str(home / "tmp"),  # Spark's and Python's temporary files are removed with the folder
        "PYTHONUNBUFFERED": "1",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{port}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "AIRFLOW__API__WORKERS": "1",
        # Many processes write; on a busy machine one may wait longer than SQLite's 5 s, and a task whose
        # API call times out would repeat a write that is still in progress.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "65",
        # A file that times out once is not parsed again for MIN_FILE_PROCESS_INTERVAL.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # A changed file is parsed at once; reparsing the others is half the load of an idle Airflow.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health_port),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **{
            f"AIRFLOW_CONN_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in connections.items()
        },
    }


def kafka_connection(bootstrap_servers: str, **settings: Any) -> dict[str, Any]:
    """Build the JSON form of an Airflow ``kafka`` connection; settings in librdkafka's names."""
    return {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap_servers, **settings}}
