"""A small run in a fresh process with several JVM set-ups, on a warm server, and as a task of Airflow.

Shows the cost of a scheduled task with little to do.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_eos.spark_host import jvm
from airflow_eos.spark_host.connect_server import TOKEN_VARIABLE, Access
from airflow_eos_testing import class_data
from airflow_eos_testing.spark_connect import HostSparkServer
from airflow_eos_testing.spark_jvm import write_archive
from benchmarks import airflow_task, cold
from benchmarks.broker import benchmark_broker
from benchmarks.chart import timeline_chart
from benchmarks.records import publish
from benchmarks.rounds import ratio

RECORDS, PARTITIONS = 1_000, 4
PLAIN = "as Spark starts it"
QUICK = "compiled quickly"
ARCHIVED = "and with class data"
OURS = "as an operator starts it"
TASKS = {airflow_task.INSIDE: "Spark inside the task", airflow_task.WARM: "on a warm Spark Connect server"}
WARM = "on a warm Spark Connect server"


@contextmanager
def warm_server() -> Iterator[Access]:
    """Run ``airflow eos spark-server``."""
    with (
        tempfile.TemporaryDirectory(prefix="airflow-eos-warm-") as folder,
        HostSparkServer(Path(folder) / "server", "--master", "local[2]") as server,
    ):
        yield server.access


def small(out: Path, rounds: int) -> int:
    """Measure interleaved rounds of fresh processes; the first round is not counted."""
    write_archive()
    empty = out / "no-archives"
    set_ups = {
        PLAIN: {jvm.OPTIONS_VARIABLE: ""},
        QUICK: {jvm.OPTIONS_VARIABLE: jvm.options_for(RECORDS, empty)},
        ARCHIVED: {jvm.OPTIONS_VARIABLE: jvm.options_for(RECORDS, class_data.folder())},
        OURS: {},
    }
    series: dict[str, list[float]] = {name: [] for name in (*set_ups, WARM)}
    with benchmark_broker() as kafka, warm_server() as warm:
        set_ups[WARM] = {"SPARK_REMOTE": warm.address, TOKEN_VARIABLE: warm.token}
        for topic in ("src", "out"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(kafka.bootstrap_servers, "src", RECORDS)
        for number in range(rounds + 1):
            for name, environment in set_ups.items():
                times = cold.measure(kafka.bootstrap_servers, RECORDS, "src", "out", environment)
                whole = times["whole"]
                if number:
                    series[name].append(whole)
                    print(f"round {number}: {name}: {whole:.1f} s", flush=True)
        tasks = airflow_task.measure(kafka.bootstrap_servers, RECORDS, rounds + 1, warm.connection())
    report: dict[str, Any] = {
        name: {"seconds": seconds, "ratio": ratio(seconds, series[PLAIN])} for name, seconds in series.items()
    }
    # The first task after Airflow's start is not representative.
    report["Airflow tasks"] = {dag: times[1:] for dag, times in tasks.items()}
    (out / "small.json").write_text(json.dumps(report, indent=2) + "\n")
    for name, seconds in series.items():
        of = f"{ratio(seconds, series[PLAIN]):.2f} of {PLAIN}"
        print(f"small: {RECORDS} records, fresh process, {name}: {statistics.median(seconds):.1f} s, {of}")
    tasks_parts = {
        TASKS[dag]: {part: statistics.median(row[part] for row in rows) for part in airflow_task.PARTS}
        for dag, rows in report["Airflow tasks"].items()
    }
    title = f"A task of Airflow that copies {RECORDS:,} records, from its trigger to its end"
    (out / "task.svg").write_text(timeline_chart(title, tasks_parts))
    for dag, rows in report["Airflow tasks"].items():
        parts = {part: statistics.median(row[part] for row in rows) for part in airflow_task.PARTS}
        whole = statistics.median(sum(row.values()) for row in rows)
        shares = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in parts.items())
        print(f"small: {RECORDS} records, a task of Airflow, {dag}: {whole:.1f} s from its trigger: {shares}")
    return 0
