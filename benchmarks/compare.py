"""The comparison in a warm session: whole jobs, sources alone, and lower bounds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import count_records
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.chart import report_chart
from benchmarks.contenders import ARROW, FRAME, TUNED
from benchmarks.floors import fetch_raw, produce_raw
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import WARM_UPS, Series, open_share, ratio, run_rounds, shares
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEFAULTS = "Spark at-least-once, defaults"
LOOP = "confluent-kafka loop, 10,000 per txn"


def compare(records: int, rounds: int, out: Path) -> int:
    """Measure, write ``compare.json`` and ``compare.svg``, print a summary; return 1 for a wrong count."""
    from airflow_eos.wire.client_config import ClientConfig

    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        for topic in (jobs.SOURCE, "defaults", "tuned", "frame", "arrow", "loop", "floor"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        print(f"publishing {records} records ...", flush=True)
        megabytes = publish(servers, jobs.SOURCE, records) / 1e6

        spark = spark_session()
        cluster = jobs.Cluster(spark, servers, records)
        config = ClientConfig.of({"bootstrap.servers": servers})
        ready = fetch_raw(config, jobs.SOURCE, "floor")
        contenders: dict[str, Callable[[], Any]] = {
            DEFAULTS: lambda: jobs.at_least_once(cluster, "defaults", jobs.DEFAULTS),
            TUNED: lambda: jobs.at_least_once(cluster, "tuned", jobs.TUNED),
            FRAME: lambda: (jobs.exactly_once(cluster, "frame", jobs.transform), cluster.stages)[1],
            ARROW: lambda: (jobs.exactly_once(cluster, "arrow", jobs.transform_arrow), cluster.stages)[1],
            LOOP: lambda: jobs.client_loop(cluster, "loop"),
            "half: Spark's source to noop": lambda: jobs.read_spark(cluster),
            "half: our source to noop": lambda: jobs.read_ours(cluster),
            "floor: fetch, not decoded": lambda: fetch_raw(config, jobs.SOURCE, "floor") and None,
            "floor: produce ready batches": lambda: produce_raw(config, servers, ready),
        }
        series = run_rounds(contenders, rounds)
        spark.stop()
        written = {topic: count_records(servers, topic) for topic in ("frame", "arrow")}
    expected = dict.fromkeys(written, records * (WARM_UPS + rounds))
    if written != expected:
        print(f"bench: {written} records in the outputs, {expected} expected", file=sys.stderr)
        return 1
    report = _report(series, records, rounds, megabytes)
    (out / "compare.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "compare.svg").write_text(report_chart(report))
    _print(report)
    return 0


def _report(
    series: dict[str, Series],
    records: int,
    rounds: int,
    megabytes: float,
) -> dict[str, Any]:
    tuned = series[TUNED]
    report: dict[str, Any] = {
        "records": records,
        "rounds": rounds,
        "partitions": PARTITIONS,
        "megabytes": round(megabytes, 1),
        "contenders": {name: timings.summary(records, megabytes) for name, timings in series.items()},
        "ratios": {},
        "shares": {},
        "transaction_open": {},
    }
    for short, name in (("dataframe", FRAME), ("arrow", ARROW)):
        own = series[name]
        report["ratios"][short] = {
            "seconds": ratio(own.seconds, tuned.seconds),
            "cpu": ratio(own.cpu, tuned.cpu),
            "defaults_seconds": ratio(own.seconds, series[DEFAULTS].seconds),
            "loop_seconds": ratio(own.seconds, series[LOOP].seconds),
        }
        report["shares"][short] = shares(own.stages)
        report["transaction_open"][short] = open_share(own.stages)
    return report


def _print(report: dict[str, Any]) -> None:
    for name, figures in report["contenders"].items():
        peaks = ", ".join(f"{kind} {peak:.0f}" for kind, peak in sorted(figures["peak_mb"].items()))
        print(
            f"{name:38} {figures['median_seconds']:6.2f} s {figures['median_cpu_seconds']:7.2f} CPU s "
            f"{figures['records_per_second']:11,.0f} records/s {figures['mb_per_second']:6.1f} MB/s; "
            f"peak MB: {peaks}"
        )
    for short, figures in report["ratios"].items():
        texts = [f"{key} {value:.2f}" for key, value in figures.items()]
        print(
            f"{short}: {', '.join(texts)}; "
            f"transaction open {report['transaction_open'][short]:.0%} of the run"
        )
        print(
            f"{short}: "
            + ", ".join(f"{state} {share:.0%}" for state, share in report["shares"][short].items())
        )
    ratios = report["ratios"]
    print(
        f"bench: dataframe {ratios['dataframe']['seconds']:.2f}, arrow {ratios['arrow']['seconds']:.2f} "
        f"of tuned at-least-once Spark (median of {report['rounds']} rounds)"
    )
