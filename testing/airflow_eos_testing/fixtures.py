"""Pytest fixtures with real brokers; pytest loads them as a plugin if airflow-eos-testing is installed.

::

    def test_my_dag(embedded_kafka, kafka_topic):
        topic = kafka_topic("orders", partitions=4)
        run_my_dag(embedded_kafka.bootstrap_servers, topic)

Brokers start when the first test requests them and end with their scope. A failed test shows the latest
warnings of the brokers it used. If plugins are not auto-loaded, import the names into ``conftest.py``.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from airflow_eos_testing.cluster import EmbeddedKafka


_LINES = 200


class TopicFactory(Protocol):
    """Creates a topic with a unique name, and returns the name."""

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
    from airflow_eos_testing.cluster import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def embedded_kafka_cluster() -> Iterator[EmbeddedKafka]:
    """Three brokers, PLAINTEXT, shared by a module: restart the ones you kill.

    They end with the module: idle brokers for the whole session would cost 5 % of a core.
    """
    from airflow_eos_testing.cluster import EmbeddedKafka

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the latest warnings of the brokers to the report of a failed test."""
    report = yield
    for name, value in getattr(item, "funcargs", {}).items() if report.failed else ():
        title = f"broker logs of {name}"
        # Imported into a conftest.py in addition to the auto-loaded plugin, the hook runs twice.
        if _is_running_cluster(value) and title not in dict(report.sections):
            report.sections.append((title, value.logs(_LINES, warnings_only=True)))
    return report


def _is_running_cluster(value: object) -> bool:
    # By module name: a session that never used a cluster must not import the module for this check.
    cluster = sys.modules.get("airflow_eos_testing.cluster")
    return cluster is not None and isinstance(value, cluster.EmbeddedKafka)
