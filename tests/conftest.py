"""Fixtures with real brokers for every test, installed or run from the checkout."""

from __future__ import annotations

from airflow_eos.testing.fixtures import (
    embedded_kafka,
    embedded_kafka_cluster,
    kafka_topic,
    pytest_runtest_makereport,
)

__all__ = ["embedded_kafka", "embedded_kafka_cluster", "kafka_topic", "pytest_runtest_makereport"]
