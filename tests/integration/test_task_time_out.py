"""The time-out of a task ends a run that hangs in the author's function, at any point of its Spark job.

Airflow raises it in the thread that waits for the JVM. The thread's next call to the JVM waits for the end
of the job, so the job is cancelled first. The channel to the JVM is lost: each case has its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from airflow_eos import arrow_process
from airflow_eos.spark import SparkDataPlane
from airflow_eos.spark.preflight import check_environment
from tests.support.cases import rest_in_chaos
from tests.support.patience import eventually
from tests.support.spark_sessions import Broker, new_session

HANG = 120  # seconds, unless the job is cancelled
PATIENCE = 60


class TimedOut(BaseException):
    """Like Airflow's ``AirflowTaskTimeout``, which is not an ``Exception`` either."""


def hangs(flag):
    def of_value(value):
        Path(flag).touch()
        time.sleep(HANG)
        return value

    return of_value


def large_frame(flag):
    def process(df):
        from pyspark.sql import functions

        return df.select(functions.udf(hangs(flag), "binary")("value").alias("value"), "headers")

    return process


def arrow(flag):
    return arrow_process(hangs(flag))


def seal_until_it_is_interrupted(bootstrap, flag, make, large, answer):
    """Interrupt the seal while the author's function runs; send the time that it took to end."""
    broker, spark = Broker(bootstrap), new_session("classic")
    if large:
        from airflow_eos.spark import sealing

        sealing.LARGE_RUN = 10
    source = broker.numbered("src", 1, 20)
    plane = SparkDataPlane(spark, broker.spec(source, broker.topic("out", 1)), make(flag))
    check_environment(spark)

    def interrupt(*_):
        raise TimedOut

    def alarm():
        eventually(Path(flag).exists, bool)
        os.kill(os.getpid(), signal.SIGALRM)

    signal.signal(signal.SIGALRM, interrupt)
    threading.Thread(target=alarm, daemon=True).start()
    try:
        plane.seal(broker.plan(source))
    except TimedOut:
        answer.send(time.time() - Path(flag).stat().st_mtime)
    os._exit(0)  # the session can no longer be stopped


@pytest.mark.parametrize(
    ("make", "large"),
    rest_in_chaos(1, [(large_frame, True), (arrow, False)]),
    ids=["DataFrame with used columns and settings", "Arrow"],
)
def test_a_task_time_out_ends_a_seal_that_hangs(broker, tmp_path, make, large):
    """Within seconds; it took as long as the job, which may hang for ever."""
    processes = multiprocessing.get_context("spawn")
    receiver, answer = processes.Pipe()
    process = processes.Process(
        target=seal_until_it_is_interrupted,
        args=(broker.bootstrap, str(tmp_path / "flag"), make, large, answer),
        daemon=True,
    )
    process.start()
    process.join(HANG + PATIENCE)
    assert receiver.poll(), "the seal was not interrupted"
    assert receiver.recv() < HANG / 2
