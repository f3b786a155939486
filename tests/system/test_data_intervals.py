"""Data intervals of a Dag, with ``dag.test()``."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.system.airflow_env import ROOT, AirflowEnv
from tests.system.flights_support import canonical, expected_output, make_topics

from flights_input import Message, generate_flights, publish  # isort: skip

# Processes start cold, on any machine. Backfill tests show the same under a real scheduler.
pytestmark = [pytest.mark.timeout(600), pytest.mark.chaos]

DAGS = ROOT / "tests" / "system" / "dags"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker of its own: the Dag's topics have fixed names."""
    with EmbeddedKafka() as running:
        make_topics(running)
        yield running


def of_day(messages: list[Message], day: int) -> list[Message]:
    """Return the flights of a day of January 2001."""
    date = dt.date(2001, 1, day)
    utc = dt.timezone.utc
    return [m for m in messages if dt.datetime.fromtimestamp(m.timestamp / 1000, utc).date() == date]


def test_each_day_is_written_once_backwards_and_again(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The 3rd, the 2nd, then the 3rd in another Dag run: found by its interval, not by its run id."""
    messages = list(generate_flights(9000))
    publish(kafka.client_config(), "flights", messages)
    env = AirflowEnv(tmp_path, kafka.bootstrap_servers, DAGS)

    def run(day: int) -> dict[str, Any]:
        done = env.dag_test(DAGS / "daily_flights.py", "daily_flights", f"2001-01-{day + 1:02}T00:00:00Z")
        assert done["state"] == "success", done["output"][-6000:]
        summary: dict[str, Any] = done["tasks"]["classify"]["xcom"]
        return summary

    third, second, again = run(3), run(2), run(3)
    assert (third["found"], second["found"], again["found"]) == (False, False, True)
    assert (third["mode"], third["records_written"]) == ("interval", len(of_day(messages, 3)))
    assert second["records_written"] == len(of_day(messages, 2)) > 0
    assert again == {**third, "found": True}

    classified, _ = expected_output([*of_day(messages, 2), *of_day(messages, 3)])
    flights = read_topic(kafka.client_config(), "flights-classified")
    assert Counter((r.key, canonical(json.loads(r.value or b""))) for r in flights) == classified
