"""What it costs that the Spark of a task answers nobody else: side by side, with the defaults and without.

Authentication and encryption of Spark's RPC, and encryption of what it writes to disk
(:func:`~airflow_eos.spark.encryption.local_defaults`). Each round starts a fresh process for either.

``python -m benchmarks.protection SERVERS RECORDS SETTINGS`` is one of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airflow_eos.spark.encryption import local_defaults
from benchmarks.broker import benchmark_broker
from benchmarks.records import publish
from benchmarks.rounds import ratio

FEW, PARTITIONS = 1_000, 4
MASTER = "local[2]"
PROTECTED, OPEN = "protected", "open"
SETTINGS: dict[str, dict[str, str]] = {
    PROTECTED: {},
    OPEN: {name: "false" for name, value in local_defaults(MASTER).items() if value == "true"},
}
JOBS_PER_PROCESS = 3
"""Of each kind, over all records; the last one counts, which the JVM has compiled."""


def protection(out: Path, rounds: int, records: int) -> int:
    """Measure interleaved rounds of fresh processes; the first round is not counted."""
    times: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    with benchmark_broker() as kafka:
        for topic in ("few", "many", "out"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(kafka.bootstrap_servers, "few", FEW)
        publish(kafka.bootstrap_servers, "many", records)
        for number in range(rounds + 1):
            for name, settings in SETTINGS.items():
                seconds = _in_a_fresh_process(kafka.bootstrap_servers, records, settings)
                print(f"round {number}: {name}: {seconds}", flush=True)
                if number:
                    times[name].append(seconds)
    report: dict[str, Any] = {"records": records, "rounds": rounds}
    for part in times[OPEN][0]:
        seconds_of = {name: [row[part] for row in rows] for name, rows in times.items()}
        report[part] = {**seconds_of, "ratio": ratio(seconds_of[PROTECTED], seconds_of[OPEN])}
        medians = ", ".join(
            f"{name} {statistics.median(values):.2f} s" for name, values in seconds_of.items()
        )
        print(f"protection: {part}: {report[part]['ratio']:.2f} ({medians})")
    (out / "protection.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _in_a_fresh_process(servers: str, records: int, settings: dict[str, str]) -> dict[str, float]:
    """Return the seconds of one process and its parts; ``cold`` is all up to the end of its first job."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.protection", servers, str(records), json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first job\n"
        cold = time.perf_counter() - begun
        parts = json.loads(process.stdout.read())
    return {f"cold start and {FEW:,} records": cold, **parts}


def main(servers: str, records: str, settings: str) -> None:
    """Run a small job, then large ones; print when the first has ended and what the others took."""
    from benchmarks import jobs
    from benchmarks.session import spark_session

    spark = spark_session(MASTER, connector=False, **json.loads(settings))
    jobs.exactly_once(jobs.Cluster(spark, servers, FEW, "few"), "out", jobs.transform)
    print("first job", flush=True)
    cluster, seconds = jobs.Cluster(spark, servers, int(records), "many"), {}
    for name, process in jobs.PROCESSES.items():
        for _ in range(JOBS_PER_PROCESS):
            begun = time.perf_counter()
            jobs.exactly_once(cluster, "out", process)
            seconds[f"{name}, {int(records):,} records"] = time.perf_counter() - begun
    spark.stop()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:4])
