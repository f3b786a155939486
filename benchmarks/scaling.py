"""Sizes, cores, executors, target partitions, and what a run costs that moves next to nothing."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_eos.testing import EmbeddedKafka
from benchmarks import jobs
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import run_rounds

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (0, 1_000, 200_000, 2_000_000, 10_000_000)
TARGETS = (4, 50, 1_000)


def scaling(out: Path, rounds: int) -> int:
    """Measure, write ``scaling.json``, print a line per case."""
    report: dict[str, Any] = {}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        kafka.create_topic("out", partitions=PARTITIONS)
        for size in SIZES:
            kafka.create_topic(f"src{size}", partitions=PARTITIONS)
            publish(servers, f"src{size}", size)
        for count in TARGETS:
            kafka.create_topic(f"out{count}", partitions=count)
        for cores in (2, 1):
            # A session of its own per master: a process of its own.
            command = [sys.executable, "-m", "benchmarks.scaling", servers, str(cores), str(rounds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=7200)
            found = json.loads(done.stdout.splitlines()[-1])
            report[f"local[{cores}]"] = found
    (out / "scaling.json").write_text(json.dumps(report, indent=2) + "\n")
    for master, cases in report.items():
        for case, found in cases.items():
            print(
                f"{master} {case:28} {found['seconds']:7.2f} s {found['cpu']:7.2f} CPU s, worker peak "
                f"{found['worker_mb']:.0f} MB, driver {found['driver_mb']:.0f} MB"
            )
    return 0


def _measure(servers: str, cores: int, rounds: int) -> dict[str, Any]:
    from benchmarks.session import spark_session

    spark = spark_session(f"local[{cores}]", connector=False)
    cluster = jobs.Cluster(spark, servers, 0)
    contenders = {}
    for name, process in (("DataFrame", jobs.transform), ("Arrow", jobs.transform_arrow)):
        for size in SIZES:
            contenders[f"{size} records, {name}"] = _run(cluster, process, f"src{size}", "out")
        if cores > 1:
            for count in TARGETS:
                job = _run(cluster, process, "src2000000", f"out{count}")
                contenders[f"{count} target partitions, {name}"] = job
    series = run_rounds(contenders, rounds)
    spark.stop()
    return {
        case: {
            "seconds": statistics.median(found.seconds),
            "cpu": statistics.median(found.cpu),
            "worker_mb": found.peak_mb.get("worker", 0.0),
            "driver_mb": found.peak_mb.get("driver", 0.0),
        }
        for case, found in series.items()
    }


def _run(cluster: jobs.Cluster, process: Any, source: str, sink: str) -> Any:
    def job() -> None:
        jobs.exactly_once(cluster, sink, process, source_topics=(source,))

    return job


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
