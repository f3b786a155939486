"""The duration of a run after many others in its ledger partition, with the index and without.

Measures an empty run, which needs no Spark, and the look-up of a committed run. The records before it have
1 kB, as those of runs over 16 source partitions; ten of them share a batch, which favours reading them all.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_eos.broker.ledger_log import scan as ledger_scan
from airflow_eos.ledger import keys
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operations.upkeep import index_ledger
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos_testing import EmbeddedKafka
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.rounds import ratio

BEFORE = tuple(int(size) for size in os.environ.get("BEFORE", "0 10000 100000 1000000").split())
INDEXED, WHOLE = "with the index", "without"
_VALUE_BYTES = 850
_PER_TRANSACTION = 5_000


def ledger(out: Path, rounds: int) -> int:
    """Measure after each number of records, in interleaved rounds; print the curve."""
    with benchmark_broker() as kafka:
        kafka.create_topic("src", partitions=1)
        specs, index_seconds = {}, {}
        for before in BEFORE:
            specs[before] = spec = _filled(kafka, before)
            began = time.perf_counter()
            index_ledger(spec.deployment)
            index_seconds[before] = time.perf_counter() - began
            print(
                f"after {before:9,} records the index was built in {index_seconds[before]:.1f} s", flush=True
            )
        timings: dict[int, dict[str, dict[str, list[float]]]] = {
            before: {how: {"empty run": [], "found again": [], "megabytes": []} for how in (INDEXED, WHOLE)}
            for before in BEFORE
        }
        for number in range(rounds + 1):
            for how in (INDEXED, WHOLE):
                for before, spec in specs.items():
                    with _reading(indexed=how == INDEXED) as read:
                        numbered = replace(spec, run_id=f"{how} {number}")
                        measured = {"empty run": _timed(numbered), "megabytes": read[0] / 1e6}
                        measured["found again"] = _timed(numbered)
                    if number:
                        for name, value in measured.items():
                            timings[before][how][name].append(value)
    for before, by in timings.items():
        for how, series in by.items():
            middle = {name: statistics.median(values) for name, values in series.items()}
            print(
                f"after {before:9,} records {how:15}: empty run {middle['empty run']:6.2f} s, "
                f"{middle['megabytes']:8.1f} MB read; found again {middle['found again']:6.2f} s"
            )
    report: dict[str, Any] = {
        str(size): {**timings[size], "index made in": index_seconds[size]} for size in BEFORE
    }
    (out / "ledger.json").write_text(json.dumps(report, indent=2) + "\n")
    first, last = (timings[size][INDEXED]["empty run"] for size in (BEFORE[0], BEFORE[-1]))
    print(
        f"ledger: an empty run after {BEFORE[-1]:,} records takes {ratio(last, first):.2f} times one after "
        f"{BEFORE[0]:,}"
    )
    return 0


def _timed(spec: RunSpec) -> float:
    began = time.perf_counter()
    jobs.empty_run(spec)
    return time.perf_counter() - began


def _filled(kafka: EmbeddedKafka, before: int) -> RunSpec:
    """Return a run whose ledger partition holds ``before`` records of other runs of its pipeline."""
    name = f"behind{before}"
    spec = RunSpec(
        kafka=kafka.client_config(),
        pipeline=name,
        run_id="first",
        source_topics=("src",),
        group_id=name,
        prefix="bench",
        ledger=LedgerSettings(topic=f"ledger-{name}", partitions=1, replication_factor=1, create=True),
    )
    _timed(spec)
    producer = Producer(
        {
            **kafka.client_config(),
            "transactional.id": f"fill-{name}",
            "batch.num.messages": 10,
            "queue.buffering.max.messages": _PER_TRANSACTION + 1,
        }
    )
    producer.init_transactions(30)
    for begin in range(0, before, _PER_TRANSACTION):
        producer.begin_transaction()
        for number in range(begin, min(begin + _PER_TRANSACTION, before)):
            key = keys.run_record_key(keys.cursor_run_key(name, f"scheduled__{number:08d}"))
            value = json.dumps({"v": 1, "of": number, "filled": "x" * _VALUE_BYTES})
            producer.produce(spec.ledger.topic, key=key, value=value, partition=0)
        producer.commit_transaction(120)
    return spec


@contextmanager
def _reading(*, indexed: bool) -> Iterator[list[int]]:
    """Yield a counter of bytes fetched from the ledger; ``indexed=False`` disables the index."""
    read = [0]
    fetch: Callable[..., Any] = fetch_answers
    index = keys.INDEX

    def counted(*args: Any, **settings: Any) -> Iterator[Any]:
        for answer in fetch(*args, **settings):
            read[0] += len(answer.data)
            yield answer

    ledger_scan.fetch_answers = counted  # type: ignore[attr-defined]
    if not indexed:
        keys.INDEX = None  # type: ignore[assignment]
    try:
        yield read
    finally:
        ledger_scan.fetch_answers = fetch  # type: ignore[attr-defined]
        keys.INDEX = index
