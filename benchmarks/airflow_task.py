"""A scheduled task from its trigger to its end, on a real Airflow: what of it is Airflow, Spark, Kafka."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from itertools import pairwise
from pathlib import Path

from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection
from benchmarks.records import publish

PARTS = ("scheduler", "task start", "authority and plan", "Spark start", "sealing", "transaction", "task end")
"""What follows what; ``Spark start`` is JVM, session and the first Python workers."""

_DAG, _TASK = "benchmark_copy", "copy"
_STATE = re.compile(r"state (\w+) after ([\d.]+) s")
_SEALED = re.compile(r"sealing .* done in ([\d.]+) s")


def measure(servers: str, records: int, rounds: int) -> list[dict[str, float]]:
    """Return the seconds of each of ``PARTS`` of a task that copies ``records``, one dictionary per run.

    The topics ``src`` and ``out`` exist. The first run finds Airflow's own start behind it.
    """
    found = []
    with AirflowStandalone(
        Path(__file__).parent / "dags", connections={"kafka_default": kafka_connection(servers)}
    ) as airflow:
        airflow.wait_for_dag(_DAG)
        for _ in range(rounds):
            publish(servers, "src", records)
            triggered = time.time()
            run_id = airflow.trigger(_DAG)
            state = airflow.wait_for_run(_DAG, run_id)
            if state != "success":
                raise RuntimeError(f"{run_id} ended as {state}:\n{airflow.logs()}")
            task = airflow.task(_DAG, run_id, _TASK)
            log = airflow.task_log(_DAG, run_id, _TASK, task["try_number"])
            moments = [
                triggered,
                _seconds(task["start_date"]),
                *moments_of(log),
                _seconds(task["end_date"]),
            ]
            seconds = (later - earlier for earlier, later in pairwise(moments))
            found.append(dict(zip(PARTS, seconds, strict=True)))
    return found


def moments_of(log: str) -> list[float]:
    """Return when a task's run began, Spark was asked for, sealing began, ended, and all was committed.

    :param log: a task log, one JSON object per line.
    :returns: seconds since 1970.
    """
    began = spark = seal = sealed = committed = 0.0
    for line in log.splitlines():
        entry = json.loads(line)
        moment, event = _seconds(entry["timestamp"]), entry["event"]
        if state := _STATE.match(event):
            began = began or moment - float(state[2])
            sealed = moment if state[1] == "SEALED" else sealed
            committed = moment if state[1] == "COMMITTED" else committed
        elif event.startswith("Starting Spark"):
            spark = moment
        elif done := _SEALED.match(event):
            seal = moment - float(done[1])
    return [began, spark, seal, sealed, committed]


def _seconds(moment: str) -> float:
    return dt.datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
