"""A backfill shared by four Celery workers on PostgreSQL. Rows of docs/retries.md."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.system.backfills import backfill
from tests.system.platform_fixtures import big_airflow

DAYS, WORKERS = 90, 4
NOBODY_DIES = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
}


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_days_are_backfilled_by_four_workers(
    kafka: EmbeddedKafka, spark_connect: SparkConnectServer, folder: Path, tmp_path: Path
) -> None:
    """Four concurrent days, on any worker: every flight is written once, the days' ranges are contiguous."""
    kind = {"executor": "CeleryExecutor", "workers": WORKERS, "slots": 1}
    with big_airflow(kafka, spark_connect, folder, tmp_path, env=NOBODY_DIES, **kind) as platform:
        started = time.monotonic()
        backfill(platform, kafka, "shared", days=DAYS, at_once=WORKERS)
        print(f"{DAYS} days in {time.monotonic() - started:.0f} s")
        tasks = platform.api.call("GET", "/dags/shared/dagRuns/~/taskInstances?limit=100")["task_instances"]
        logs = [(platform.home / f"worker{number}.log").read_text() for number in range(1, WORKERS + 1)]
        shares = [sum(f"workload_id={task['id']}" in log for task in tasks) for log in logs]
        print("tasks of each worker:", *shares)
        assert sum(shares) == DAYS
        assert min(shares) > 0
