from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos.testing import EmbeddedKafka
from airflow_eos.testing.airflow import AirflowStandalone, kafka_connection
from tests.system.airflow_env import ROOT
from tests.system.flights_support import make_topics


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """The broker of the real scheduler's Dags."""
    with EmbeddedKafka() as running:
        make_topics(running)
        yield running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where test Dags look for their gates and write what they saw."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="session")
def airflow(
    kafka: EmbeddedKafka, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStandalone]:
    """A real Airflow with the example Dags and the test Dags, laid out as in the repository."""
    deployed = tmp_path_factory.mktemp("deployed")
    (deployed / "spark_apps").symlink_to(ROOT / "spark_apps")
    (deployed / "dags").mkdir()
    for file in [*(ROOT / "dags").glob("*.py"), *(ROOT / "tests" / "system" / "dags").glob("*.py")]:
        (deployed / "dags" / file.name).symlink_to(file)
    env = {
        "EOS_TEST_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    connections = {"kafka_default": kafka_connection(kafka.bootstrap_servers)}
    with AirflowStandalone(deployed / "dags", connections=connections, env=env) as running:
        yield running
