"""The first, second and fifth job of a fresh process, its start included: the cost of scheduled work.

Spark's own Kafka job, this package, Flink, Kafka Streams and plain transactional clients take turns over one
input.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EosError
from airflow_eos_testing import count_records
from airflow_eos_testing.spark_jvm import write_archive
from benchmarks import java_peers
from benchmarks.broker import benchmark_broker
from benchmarks.chart import bar_chart
from benchmarks.contenders import ARROW, FRAME, TUNED
from benchmarks.jobs import WORKLOADS
from benchmarks.processes import PeakMemory, cpu_seconds
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import ratio
from benchmarks.spark_kafka_jars import connector_jars

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

JOBS = 5
TUNED_JVM = f"{TUNED}, JVM as ours"
FLINK, STREAMS, CLIENTS = (
    "Flink, exactly once",
    "Kafka Streams, exactly once",
    "plain Java clients, transactions",
)
CONTENDERS = {
    TUNED: "tuned",
    TUNED_JVM: "tuned-jvm",
    FRAME: "dataframe",
    ARROW: "arrow",
    FLINK: "flink",
    STREAMS: "streams",
    CLIENTS: "clients",
}


RATIOS = (
    ("first job", "first", TUNED),
    ("first job", "first", TUNED_JVM),
    ("first job", "first", FLINK),
    ("first job", "first", STREAMS),
    ("second job", "second", CLIENTS),
    ("second job", "second", TUNED),
    ("second job", "second", TUNED_JVM),
    ("fifth job", "last", TUNED),
    ("CPU of the first job", "cpu_first", TUNED),
    ("peak memory", "peak_mb", TUNED),
)
"""Ratios reported for each contender: label, figure of :func:`measure`, and the peer to compare with."""


def fresh(records: int, rounds: int, out: Path, only: Collection[str] = (), workload: str = "copy") -> int:
    """Measure, write ``fresh.json`` and ``fresh.svg``, print a line each; return 1 for a wrong count.

    :param only: values of :data:`CONTENDERS` that take part; default: all that support the workload.
    :param workload: a key of :data:`benchmarks.jobs.WORKLOADS`; reports of all but ``copy`` have its name in
        theirs.
    :raises SystemExit: ``only`` names an unknown contender.
    """
    work = WORKLOADS[workload]
    able = CONTENDERS
    if workload != "copy":
        able = {name: CONTENDERS[name] for name in (TUNED, TUNED_JVM, FRAME)}
    if unknown := {*only} - {*able.values()}:
        names = ", ".join(able.values())
        sys.exit(f"fresh: {', '.join(sorted(unknown))}: not a contender of the workload {workload}: {names}")
    contenders = {name: kind for name, kind in able.items() if not only or kind in only}
    # Prepare archive, jars and classes before the first measurement.
    write_archive()
    started = commands(contenders, only, workload)
    contenders = {name: kind for name, kind in contenders.items() if kind in started}
    series: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        for topic in ("src", *contenders.values()):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(servers, "src", records)
        for number in range(1, rounds + 1):
            for name, kind in contenders.items():
                times = measure(started[kind], servers, "src", kind, records)
                series[name].append(times)
                print(f"  round {number}: {name}: {_line(times)}", flush=True)
        written = {kind: count_records(servers, kind) for kind in contenders.values()}
    expected = work.written(records) * rounds * JOBS
    if wrong := {kind: count for kind, count in written.items() if count != expected}:
        print(f"fresh: {wrong} records in the outputs, not {expected}", file=sys.stderr)
        return 1
    summary = _summary(series)
    report = {"records": records, "rounds": rounds, "partitions": PARTITIONS, "contenders": summary}
    label = "fresh" if workload == "copy" else f"fresh-{workload}"
    (out / f"{label}.json").write_text(json.dumps(report, indent=2) + "\n")
    title = f"{records:,} records, a fresh process from its start to the end of its first job"
    first = {name: (row["first"], row["cpu_first"]) for name, row in summary.items()}
    (out / f"{label}.svg").write_text(bar_chart(title, first))
    for name, row in summary.items():
        print(f"{label}: {name}: {_line(row)}")
        for label_of_ratio, value in row["ratios"].items():
            print(f"{label}: {name}: {label_of_ratio}: {value:.2f}")
    if sentences := _sentences(summary):
        print(f"{label}: first job, start included: {', '.join(sentences)} (median of {rounds} rounds)")
    return 0


def _sentences(summary: dict[str, dict[str, Any]]) -> list[str]:
    """Return the first job's time relative to Spark's and Flink's, for contenders that ran."""
    return [
        f"{short} {summary[name]['ratios'][label]:.2f} of {peer}"
        for short, name in (("dataframe", FRAME), ("arrow", ARROW))
        for peer in (TUNED, FLINK)
        if name in summary and (label := f"first job, of {peer}") in summary[name]["ratios"]
    ]


