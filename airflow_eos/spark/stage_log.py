"""Logs the progress of a long stage."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_eos.spark.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
INTERVAL = 10.0
"""Seconds between two lines."""


@contextmanager
def progress(spark: SparkSession, activity: str, interval: float = INTERVAL) -> Iterator[None]:
    """Log ``activity`` with elapsed time and tasks done, every ``interval`` seconds, until the block ends."""
    tasks, stop_watching = _watch(spark)
    ended = threading.Event()
    logging_lock = threading.Lock()
    begun = time.monotonic()

    def report() -> None:
        while not ended.wait(interval):
            finished, total = tasks()
            share = f", {finished} of {total} tasks done" if total else ""
            with logging_lock:
                if not ended.is_set():  # no line may follow the final one
                    log.info("%s: %.0f s%s", activity, time.monotonic() - begun, share)

    thread = threading.Thread(target=report, name="airflow-eos-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with logging_lock:
            ended.set()
        stop_watching()
    log.info("%s: done in %.1f s", activity, time.monotonic() - begun)


def _watch(spark: SparkSession) -> tuple[Callable[[], tuple[int, int]], Callable[[], None]]:
    """Return a function that returns (finished tasks, all tasks), and one that stops watching."""
    if is_connect(spark):
        latest = [0, 0]

        def handler(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:  # noqa: ARG001
            latest[0] = sum(s.num_completed_tasks for s in stages or ())
            latest[1] = sum(s.num_tasks for s in stages or ())

        spark.registerProgressHandler(handler)

        def stop() -> None:
            with suppress(Exception):
                spark.removeProgressHandler(handler)

        return lambda: (latest[0], latest[1]), stop

    def of_stages() -> tuple[int, int]:
        with suppress(Exception):
            tracker = spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(s) for s in tracker.getActiveStageIds()]
            return (
                sum(s.numCompletedTasks for s in stages if s is not None),
                sum(s.numTasks for s in stages if s is not None),
            )
        return 0, 0

    return of_stages, lambda: None
