"""Fixtures with real brokers for every test, installed or run from the checkout."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from airflow_eos_testing.fixtures import (
    embedded_kafka,
    embedded_kafka_cluster,
    kafka_topic,
    pytest_runtest_makereport,
)
from airflow_eos_testing.spark_jvm import quick_start
from tests.plugins.airflow_versions import AirflowVersions
from tests.plugins.side_by_side import SideBySide
from tests.plugins.time_budget import TimeBudget
from tests.plugins.waiting import Waiting
from tests.plugins.without_java import WithoutJava

__all__ = ["embedded_kafka", "embedded_kafka_cluster", "kafka_topic", "pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins, and make Spark start quickly, here and in all child processes."""
    config.pluginmanager.register(AirflowVersions(), "Airflow versions")
    config.pluginmanager.register(TimeBudget(), "time budget")
    config.pluginmanager.register(SideBySide(), "side by side")
    config.pluginmanager.register(Waiting(), "waiting")
    config.pluginmanager.register(WithoutJava(), "without Java")
    os.environ.update(quick_start())


def pytest_collection_finish() -> None:
    """Exempt modules and thousands of tests from garbage collection, as they stay, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Drop records of threads of earlier tests: some go on for a minute, as with brokers that are silent."""
    earlier = {*threading.enumerate()} - {threading.current_thread()}

    def is_of_this_test(record: logging.LogRecord) -> bool:
        # Threads that begin later take the numbers of those that have ended, of which Python keeps those that
        # it did not start.
        running = {thread.ident: thread for thread in threading.enumerate()}
        return running.get(record.thread) not in earlier

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their parameter: batches contain timestamps, but all workers must collect equal names."""
    return argname if isinstance(val, bytes | bytearray | memoryview) else None
