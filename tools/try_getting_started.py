#!/usr/bin/env python3
"""Follow docs/getting-started.md with the installed packages: ``python tools/try_getting_started.py PAGE``.

Broker, records, Dag and commands of its sections 2 to 4 and 6 are taken from the page, in their order.
Airflow and the broker run on free ports. This Python must have ``airflow-eos[pyspark42,testing]`` installed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection

ADDRESS = "ADDRESS"
_TIMEOUT = 300.0
_BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)


def block(page: str, language: str, begin: str) -> str:
    """Return the page's only code block that begins with ``begin``.

    :raises SystemExit: there is none, or there are several: the page has changed.
    """
    blocks = [text for kind, text in _BLOCK.findall(page) if kind == language and text.startswith(begin)]
    if len(blocks) != 1:
        raise SystemExit(f"getting started: {len(blocks)} {language} blocks begin with {begin!r}")
    return str(blocks[0])


def commands(text: str) -> list[list[str]]:
    """Return the commands of a console block as lists of arguments, without comments."""
    return [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines() if line]


def airflow_commands(airflow: AirflowStandalone, text: str) -> None:
    """Run the ``airflow`` commands of a block.

    :raises SystemExit: one fails; with its output.
    """
    for program, *arguments in commands(text):
        assert program == "airflow", program
        done = airflow.cli(*arguments)
        print(f"$ airflow {shlex.join(arguments)}\n{done.stdout}", flush=True)
        if done.returncode:
            raise SystemExit(f"getting started: exit code {done.returncode}\n{done.stderr}")


def wait_for_success(airflow: AirflowStandalone, dag: str) -> None:
    """Wait until the Dag's only run succeeds.

    :raises SystemExit: it fails, or takes longer than five minutes.
    """
    deadline = time.monotonic() + _TIMEOUT
    states: list[str] = []
    while states != ["success"]:
        if "failed" in states or time.monotonic() > deadline:
            raise SystemExit(f"getting started: runs of {dag} are {states}\n{airflow.logs()}")
        time.sleep(1)
        listed = airflow.api.call("GET", f"/dags/{dag}/dagRuns")
        states = [str(run["state"]) for run in listed["dag_runs"]]


def main() -> None:
    """Go through the page."""
    page = Path(sys.argv[1]).read_text()
    with tempfile.TemporaryDirectory(prefix="airflow-eos-started-") as temporary:
        folder = Path(temporary)
        (folder / "dags").mkdir()
        (folder / "dags" / "orders_daily.py").write_text(block(page, "python", "# dags/orders_daily.py"))
        (folder / "publish.py").write_text(block(page, "python", "# publish.py"))
        (broker,) = commands(block(page, "console", "python -m airflow_eos_testing.kafka"))
        topics = [broker[n + 1].partition(":") for n, word in enumerate(broker) if word == "--topic"]
        with EmbeddedKafka() as kafka:
            for name, _, partitions in topics:
                kafka.create_topic(name, int(partitions))
            address = kafka.bootstrap_servers
            published = [sys.executable, str(folder / "publish.py"), address]
            subprocess.run(published, check=True, timeout=120)
            connections = {"kafka_default": kafka_connection(address)}
            with AirflowStandalone(folder / "dags", connections=connections) as airflow:
                airflow_commands(airflow, block(page, "console", "airflow eos doctor"))
                airflow.wait_for_dag("orders_daily")
                unpause, *looks = block(page, "console", "airflow dags unpause").splitlines(keepends=True)
                airflow_commands(airflow, unpause)
                wait_for_success(airflow, "orders_daily")
                airflow_commands(airflow, "".join(looks))
            (status,) = commands(block(page, "console", "python -m airflow_eos status"))
            subprocess.run(
                [sys.executable, *(address if word == ADDRESS else word for word in status[1:])],
                check=True,
                timeout=120,
            )
    print("getting started: the page works with what is installed", flush=True)


if __name__ == "__main__":
    main()
