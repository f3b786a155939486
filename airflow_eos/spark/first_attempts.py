"""Cancels a send stage that lost the first attempt of a task, in sessions with speculation.

Copies of a task that is only slow must not fail: Spark counts the failures of all attempts, and would give up
the task that still writes. They wait to be killed, and so cannot report that a first attempt is lost.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import SecondAttempt
from airflow_eos.spark.session import cancel_tag, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.5
_GRACE = 5.0
"""Seconds after a failure for Spark to end the job by itself, with its own reason."""


@contextmanager
def first_attempts_only(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs that this thread starts in this block if one of their tasks fails; not on Connect.

    :raises SecondAttempt: they were cancelled.
    """
    over, given_up, tag = threading.Event(), threading.Event(), f"airflow-eos-{uuid.uuid4().hex[:12]}"
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001

    def failures() -> int:
        stages = [stage for job in tracker.getJobIdsForTag(tag) for stage in _of(tracker.getJobInfo(job))]
        return sum(
            int(info.get().numFailedTasks()) for info in map(tracker.getStageInfo, stages) if info.isDefined()
        )

    def watch() -> None:
        with suppress(Exception):  # a session that was stopped has no jobs
            while not over.wait(_POLL):
                if failures() and not over.wait(_GRACE):
                    given_up.set()
                    cancel_tag(spark, tag)
                    return

    with tagged(spark, tag):
        threading.Thread(target=watch, name="airflow-eos-first-attempts", daemon=True).start()
        try:
            yield
        except Exception as error:
            if not given_up.is_set():
                raise
            raise SecondAttempt(
                "a send task was lost, with its executor or its Python worker (Spark's log says why); no "
                "other attempt writes within its producer epoch: the run aborts and sends again under a new "
                "epoch"
            ) from error
        finally:
            over.set()


def _of(job: Any) -> list[int]:
    return list(job.get().stageIds()) if job.isDefined() else []
