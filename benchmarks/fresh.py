"""The first, second and fifth job of a fresh process, its start included: what scheduled work pays.

Spark's own Kafka job, this package, Kafka Streams and plain transactional clients take turns over one input.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import count_records
from airflow_eos_testing.spark_jvm import write_archive
from benchmarks.broker import benchmark_broker
from benchmarks.chart import bar_chart
from benchmarks.processes import cpu_seconds
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import ratio

if TYPE_CHECKING:
    from pathlib import Path

JOBS = 5
SPARK, STREAMS, CLIENTS = (
    "Spark at-least-once, tuned",
    "Kafka Streams, exactly once",
    "plain Java clients, transactions",
)
CONTENDERS = {
    SPARK: "tuned",
    "airflow-eos, DataFrame": "dataframe",
    "airflow-eos, Arrow": "arrow",
    STREAMS: "streams",
    CLIENTS: "clients",
}


def fresh(records: int, rounds: int, out: Path) -> int:
    """Measure, write ``fresh.json`` and ``fresh.svg``, print a line per contender; 1 for a wrong count."""
    write_archive()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        for topic in ("src", *CONTENDERS.values()):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(servers, "src", records)
        for number in range(1, rounds + 1):
            for name, kind in CONTENDERS.items():
                times = measure(kind, servers, "src", kind, records)
                found[name].append(times)
                print(f"  round {number}: {name}: {_line(times)}", flush=True)
        written = {kind: count_records(servers, kind) for kind in CONTENDERS.values()}
    if wrong := {kind: count for kind, count in written.items() if count != records * rounds * JOBS}:
        print(f"fresh: {wrong} records in the outputs, not {records * rounds * JOBS}", file=sys.stderr)
        return 1
    report = {"records": records, "rounds": rounds, "partitions": PARTITIONS, "contenders": _summary(found)}
    (out / "fresh.json").write_text(json.dumps(report, indent=2) + "\n")
    title = f"{records:,} records, a fresh process from its start to the end of its first job"
    first = {name: (row["first"], row["cpu_first"]) for name, row in report["contenders"].items()}
    (out / "fresh.svg").write_text(bar_chart(title, first))
    for name, row in report["contenders"].items():
        of = f"of {SPARK}: {row['of_spark']:.2f}, of {STREAMS}: {row['of_streams']:.2f}"
        print(f"fresh: {name}: {_line(row)}; {of}")
    return 0


def measure(
    kind: str, servers: str, source: str, sink: str, records: int, jobs: int = JOBS
) -> dict[str, float]:
    """Return seconds and CPU seconds of one fresh process that runs a job several times.

    :returns: ``first`` from the start of the process to the end of its first job, ``second`` and ``last`` of
        those jobs alone; ``cpu_first`` and ``cpu_second`` of it and what it started, without the broker.
    """
    begun = time.perf_counter()
    ends, cpu = [begun], [0.0]
    with subprocess.Popen(
        [*_command(kind), servers, source, sink, str(records), str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"job"'):
                ends.append(time.perf_counter())
                cpu.append(cpu_seconds(process.pid))
    if process.returncode != 0 or len(ends) != jobs + 1:
        raise RuntimeError(f"{kind} ended with {process.returncode} after {len(ends) - 1} jobs")
    return {
        "first": ends[1] - begun,
        "second": ends[2] - ends[1],
        "last": ends[-1] - ends[-2],
        "cpu_first": cpu[1],
        "cpu_second": cpu[2] - cpu[1],
    }


def _command(kind: str) -> list[str]:
    if kind in ("clients", "streams"):
        from benchmarks.java_peers import command

        return command(kind)
    return [sys.executable, "-m", "benchmarks.fresh_job", kind]


def _summary(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    first = {name: [times["first"] for times in rounds] for name, rounds in found.items()}
    return {
        name: {
            **{part: statistics.median(times[part] for times in rounds) for part in rounds[0]},
            "of_spark": ratio(first[name], first[SPARK]),
            "of_streams": ratio(first[name], first[STREAMS]),
            "of_clients": ratio(first[name], first[CLIENTS]),
        }
        for name, rounds in found.items()
    }


def _line(times: dict[str, Any]) -> str:
    return (
        f"first job {times['first']:.1f} s with its start ({times['cpu_first']:.1f} CPU s), "
        f"second {times['second']:.1f} s ({times['cpu_second']:.1f} CPU s), fifth {times['last']:.1f} s"
    )
