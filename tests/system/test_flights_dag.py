"""The example Dag with ``dag.test()``, on the real flights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.system.airflow_env import ROOT, AirflowEnv
from tests.system.flights_support import canonical, expected_output, flights_input, make_topics

from flights_input import publish  # isort: skip

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

DAG_FILE = ROOT / "dags" / "flights.py"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker of its own: the Dag's topics have fixed names."""
    with EmbeddedKafka() as running:
        make_topics(running)
        yield running


@pytest.mark.chaos
def test_every_flight_is_classified_once_and_broken_rows_are_dead_letters(
    kafka: EmbeddedKafka, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Two runs over 20,000 flights and every kind of broken row write the exact multiset; no offset twice."""
    source, messages = flights_input()
    record_property("input", source)
    print(source)
    env = AirflowEnv(tmp_path, kafka.bootstrap_servers)
    half = len(messages) // 2

    read = []
    for day, part in (("2026-01-05", messages[:half]), ("2026-01-06", messages[half:])):
        publish(kafka.client_config(), "flights", part)
        run = env.dag_test(DAG_FILE, "flights", f"{day}T00:00:00Z")
        assert run["state"] == "success", run["output"][-6000:]
        summary = run["tasks"]["classify"]["xcom"]
        assert (summary["state"], summary["found"], summary["clear_number"]) == ("COMMITTED", False, 0)
        assert summary["records_read"] == summary["records_written"] == len(part)
        read.append({(topic, partition): (start, end) for topic, partition, start, end in summary["ranges"]})
    assert {place: end for place, (_, end) in read[0].items()} == {
        place: start for place, (start, _) in read[1].items()
    }

    classified, dead = expected_output(messages)
    assert len({json.loads(flight)["class"] for _, flight in classified}) >= 4
    flights = read_topic(kafka.client_config(), "flights-classified")
    assert Counter((r.key, canonical(json.loads(r.value or b""))) for r in flights) == classified
    letters = read_topic(kafka.client_config(), "flights-dead-letter")
    assert Counter(r.value for r in letters) == dead
    assert {name for name, _ in letters[0].headers} == {
        "error",
        "source.topic",
        "source.partition",
        "source.offset",
    }
