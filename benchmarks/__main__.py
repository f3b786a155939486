"""Measure whole runs against Spark's own Kafka job, in interleaved rounds on one machine.

Prints seconds of every round and ends with the median of the ratios; a ratio below 1 is faster than the peer.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_eos.testing import EmbeddedKafka, count_records
from benchmarks.memory import WorkerMemory
from benchmarks.records import PARTITIONS, publish
from benchmarks.spark_kafka_jars import connector_jars

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("airflow-eos benchmark")
        .config("spark.jars", ",".join(map(str, connector_jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _timed(job: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def main() -> int:
    """Run the rounds; print a table, a JSON document and the closing line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=int(os.environ.get("RECORDS") or 2_000_000))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 5))
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)

    from benchmarks import jobs

    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        for topic in ("src", "plain", "tuned", "eos"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        print(f"publishing {options.records} records ...", flush=True)
        publish(servers, "src", options.records)
        spark = _session()
        memory = WorkerMemory()
        contenders: dict[str, Callable[[], Any]] = {
            "spark at-least-once, defaults": lambda: jobs.at_least_once(spark, servers, "plain", {}),
            "spark at-least-once, tuned": lambda: jobs.at_least_once(spark, servers, "tuned", jobs.TUNED),
            "airflow-eos exactly-once": lambda: jobs.exactly_once(spark, servers, "eos"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        with memory:
            for number in range(options.rounds + 1):
                times = {name: _timed(job) for name, job in contenders.items()}
                label = "cold (not counted)" if number == 0 else f"round {number}"
                print(f"{label}: " + ", ".join(f"{n} {s:.2f} s" for n, s in times.items()), flush=True)
                if number:
                    for name, taken in times.items():
                        seconds[name].append(taken)
        spark.stop()
        written = count_records(servers, "eos")
    expected = options.records * (options.rounds + 1)
    if written != expected:
        print(f"bench: {written} records in the output, {expected} expected", file=sys.stderr)
        return 1
    ours, tuned, plain = (
        seconds["airflow-eos exactly-once"],
        seconds["spark at-least-once, tuned"],
        seconds["spark at-least-once, defaults"],
    )
    report = {
        "records": options.records,
        "rounds": options.rounds,
        "seconds": seconds,
        "ratio_tuned": statistics.median(a / b for a, b in zip(ours, tuned, strict=True)),
        "ratio_defaults": statistics.median(a / b for a, b in zip(ours, plain, strict=True)),
        "records_per_second": options.records / statistics.median(ours),
        "worker_peak_mb": round(memory.peak_mb, 1),
    }
    print(json.dumps(report, indent=2))
    print(
        f"bench: dataframe {report['ratio_tuned']:.2f} of tuned at-least-once Spark "
        f"(median of {options.rounds} rounds)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
