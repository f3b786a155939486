"""Real Kafka brokers for tests and demos: no Docker, no Maven, only Java 17+ and PySpark's own jars.

::

    from airflow_eos_testing import EmbeddedKafka, read_topic

    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("out", partitions=4)
        kafka.brokers[0].kill()
        read_topic(kafka.client_config(), "out")

The pytest fixtures are in :mod:`airflow_eos_testing.fixtures`; a broker in the foreground is
``python -m airflow_eos_testing.kafka``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from airflow_eos_testing.broker import Broker
    from airflow_eos_testing.cluster import EmbeddedKafka
    from airflow_eos_testing.readers import Record, count_records, read_topic

__all__ = ["Broker", "EmbeddedKafka", "Record", "count_records", "read_topic"]

# The pytest plugin imports this package in every test run.
__getattr__ = lazy_exports(
    __name__,
    {
        ".broker": ("Broker",),
        ".cluster": ("EmbeddedKafka",),
        ".readers": ("Record", "count_records", "read_topic"),
    },
)
