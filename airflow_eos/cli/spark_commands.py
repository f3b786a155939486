"""Commands for Spark on this host: its class-data archive, and the Spark Connect server that tasks share."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from pathlib import Path
from typing import NoReturn

from airflow_eos.cli.outcome import Outcome, write
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark_host import connect_server, jvm


def warm_spark(_target: None, options: Namespace) -> Outcome:
    """Write Spark's class-data archive."""
    folder = options.folder or options.class_data_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no [eos] class_data_folder: give --folder")
    archive = jvm.write_archive(Path(folder), jvm.java())
    data = {"archive": str(archive), "bytes": archive.stat().st_size}
    return Outcome(data, {"class data": [data]})


def spark_server(_target: None, options: Namespace) -> NoReturn:
    """Print the address, and become a Spark Connect server."""
    folder = options.folder or options.spark_server_folder
    if folder is None:
        raise ConfigurationError("without Airflow there is no AIRFLOW_HOME: give --folder")
    archives = options.class_data_folder
    launch = connect_server.prepare(
        Path(folder),
        port=options.port,
        memory=options.memory,
        master=options.master,
        class_data_folder=None if archives is None else Path(archives),
    )
    data = {
        "address": launch.access.address,
        "pid": os.getpid(),
        "conn_id": connect_server.CONN_ID,
        "import": f"airflow connections import --overwrite {shlex.quote(str(launch.connection))}",
    }
    write(Outcome(data, {"Spark Connect server": [data]}).render(options.output))
    connect_server.become(launch)
