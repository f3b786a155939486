"""Helpers of tests of runs on a real YARN: records, output, applications."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from airflow_eos_testing import count_records, read_topic
from airflow_eos_testing.faults.yarn_cluster import YarnCluster
from tests.support.patience import wait_until
from tests.support.yarn_tasks import YarnTask

SECRET = "TOPSECRET"
RECORDS = 1000
COPY = "def process(df):\n    return df.select('key', 'value')\n"
STOPS_HALF_WAY = """
from airflow_eos.spark import send_task
from airflow_eos_testing.faults.half_send import half_send_task

def process(df):
    send_task.SendTask = half_send_task({folder!r})
    return df.select("key", "value")
"""
ONE_EXECUTOR = {"spark.executor.instances": "1"}


def assert_exact(broker: Any, task: YarnTask) -> None:
    """Assert that readers see each record once."""
    counts = Counter(record.value for record in read_topic(broker.bootstrap, task.settings["sink_topic"]))
    assert counts == Counter(b"%d:%d" % (p, i) for p in range(2) for i in range(RECORDS // 2))


def written(broker: Any, task: YarnTask) -> int:
    """Return the number of records that readers see."""
    return count_records(broker.bootstrap, task.settings["sink_topic"])


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Start a call in a thread; the list receives its result or its error."""
    results: list[Any] = []

    def body() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, results


def submitted(yarn: YarnCluster, earlier: list[str]) -> str:
    """Return the only new application, once there is one."""
    (application,) = wait_until(lambda: sorted(set(yarn.applications()) - set(earlier)), 120)
    return application
