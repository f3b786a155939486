"""The cost of protecting a task's Spark from other users: protected and open sessions, side by side.

Authentication and encryption of Spark's RPC (:func:`~airflow_eos.spark.encryption.local_defaults`), and
encryption of its block files, which an operator's session protects by permissions. Each round starts
a fresh process for each.

``python -m benchmarks.protection SERVERS RECORDS PROCESS SETTINGS`` is such a process.
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
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.records import publish
from benchmarks.rounds import ratio

FEW, PARTITIONS = 1_000, 4
MASTER = "local[2]"
PROTECTED, ENCRYPTED, OPEN = "protected", "and encrypted files", "open"
SETTINGS: dict[str, dict[str, str]] = {
    PROTECTED: {},
    ENCRYPTED: {name: value for name, value in local_defaults(MASTER).items() if value == "true"},
    OPEN: {name: "false" for name, value in local_defaults(MASTER).items() if value == "true"},
}
JOBS_PER_PROCESS = 3
"""Jobs over all records per process; only the last one counts, with code the JVM has compiled."""


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
                seconds: dict[str, float] = {}
                for process in jobs.PROCESSES:
                    seconds |= _in_a_fresh_process(kafka.bootstrap_servers, records, process, settings)
                print(f"round {number}: {name}: {seconds}", flush=True)
                if number:
                    times[name].append(seconds)
    report: dict[str, Any] = {"records": records, "rounds": rounds}
    for part in times[OPEN][0]:
        seconds_of = {name: [row[part] for row in rows] for name, rows in times.items()}
        ratios = {name: ratio(values, seconds_of[OPEN]) for name, values in seconds_of.items()}
        report[part] = {**seconds_of, "ratios": ratios}
        shown = ", ".join(
            f"{name} {ratios[name]:.2f} ({statistics.median(values):.2f} s)"
            for name, values in seconds_of.items()
        )
        print(f"protection: {part}: {shown}")
    (out / "protection.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _in_a_fresh_process(
    servers: str, records: int, process_name: str, settings: dict[str, str]
) -> dict[str, float]:
    """Return the seconds from a process's start to the end of its first job, and those of its last job."""
    begun = time.perf_counter()
    arguments = [servers, str(records), process_name, json.dumps(settings)]
    command = [sys.executable, "-m", "benchmarks.protection", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first job\n"
        cold = time.perf_counter() - begun
        last = float(process.stdout.read())
    return {
        f"{process_name}, cold start and {FEW:,} records": cold,
        f"{process_name}, {records:,} records": last,
    }


def main(servers: str, records: str, process_name: str, settings: str) -> None:
    """Run a small job, then large ones; print a line after the first, and the seconds of the last."""
    from benchmarks.session import task_session

    started = task_session(int(records), rows=process_name != "Arrow", **json.loads(settings))
    process = jobs.PROCESSES[process_name]
    jobs.exactly_once(jobs.Cluster(started.session, servers, FEW, "few"), "out", process)
    print("first job", flush=True)
    cluster = jobs.Cluster(started.session, servers, int(records), "many")
    for _ in range(JOBS_PER_PROCESS):
        begun = time.perf_counter()
        jobs.exactly_once(cluster, "out", process)
        seconds = time.perf_counter() - begun
    started.stop()
    print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:5])
