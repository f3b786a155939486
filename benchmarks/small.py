"""A small run in a fresh process, by how its JVM is set up: what a scheduled task with little to do pays."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from airflow_eos.spark import jvm
from airflow_eos_testing.spark_jvm import write_archive
from benchmarks import cold
from benchmarks.broker import benchmark_broker
from benchmarks.records import publish
from benchmarks.rounds import ratio

RECORDS, PARTITIONS = 1_000, 4
PLAIN = "as Spark starts it"
QUICK = "compiled quickly"
OURS = "and with class data"


def small(out: Path, rounds: int) -> int:
    """Measure interleaved rounds of fresh processes; the first round is not counted."""
    from airflow_eos_testing import class_data

    write_archive()
    empty = out / "no-archives"
    set_ups = {
        PLAIN: "",
        QUICK: jvm.options_for(RECORDS, empty),
        OURS: jvm.options_for(RECORDS, class_data.folder()),
    }
    found: dict[str, list[float]] = {name: [] for name in set_ups}
    with benchmark_broker() as kafka:
        for topic in ("src", "out"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        publish(kafka.bootstrap_servers, "src", RECORDS)
        for number in range(rounds + 1):
            for name, options in set_ups.items():
                environment = {jvm.OPTIONS_VARIABLE: options}
                whole = cold.measure(
                    "dataframe", kafka.bootstrap_servers, RECORDS, "src", "out", environment
                )["whole"]
                if number:
                    found[name].append(whole)
                    print(f"round {number}: {name}: {whole:.1f} s", flush=True)
    report = {name: {"seconds": times, "ratio": ratio(times, found[PLAIN])} for name, times in found.items()}
    (out / "small.json").write_text(json.dumps(report, indent=2) + "\n")
    for name, times in found.items():
        of = f"{ratio(times, found[PLAIN]):.2f} of {PLAIN}"
        print(f"small: {RECORDS} records, fresh process, {name}: {statistics.median(times):.1f} s, {of}")
    return 0
