"""Pytest fixtures with real brokers; loaded by pytest itself where airflow-eos is installed.

::

    def test_my_dag(embedded_kafka, kafka_topic):
        topic = kafka_topic("orders", partitions=4)
        run_my_dag(embedded_kafka.bootstrap_servers, topic)

Brokers start when the first test asks for them and end with the session. A test that fails shows the end of
the logs of the brokers it used. Where plugins are not auto-loaded, import the names into ``conftest.py``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_eos.testing.cluster import EmbeddedKafka

_CLUSTERS = ("embedded_kafka", "embedded_kafka_cluster")


class TopicFactory(Protocol):
    """Create a topic under a name that no other test has; returns the name."""

    def __call__(  # noqa: D102
        self,
        prefix: str = "topic",
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        kafka: EmbeddedKafka | None = None,
    ) -> str: ...


@pytest.fixture(scope="session")
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """One broker, PLAINTEXT, shared by the whole session: leave it running and use your own topics."""
    from airflow_eos.testing.cluster import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def embedded_kafka_cluster() -> Iterator[EmbeddedKafka]:
    """Three brokers, PLAINTEXT, shared by the whole session: start again what you kill."""
    from airflow_eos.testing.cluster import EmbeddedKafka

    with EmbeddedKafka(brokers=3) as kafka:
        yield kafka


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> TopicFactory:
    """Create topics with unique names, in ``embedded_kafka`` unless ``kafka=`` names another cluster."""

    def create(
        prefix: str = "topic",
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        kafka: EmbeddedKafka | None = None,
    ) -> str:
        cluster: EmbeddedKafka = kafka if kafka is not None else request.getfixturevalue("embedded_kafka")
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        return cluster.create_topic(name, partitions, replication_factor, config)

    return create


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Attach the end of the broker logs to the report of a failed test."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if not report.failed:
        return
    for name, value in getattr(item, "funcargs", {}).items():
        title = f"broker logs of {name}"
        if (
            hasattr(value, "logs")
            and hasattr(value, "bootstrap_servers")
            and title not in dict(report.sections)
        ):
            report.sections.append((title, value.logs()))
