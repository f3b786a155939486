"""Commands of the Spark of this host: its class data, and the server that tasks share."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_eos.cli.definition import DONE, FOUND
from airflow_eos.cli.outcome import Outcome, Row
from airflow_eos.exceptions import ConfigurationError


def warm_spark(_target: None, options: Namespace) -> Outcome:
    """Write Spark's class-data archive."""
    from airflow_eos.spark import jvm

    folder = options.folder or options.class_data_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no [eos] class_data_folder: give --folder")
    archive = jvm.write_archive(Path(folder), jvm.java())
    data = {"archive": str(archive), "bytes": archive.stat().st_size}
    return Outcome(data, {"class data": [data]})


def spark_start(_target: None, options: Namespace) -> Outcome:
    """Start a Spark Connect server."""
    from airflow_eos.spark.server import control
    from airflow_eos.spark.server.folder import CONN_ID

    folder = _server_folder(options)
    archives = options.class_data_folder
    found, started = control.start(
        folder,
        control.Settings(
            port=options.port,
            memory=options.memory,
            master=options.master,
            idle_minutes=options.idle_minutes,
            class_data_folder=None if archives is None else Path(archives),
        ),
    )
    connection = {"conn_id": CONN_ID, "made by": control.import_command(folder)}
    title = "Spark Connect server, started" if started else "Spark Connect server, which ran before"
    data = {"started": started, **found, "connection": connection}
    return Outcome(data, {title: [_told(found)], "Airflow connection": [connection]})


def spark_status(_target: None, options: Namespace) -> Outcome:
    """Show the Spark Connect server; 3 when it takes no connections."""
    from airflow_eos.spark.server import control

    found = control.status(_server_folder(options))
    return Outcome(found, {"Spark Connect server": [_told(found)]}, DONE if found["running"] else FOUND)


def spark_stop(_target: None, options: Namespace) -> Outcome:
    """Stop the Spark Connect server."""
    from airflow_eos.spark.server import control

    folder = _server_folder(options)
    data = {"stopped": control.stop(folder), "folder": str(folder)}
    return Outcome(data, {"Spark Connect server": [data]})


def _server_folder(options: Namespace) -> Path:
    folder = options.folder or options.spark_server_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no AIRFLOW_HOME: give --folder")
    return Path(folder)


def _told(found: Mapping[str, Any]) -> Row:
    """Return what a person asks for."""
    names = ("running", "phase", "reason", "address", "connections", "pid", "since", "restarts", "log")
    return {name: found[name] for name in names if found[name] not in (None, "")}
