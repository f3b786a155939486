"""Runs as separate Spark applications: a real spark-submit, in client mode, also to a real cluster."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.faults.spark_cluster import SparkCluster
from tests.system.airflow_env import ROOT, AirflowEnv
from tests.system.flights_support import MALFORMED, canonical, expected_output, make_topics

from flights_input import generate_flights, publish  # isort: skip

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

DAGS = ROOT / "tests" / "system" / "dags"
FILE = DAGS / "submitted.py"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker of its own: the Dag's topics have fixed names."""
    with EmbeddedKafka() as running:
        make_topics(running)
        yield running


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    """A standalone master with one worker: executors are processes of their own."""
    with SparkCluster(workers=1, cores=2) as running:
        yield running


def test_submitted_function_commits_exactly_once(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The Dag names a function: the package supplies the application."""
    _submit(kafka, tmp_path, "submitted", {"spark_local": {"conn_type": "spark", "host": "local[2]"}})


@pytest.mark.chaos
def test_submitted_application_commits_exactly_once(
    kafka: EmbeddedKafka, cluster: SparkCluster, tmp_path: Path
) -> None:
    """The Dag names an application that runs on a cluster: the package is shipped to its executors."""
    connection = {"conn_type": "spark", "host": cluster.master}
    _submit(kafka, tmp_path, "submitted_app", {"spark_cluster": connection})
    assert "Launching executor" in cluster.logs()


def _submit(kafka: EmbeddedKafka, home: Path, dag_id: str, connections: dict[str, Any]) -> None:
    """Check that the XCom is the ledger's record, the shipped code runs, and the log hides the connection."""
    messages = [*generate_flights(3000, malformed=0.02), *MALFORMED]
    publish(kafka.client_config(), "flights", messages)
    env = AirflowEnv(home, kafka.bootstrap_servers, DAGS, connections=connections)

    done = env.dag_test(FILE, dag_id, "2026-01-05T00:00:00Z")
    assert done["state"] == "success", done["output"][-8000:]
    xcom = done["tasks"]["classify"]["xcom"]
    assert (xcom["state"], xcom["found"], xcom["mode"]) == ("COMMITTED", True, "cursor")
    assert xcom["records_read"] == xcom["records_written"] == len(messages)
    assert re.search(r"airflow-eos \S+ from \S+\.zip/airflow_eos", done["output"]), done["output"][-8000:]
    assert "Spark-Submit cmd" in done["output"]
    assert kafka.bootstrap_servers not in done["output"].partition("Spark-Submit cmd")[2].partition("\n")[0]

    classified, dead = expected_output(messages)
    flights = read_topic(kafka.client_config(), "flights-classified")
    assert Counter((r.key, canonical(json.loads(r.value or b""))) for r in flights) == classified
    letters = read_topic(kafka.client_config(), "flights-dead-letter")
    assert Counter(r.value for r in letters) == dead
