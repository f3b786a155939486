"""Every example Dag is executed, with ``dag.test()`` on one broker."""

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

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

DAGS = ROOT / "dags"
ELSEWHERE = {
    "flights": "test_runs_under_a_scheduler.py",
    "flights_table": "test_flights_table.py",
    "orders_table": "test_tutorial_tables.py",
}
FLIGHTS = [*generate_flights(12_000)]
DAY = dt.date(2001, 1, 2)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker with all flights."""
    with EmbeddedKafka() as running:
        make_topics(running)
        publish(running.client_config(), "flights", FLIGHTS)
        yield running


@pytest.fixture(scope="module")
def env(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> AirflowEnv:
    return AirflowEnv(tmp_path_factory.mktemp("home"), kafka.bootstrap_servers)


def run(env: AirflowEnv, logical_date: str, *dag_ids: str) -> Iterator[dict[str, Any]]:
    """Yield the XComs of each successful run, by task."""
    for done in env.dag_tests(*((DAGS / f"{dag_id}.py", dag_id, logical_date) for dag_id in dag_ids)):
        assert done["state"] == "success", done["output"][-6000:]
        yield {name: task["xcom"] for name, task in done["tasks"].items()}


def output(kafka: EmbeddedKafka, topic: str) -> Counter[Any]:
    records = read_topic(kafka.client_config(), topic)
    return Counter((record.key, canonical(json.loads(record.value or b""))) for record in records)


def of_day(messages: list[Message]) -> list[Message]:
    utc = dt.timezone.utc
    return [m for m in messages if dt.datetime.fromtimestamp(m.timestamp / 1000, utc).date() == DAY]


def test_day_is_waited_for_classified_and_reported(env: AirflowEnv, kafka: EmbeddedKafka) -> None:
    """flights_daily and flights_daily_report: the other Dag finds the day's run in the ledger."""
    done, report = run(env, "2001-01-03T00:00:00Z", "flights_daily", "flights_daily_report")
    assert done["over"] == {"start": "2001-01-02T00:00:00+00:00", "end": "2001-01-03T00:00:00+00:00"}
    day = of_day(FLIGHTS)
    assert done["classify"]["records_written"] == len(day) > 0
    assert output(kafka, "flights-daily") == expected_output(day)[0]
    assert report["committed"]["run_key"] == done["classify"]["run_key"]
    assert report["report"] == f"{len(day)} flights read, {len(day)} records written"


@pytest.mark.chaos
@pytest.mark.parametrize("dag_id", ["flights_batched", "flights_on_arrival"])
def test_whole_topic_is_classified(env: AirflowEnv, kafka: EmbeddedKafka, dag_id: str) -> None:
    """flights_batched waits for 10,000 records, flights_on_arrival for its asset: both read the topic."""
    (done,) = run(env, "2026-01-05T00:00:00Z", dag_id)
    if "enough" in done:
        assert done["enough"]["lag"] == len(FLIGHTS)
    assert done["classify"]["records_written"] == len(FLIGHTS)
    assert output(kafka, dag_id.replace("_", "-")) == expected_output(FLIGHTS)[0]


MIDNIGHT = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def orders(kafka: EmbeddedKafka) -> list[Message]:
    """Orders of the day before midnight, the day before that, and the first minutes after midnight."""
    messages = [
        Message(
            b"%d" % n,
            json.dumps({"item": f"item-{n}", "price": n % 200}).encode(),
            int((MIDNIGHT + dt.timedelta(minutes=n - 1900)).timestamp() * 1000),
        )
        for n in range(2000)
    ]
    publish(kafka.client_config(), "orders", messages)
    return messages


@pytest.mark.chaos
def test_orders_of_a_day_are_filtered(env: AirflowEnv, kafka: EmbeddedKafka, orders: list[Message]) -> None:
    """orders_daily, with its function in the Dag file, writes the day's large orders, each once."""
    (_,) = run(env, "2026-01-02T00:00:00Z", "orders_daily")
    day = range(int(MIDNIGHT.timestamp() * 1000) - 86_400_000, int(MIDNIGHT.timestamp() * 1000))
    wanted = [r.value for r in orders if r.timestamp in day and json.loads(r.value)["price"] >= 100]
    assert wanted
    written = read_topic(kafka.client_config(), "orders-large")
    assert Counter(r.value for r in written) == Counter(wanted)


@pytest.mark.chaos
def test_orders_are_read_by_a_task_for_each_partition(
    env: AirflowEnv, kafka: EmbeddedKafka, orders: list[Message]
) -> None:
    """orders_by_partition maps a decorated task over partitions, which are no parameter of its function."""
    before = Counter(record.value for record in read_topic(kafka.client_config(), "orders-large"))
    (_,) = run(env, "2026-01-02T00:00:00Z", "orders_by_partition")
    written = Counter(record.value for record in read_topic(kafka.client_config(), "orders-large")) - before
    assert {record.partition for record in read_topic(kafka.client_config(), "orders")} == {0, 1}
    assert written == Counter(record.value for record in orders if json.loads(record.value)["price"] >= 150)


@pytest.mark.chaos
def test_customers_lose_their_addresses(env: AirflowEnv, kafka: EmbeddedKafka) -> None:
    """customers_masked, an Arrow function in its own file, writes every row once, with key and timestamp."""
    for topic in ("customers", "customers-masked"):
        kafka.create_topic(topic, partitions=2)
    began = int(dt.datetime.now(dt.timezone.utc).timestamp() * 1000) - 60_000
    customers = [
        Message(b"%d" % n, json.dumps({"mail": f"customer.{n}@example.com", "n": n}).encode(), began + n)
        for n in range(1000)
    ]
    publish(kafka.client_config(), "customers", customers)
    (done,) = run(env, "2026-01-02T00:00:00Z", "customers_masked")
    assert done["mask"]["records_written"] == len(customers)
    wanted = Counter(
        (record.key, b'{"mail": "***@example.com", "n": %d}' % n, record.timestamp)
        for n, record in enumerate(customers)
    )
    masked = read_topic(kafka.client_config(), "customers-masked")
    assert Counter((record.key, record.value, record.timestamp) for record in masked) == wanted


def test_no_example_is_left_out() -> None:
    """A new file in dags/ needs a test that executes it."""
    executed = {
        "customers_masked",
        "flights_daily",
        "flights_daily_report",
        "flights_batched",
        "flights_on_arrival",
        "orders_by_partition",
        "orders_daily",
        *ELSEWHERE,
    }
    assert {file.stem for file in DAGS.glob("*.py")} == executed
    for test in ELSEWHERE.values():
        assert Path(__file__).with_name(test).exists()