def measure(
    command: Sequence[str], servers: str, source: str, sink: str, records: int, jobs: int = JOBS
) -> dict[str, float]:
    """Return seconds and CPU seconds of one fresh process that runs a job several times.

    :param command: from :func:`command`.
    :returns: ``first`` from the start of the process to the end of its first job, ``second`` and ``last`` of
        those jobs alone; ``cpu_first`` and ``cpu_second`` of the process and its descendants, not the broker;
        ``peak_mb`` the peak of their total memory.
    """
    begun = time.perf_counter()
    ends, cpu = [begun], [0.0]
    with subprocess.Popen(
        [*command, servers, source, sink, str(records), str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        memory = PeakMemory(process.pid)
        for line in process.stdout:
            if line.startswith('{"job"'):
                ends.append(time.perf_counter())
                cpu.append(cpu_seconds(process.pid))
    if process.returncode != 0 or len(ends) != jobs + 1:
        raise RuntimeError(
            f"{' '.join(command[-2:])} ended with {process.returncode} after {len(ends) - 1} jobs"
        )
    return {
        "first": ends[1] - begun,
        "second": ends[2] - ends[1],
        "last": ends[-1] - ends[-2],
        "cpu_first": cpu[1],
        "cpu_second": cpu[2] - cpu[1],
        "peak_mb": memory.mb,
    }


def command(kind: str, workload: str = "copy") -> list[str]:
    """Return a contender's command, after fetching and compiling all it needs."""
    if kind in (CONTENDERS[FLINK], CONTENDERS[STREAMS], CONTENDERS[CLIENTS]):
        return java_peers.command(kind)
    if kind in (CONTENDERS[TUNED], CONTENDERS[TUNED_JVM]):
        connector_jars()
    return [sys.executable, "-m", "benchmarks.fresh_job", kind, workload]


def commands(contenders: Mapping[str, str], only: Collection[str], workload: str) -> dict[str, list[str]]:
    """Return each contender's command; an unavailable Java peer is left out, unless ``only`` names it."""
    by_kind = {
        kind: _command_of(name, kind, workload, is_wanted=kind in only) for name, kind in contenders.items()
    }
    return {kind: command for kind, command in by_kind.items() if command is not None}


def _command_of(name: str, kind: str, workload: str, *, is_wanted: bool) -> list[str] | None:
    try:
        return command(kind, workload)
    except (EosError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        if is_wanted or name not in (FLINK, STREAMS, CLIENTS):
            raise
        print(f"fresh: without {name}: {error}", flush=True)
        return None


def _summary(series: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    def ratios(name: str) -> dict[str, float]:
        return {
            f"{label}, of {peer}": ratio(
                [timing[part] for timing in series[name]], [timing[part] for timing in series[peer]]
            )
            for label, part, peer in RATIOS
            if peer in series and peer != name
        }

    return {
        name: {
            **{part: statistics.median(times[part] for times in rounds) for part in rounds[0]},
            "ratios": ratios(name),
        }
        for name, rounds in series.items()
    }


def _line(times: dict[str, Any]) -> str:
    return (
        f"first job {times['first']:.1f} s with its start ({times['cpu_first']:.1f} CPU s), "
        f"second {times['second']:.1f} s ({times['cpu_second']:.1f} CPU s), fifth {times['last']:.1f} s; "
        f"at most {times['peak_mb']:.0f} MB"
    )
