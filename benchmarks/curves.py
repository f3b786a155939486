"""The duration of a run by number of source and target partitions, pipelines of a ledger, concurrent runs.

Runs with records use a warm session and the Arrow process; empty runs need no Spark. Each round measures
every point once, so that a slow minute affects all curves alike.
"""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos_testing import EmbeddedKafka, count_records
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.chart import curve_chart
from benchmarks.records import publish
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITIONS = (1, 10, 100, 500, 1_000, 2_000)
BOTH_PARTITIONS = (1, 100, 2_000)
"""Source partitions; fewer points, since one broker holds all topics and a partition keeps files open."""
PIPELINES = (1, 10, 100, 500)
AT_ONCE = (1, 2, 4, 8, 16)
SOURCES, EMPTY, TARGETS = "source partitions", "source partitions, no records", "target partitions"
BOTH = "source partitions, 5 target partitions for 2"
SHARED, TOGETHER = "pipelines in one ledger, no records", "runs at once, no records"

Point = tuple[str, int]


def curves(out: Path, rounds: int, records: int, most: int) -> int:
    """Measure every point in each round; print the curves; return 1 if an output is incomplete.

    :param records: records of each run that is not empty.
    :param most: upper limit on partitions, pipelines and runs.
    """
    with benchmark_broker() as kafka:
        points = _points(kafka, records, most)
        times: dict[Point, list[float]] = {point: [] for point in points}
        for number in range(rounds + 1):  # the first one warms up
            for point, job in points.items():
                began = time.perf_counter()
                job()
                if number:
                    times[point].append(time.perf_counter() - began)
        written = {
            point: count_records(kafka.bootstrap_servers, _sink(*point))
            for point in points
            if point[0] in (SOURCES, TARGETS, BOTH)
        }
    medians: dict[str, dict[int, float]] = {}
    for (curve, number), seconds in times.items():
        medians.setdefault(curve, {})[number] = statistics.median(seconds)
    for curve, values in medians.items():
        print(f"{curve:46} " + ", ".join(f"{number:,}: {value:.2f} s" for number, value in values.items()))
    report: dict[str, Any] = {
        curve: {str(number): times[curve, number] for number in values} for curve, values in medians.items()
    }
    (out / "curves.json").write_text(json.dumps({"records": records, "seconds": report}, indent=2) + "\n")
    title = f"Seconds of a run by number; {records:,} records where it has any, median of {rounds} rounds"
    (out / "curves.svg").write_text(curve_chart(title, medians))
    wrong = {point: count for point, count in written.items() if count != (rounds + 1) * records}
    for (curve, number), count in wrong.items():
        print(f"{number} {curve}: {count} records are in the output, not {(rounds + 1) * records}")
    grown = "; ".join(
        f"{curve} {values[max(values)] / values[min(values)]:.1f}" for curve, values in medians.items()
    )
    print(f"curves: the last point takes, of the first: {grown}")
    return 1 if wrong else 0


def _points(kafka: EmbeddedKafka, records: int, most: int) -> dict[Point, Callable[[], Any]]:
    """Create topics and ledgers; return the job to measure at each point."""
    servers = kafka.bootstrap_servers
    cluster = jobs.Cluster(spark_session(peers=False), servers, records)
    kafka.create_topic("targets-src", partitions=4)
    publish(servers, "targets-src", records)
    points: dict[Point, Callable[[], Any]] = {}
    for count in _up_to(PARTITIONS, most):
        kafka.create_topic(f"src{count}", partitions=count)
        kafka.create_topic(f"empty{count}", partitions=count)
        publish(servers, f"src{count}", records, count)
        for curve, partitions in ((SOURCES, 4), (TARGETS, count)):
            kafka.create_topic(_sink(curve, count), partitions=partitions)
        points[SOURCES, count] = _run(cluster, f"src{count}", _sink(SOURCES, count))
        points[TARGETS, count] = _run(cluster, "targets-src", _sink(TARGETS, count))
        points[EMPTY, count] = _empty_run(servers, f"empty{count}", "of-many-partitions")
    for count in _up_to(BOTH_PARTITIONS, most):
        kafka.create_topic(_sink(BOTH, count), partitions=-(-count * 5 // 2))
        points[BOTH, count] = _run(cluster, f"src{count}", _sink(BOTH, count))
    for count in _up_to(PIPELINES, most):
        ledger = f"of-{count}-pipelines"
        for number in range(count):
            _empty_run(servers, "empty1", ledger, f"pipeline{number}")()
        points[SHARED, count] = _empty_run(servers, "empty1", ledger, "pipeline0")
    for count in _up_to(AT_ONCE, most):
        points[TOGETHER, count] = _at_once(servers, count)
    return points


def _up_to(numbers: tuple[int, ...], most: int) -> list[int]:
    return [number for number in numbers if number <= most]


def _sink(curve: str, count: int) -> str:
    return f"{curve.replace(',', '').replace(' ', '-')}-{count}"


def _run(cluster: jobs.Cluster, source: str, sink: str) -> Callable[[], Any]:
    return lambda: jobs.exactly_once(cluster, sink, jobs.transform_arrow, source_topics=(source,))


def _empty_run(servers: str, source: str, ledger: str, pipeline: str = "empty") -> Callable[[], Any]:
    """Return a function that executes a new run with nothing to read at each call."""

    def job() -> None:
        spec = RunSpec(
            kafka={"bootstrap.servers": servers},
            pipeline=pipeline,
            run_id=str(time.time_ns()),
            source_topics=(source,),
            group_id=f"{pipeline}-{source}-{ledger}",
            prefix="curves",
            ledger=LedgerSettings(topic=f"ledger-{ledger}", partitions=1, replication_factor=1, create=True),
        )
        jobs.empty_run(spec)

    return job


def _at_once(servers: str, count: int) -> Callable[[], Any]:
    runs = [_empty_run(servers, "empty1", "at-once", f"at-once{number}") for number in range(count)]
    runs[0]()  # creates the ledger

    def job() -> None:
        with ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(run) for run in runs]:
                done.result()

    return job
