"""Real Kafka brokers for tests and demos: no Docker, no Maven, only Java 17+ and PySpark's own jars.

::

    from airflow_eos.testing import EmbeddedKafka, read_topic

    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("out", partitions=4)
        kafka.brokers[0].kill()
        read_topic(kafka.client_config(), "out")

The pytest fixtures stand in :mod:`airflow_eos.testing.fixtures`; a broker in the foreground is
``python -m airflow_eos.testing.kafka``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.testing.broker import Broker
    from airflow_eos.testing.cluster import EmbeddedKafka
    from airflow_eos.testing.readers import Record, count_records, read_topic

__all__ = ["Broker", "EmbeddedKafka", "Record", "count_records", "read_topic"]

_HOMES = {
    "Broker": "broker",
    "EmbeddedKafka": "cluster",
    "Record": "readers",
    "count_records": "readers",
    "read_topic": "readers",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the pytest plugin imports this package in every test run."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
