"""Sizes, cores, executors, target partitions, and the fixed cost of a run with hardly any records."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.faults import SparkCluster
from benchmarks import airflow_task, cold, jobs
from benchmarks.broker import benchmark_broker
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import run_rounds
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (0, 1_000, 200_000, 2_000_000, 10_000_000)
TARGETS = (4, 50, 1_000)
STANDALONE = "standalone"  # two workers, an executor process of one core each


def scaling(out: Path, rounds: int) -> int:
    """Measure, write ``scaling.json``, print a line per case."""
    report: dict[str, Any] = {}
    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        kafka.create_topic("out", partitions=PARTITIONS)
        for size in SIZES:
            kafka.create_topic(f"src{size}", partitions=PARTITIONS)
            publish(servers, f"src{size}", size)
        for count in TARGETS:
            kafka.create_topic(f"out{count}", partitions=count)
        for master in ("local[2]", "local[1]", STANDALONE):
            # Each case needs a new session, and so a new process.
            command = [sys.executable, "-m", "benchmarks.scaling", servers, master, str(rounds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=7200)
            report[master] = json.loads(done.stdout.splitlines()[-1])
            for case, timings in report[master].items():
                print(
                    f"{master:12} {case:28} {timings['seconds']:7.2f} s {timings['cpu']:7.2f} CPU s, "
                    f"peak MB: worker {timings['worker_mb']:.0f}, driver {timings['driver_mb']:.0f}",
                    flush=True,
                )
        fresh = [cold.measure(servers, 0, "src1000", "out") for _ in range(rounds)]
        kafka.create_topic("src", partitions=PARTITIONS)
        # The first task after Airflow's start is not representative.
        tasks = airflow_task.measure(servers, 1_000, rounds + 1)[airflow_task.INSIDE][1:]
    report["fresh process, 1000 records"] = fresh
    report["Airflow task, 1000 records"] = tasks
    (out / "scaling.json").write_text(json.dumps(report, indent=2) + "\n")
    for label, times in (("a fresh process", fresh), ("a task of Airflow", tasks)):
        print(f"scaling: 1000 records in {label}: {_medians(times)}")
    return 0


def _medians(times: list[dict[str, float]]) -> str:
    return ", ".join(
        f"{part} {statistics.median(timing[part] for timing in times):.2f} s" for part in times[0]
    )


def _measure(servers: str, place: str, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        master = place
        if place == STANDALONE:
            cluster = stack.enter_context(SparkCluster(workers=2, cores=1, memory="2g"))
            master = cluster.master
        return _measure_on(master, servers, rounds)


def _measure_on(master: str, servers: str, rounds: int) -> dict[str, Any]:
    spark = spark_session(master, peers=False)
    cluster = jobs.Cluster(spark, servers, 0)
    contenders = {}
    for name, process in jobs.PROCESSES.items():
        for size in SIZES:
            contenders[f"{size} records, {name}"] = _run(cluster, process, f"src{size}", "out")
        if master == "local[2]":
            for count in TARGETS:
                job = _run(cluster, process, "src2000000", f"out{count}")
                contenders[f"{count} target partitions, {name}"] = job
    series = run_rounds(contenders, rounds)
    spark.stop()
    return {
        case: {
            "seconds": statistics.median(timings.seconds),
            "cpu": statistics.median(timings.cpu),
            "worker_mb": timings.peak_mb.get("worker", 0.0),
            "driver_mb": timings.peak_mb.get("driver", 0.0),
        }
        for case, timings in series.items()
    }


def _run(cluster: jobs.Cluster, process: Any, source: str, sink: str) -> Any:
    def job() -> None:
        jobs.exactly_once(cluster, sink, process, source_topics=(source,))

    return job


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
