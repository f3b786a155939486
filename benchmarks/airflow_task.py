"""A scheduled task from its trigger to its end, on a real Airflow: the shares of Airflow, Spark and Kafka."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection
from benchmarks.records import publish

PARTS = ("scheduler", "task start", "authority and plan", "Spark start", "sealing", "transaction", "task end")
"""Consecutive parts of a task; ``Spark start`` is JVM, session and the first Python workers."""

INSIDE, WARM = "benchmark_copy", "benchmark_warm"
_TASK = "copy"
_STATE = re.compile(r"state (\w+) after ([\d.]+) s")
_SEALED = re.compile(r"sealing .* done in ([\d.]+) s")


def measure(
    servers: str, records: int, rounds: int, warm: dict[str, Any] | None = None
) -> dict[str, list[dict[str, float]]]:
    """Return, by Dag, the seconds of each of ``PARTS`` of a task that copies ``records``, one per round.

    The topics ``src`` and ``out`` must exist. Airflow's own start is not measured.

    :param warm: JSON form of the connection to a Spark Connect server; None: measure only with Spark inside.
    """
    connections = {"kafka_default": kafka_connection(servers)}
    dags = [INSIDE]
    if warm is not None:
        connections["spark_warm"] = warm
        dags.append(WARM)
    series: dict[str, list[dict[str, float]]] = {dag: [] for dag in dags}
    with AirflowStandalone(Path(__file__).parent / "dags", connections=connections) as airflow:
        for dag in dags:
            airflow.wait_for_dag(dag)
        for _ in range(rounds):
            publish(servers, "src", records)
            for dag in dags:
                series[dag].append(_time_run(airflow, dag))
    return series


def _time_run(airflow: AirflowStandalone, dag: str) -> dict[str, float]:
    triggered = time.time()
    run_id = airflow.trigger(dag)
    state = airflow.wait_for_run(dag, run_id)
    if state != "success":
        raise RuntimeError(f"{run_id} ended as {state}:\n{airflow.logs()}")
    task = airflow.task(dag, run_id, _TASK)
    log = airflow.task_log(dag, run_id, _TASK, task["try_number"])
    moments = [triggered, _seconds(task["start_date"]), *moments_of(log), _seconds(task["end_date"])]
    return dict(zip(PARTS, (later - earlier for earlier, later in pairwise(moments)), strict=True))


def moments_of(log: str) -> list[float]:
    """Return when a task's run began, Spark was started, sealing began and ended, and the run was committed.

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
