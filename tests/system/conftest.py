from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos.compat import AIRFLOW_VERSION
from airflow_eos.spark_host import worker_daemon
from airflow_eos.spark_host.jvm import OPTIONS_VARIABLE
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.system.airflow_env import ROOT
from tests.system.collector import Collector
from tests.system.flights_support import make_topics
from tests.system.spark_master import SparkMaster
from tests.system.tutorial import tutorial_dag

from flights_table import create_table  # isort: skip


@pytest.fixture(scope="package")
def kafka() -> Iterator[EmbeddedKafka]:
    """The broker of the real scheduler's Dags."""
    with EmbeddedKafka() as running:
        make_topics(running)
        yield running


@pytest.fixture(scope="package")
def spark_connect() -> Iterator[SparkConnectServer]:
    """A warm Spark server: tasks of the test Dags that use it start in a second or two.

    As in a host's Spark server, Python workers are forked with their imports done.
    """
    settings = {"spark.python.daemon.module": worker_daemon.__name__}
    with SparkConnectServer(settings=settings, env={"PYTHONPATH": str(ROOT)}) as running:
        yield running


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the test Dags' gates and logs."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """The collector of the real Airflow's metrics and spans."""
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="package")
def spark_master() -> Iterator[SparkMaster]:
    """A fake cluster that the triggerer takes for one that runs drivers."""
    running = SparkMaster()
    yield running
    running.close()


@pytest.fixture(scope="package")
def lake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An SQLite catalog with the table of the example Dag; commits wait up to two minutes for its lock."""
    folder = tmp_path_factory.mktemp("lake")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=120",
        "warehouse": f"file://{folder}",
    }
    with load_catalog("iceberg_default", **properties) as catalog:
        create_table(catalog)
    return properties


FLIGHTS_CLOCK = 'schedule=CronTriggerTimetable("7 * * * *", timezone="UTC")'


@pytest.fixture(scope="package")
def airflow(
    kafka: EmbeddedKafka,
    spark_connect: SparkConnectServer,
    folder: Path,
    collector: Collector,
    spark_master: SparkMaster,
    lake: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowStandalone]:
    """A real Airflow with the example and test Dags, and spark_apps at the same relative path as here."""
    deployed = tmp_path_factory.mktemp("deployed") / "tests" / "system"
    (deployed / "dags").mkdir(parents=True)
    for parent in (deployed, deployed.parents[1]):
        (parent / "spark_apps").symlink_to(ROOT / "spark_apps")
    for file in [*(ROOT / "dags").glob("*.py"), *(ROOT / "tests" / "system" / "dags").glob("*.py")]:
        (deployed / "dags" / file.name).symlink_to(file)
    # A test unpauses this one: at seven minutes past the hour it would run on its own schedule.
    example = (ROOT / "dags" / "flights.py").read_text()
    assert FLIGHTS_CLOCK in example
    (deployed / "dags" / "flights.py").unlink()
    # It must start Spark as an operator does without options for the JVM.
    bare = f"\nimport os\n\nos.environ.pop({OPTIONS_VARIABLE!r}, None)\n"
    example = example.replace(FLIGHTS_CLOCK, "schedule=None").replace("DAG, CronTriggerTimetable\n", "DAG\n")
    (deployed / "dags" / "flights.py").write_text(example + bare)
    _deploy_flights_table(deployed / "dags" / "flights_table.py")
    (deployed / "dags" / "orders_table.py").unlink()
    (deployed / "dags" / "orders_table.py").write_text(tutorial_dag())
    env = {
        "EOS_TEST_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        # The examples have schedules: paused, they do not run.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW__EOS__LEDGER_RECORD_URL": "https://ui.example.com/{topic}?key={key}",
        "AIRFLOW__EOS__SPARK_HISTORY_URL": "https://history.example.com/{application_id}",
        **collector.environment(),
        # Lineage goes to a file, for Dags that enable it.
        "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(folder / "lineage.jsonl"), "append": True}
        ),
    }
    # A fork sends lineage; it is killed after its time-out, and so is a task that waits for it.
    env["AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT"] = "120"
    env["AIRFLOW__CORE__TASK_SUCCESS_OVERTIME"] = "150"
    # The machine is shared and slow; a held task still sends a heartbeat every 5 s.
    env["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"] = "30"
    env["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL"] = "2"
    connections = {
        "kafka_default": kafka_connection(kafka.bootstrap_servers),
        "spark_shared": spark_connect.connection(),
        "spark_local": {"conn_type": "spark", "host": "local[2]"},
        "spark_rest": spark_master.connection(),
        "iceberg_default": {"conn_type": "iceberg", "extra": lake},
    }
    with AirflowStandalone(deployed / "dags", connections=connections, env=env) as running:
        yield running
        # The example Dags have timetables that airflow.sdk of 3.1 does not have.
        assert running.api.import_errors() == "" or AIRFLOW_VERSION < (3, 2)


def _deploy_flights_table(file: Path) -> None:
    """Copy the example, with a topic of its own, the warm Spark server, and lineage."""
    example = file.read_text()
    file.unlink()
    for part, replacement in (
        ('TOPIC = "flights"', 'TOPIC = "table-in"'),
        ("config_kwargs={", 'conn_id="spark_shared",  # {'),
    ):
        assert part in example
        example = example.replace(part, replacement)
    lineage = "airflow.providers.openlineage.utils.selective_enable"
    file.write_text(f"{example}\nimport {lineage}\n\n{lineage}.enable_lineage(dag)\n")
