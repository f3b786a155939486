"""Finds the fastest options for Spark's own Kafka job, which the other measurements then use.

The options of the source, then those of the sink, take turns in one warm session over one input; the best
source options are kept for the sink's turns.
"""

from __future__ import annotations

import json
import statistics
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from airflow_eos_testing import count_records
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.jobs import SparkOptions
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import WARM_UPS, run_rounds
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SINK = "tuning"
_POLL_RECORDS = (500, 5_000, 10_000, 50_000)
_FETCH_MIB = (1, 8, 32)
_BATCH_KIB = (16, 256, 1_024)
_LINGER_MS = (0, 20, 100)
_ZSTD_LEVELS = (1, 3)
_SHORT_CACHES = {
    f"spark.kafka.{client}.cache.{setting}": seconds
    for client in ("consumer", "producer")
    for setting, seconds in (("timeout", "20s"), ("evictorThreadRunInterval", "5s"))
}
"""Without these the clients of all earlier options, and what they have fetched, fill the heap."""


def tuning(records: int, rounds: int, out: Path) -> int:
    """Measure, write ``tuning.json``, print the best options; return 1 for a wrong count."""
    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        for topic in (jobs.SOURCE, _SINK):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(servers, jobs.SOURCE, records)
        cluster = jobs.Cluster(spark_session(peers=True, **_SHORT_CACHES), servers, records)
        source, of_sources = _best(
            cluster,
            [
                SparkOptions(
                    {"kafka.max.poll.records": str(poll), "kafka.max.partition.fetch.bytes": str(mib << 20)},
                    jobs.TUNED.sink,
                )
                for poll, mib in product(_POLL_RECORDS, _FETCH_MIB)
            ],
            rounds,
        )
        best, of_sinks = _best(
            cluster,
            [
                SparkOptions(
                    source.source,
                    {
                        "kafka.batch.size": str(kib << 10),
                        "kafka.linger.ms": str(linger),
                        "kafka.compression.zstd.level": str(level),
                    },
                )
                for kib, linger, level in product(_BATCH_KIB, _LINGER_MS, _ZSTD_LEVELS)
            ],
            rounds,
        )
        cluster.spark.stop()
        written = count_records(servers, _SINK)
    report = {"source": dict(best.source), "sink": dict(best.sink), "seconds": {**of_sources, **of_sinks}}
    (out / "tuning.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"tuning: source {_label(best.source)}; sink {_label(best.sink)} (median of {rounds} rounds)")
    jobs_run = (WARM_UPS + rounds) * (len(of_sources) + len(of_sinks))
    return 0 if written == records * jobs_run else 1


def _best(
    cluster: jobs.Cluster, candidates: Sequence[SparkOptions], rounds: int
) -> tuple[SparkOptions, dict[str, float]]:
    """Return the options whose median time is the shortest, and the seconds of all."""
    by_label = {f"{_label(options.source)}; {_label(options.sink)}": options for options in candidates}
    contenders = {
        label: partial(jobs.at_least_once, cluster, _SINK, options) for label, options in by_label.items()
    }
    series = run_rounds(contenders, rounds)
    seconds = {label: statistics.median(times.seconds) for label, times in series.items()}
    return by_label[min(seconds, key=lambda label: seconds[label])], seconds


def _label(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name.removeprefix('kafka.')}={value}" for name, value in options.items())
