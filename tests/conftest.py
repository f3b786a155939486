"""Fixtures with real brokers for every test, installed or run from the checkout."""

from __future__ import annotations

import pytest

from airflow_eos.testing.fixtures import (
    embedded_kafka,
    embedded_kafka_cluster,
    kafka_topic,
    pytest_runtest_makereport,
)
from tests.time_budget import TimeBudget

__all__ = ["embedded_kafka", "embedded_kafka_cluster", "kafka_topic", "pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    """Count the minutes."""
    config.pluginmanager.register(TimeBudget(), "time budget")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their parameter: batches hold the time, and all workers must collect the same names."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
