"""The response time of each page in Airflow after many runs: over HTTP, with Airflow's real application.

The runs read 16 source partitions without gap or overlap. Their records are written to the ledger in few
transactions, by the producer that they name, and have about the size of real ones. The ledger is indexed, as
by real runs.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.ledger import keys
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operations.upkeep import index_ledger
from airflow_eos_testing import EmbeddedKafka
from benchmarks import jobs
from benchmarks.broker import benchmark_broker

RUNS = int(os.environ.get("RUNS") or 100_000)
_PARTITIONS = 16
_PER_TRANSACTION = 5_000
_FIRST_REQUEST_TIMEOUT = 900.0
_DAG, _PIPELINE = "measured", "measured"


def page(out: Path, rounds: int) -> int:
    """Measure the first request, then each page and its JSON twin; print medians in seconds."""
    from tests.support.airflow_app import airflow_app, served, token

    with benchmark_broker() as kafka:
        spec = _filled(kafka, RUNS)
        index_ledger(spec.deployment)
        with (
            airflow_app(spec.kafka, ledger=spec.ledger.topic, dags=(_DAG,)) as client,
            served(client.app) as address,
        ):
            ask = _asker(address, token("viewer"))
            began = time.perf_counter()
            while (status := ask("/")[0]) == 503:
                if time.perf_counter() - began > _FIRST_REQUEST_TIMEOUT:
                    break
                time.sleep(0.2)
            first = time.perf_counter() - began
            print(
                f"page: the first request after {RUNS:,} runs takes {first:.1f} s (status {status})",
                flush=True,
            )
            series, wrong = _measured(ask, rounds)
    medians = {path: statistics.median(seconds) for path, seconds in series.items()}
    for path, seconds in medians.items():
        print(f"page: {path:28} {seconds:6.3f} s")
    for problem in wrong:
        print(f"page: WRONG: {problem}")
    report = {"runs": RUNS, "first look": first, "seconds": series, "wrong": wrong}
    (out / "page.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"page: after {RUNS:,} runs the slowest page takes {max(medians.values()):.2f} s")
    return 1 if wrong else 0


def _measured(ask: Callable[[str], tuple[int, str]], rounds: int) -> tuple[dict[str, list[float]], list[str]]:
    tiled = f"{RUNS * _PARTITIONS:,} offsets of {_PARTITIONS} partitions"
    whole = f"{RUNS:,} runs tile {tiled} without gap or overlap"
    pipeline = "pipeline?" + urllib.parse.urlencode({"name": _PIPELINE})
    newest, oldest = (
        "run?" + urllib.parse.urlencode({"pipeline": _PIPELINE, "key": _key(number)})
        for number in (RUNS - 1, 0)
    )
    pages = {
        "pipelines": ("", "pipelines", whole),
        "pipeline": (pipeline, pipeline, whole),
        "newest run": (newest, newest, _run_id(RUNS - 1)),
        "oldest run": (oldest, oldest, _run_id(0)),
        "transactions": ("transactions", "transactions", "ransactions"),
        "health": ("health", "health", "None of"),
    }
    series: dict[str, list[float]] = {}
    wrong: list[str] = []
    for number in range(rounds + 1):
        for name, (path, twin, expected) in pages.items():
            for label, at in ((name, f"/{path}"), (f"{name}, JSON", f"/api/v1/{twin}")):
                began = time.perf_counter()
                status, text = ask(at)
                seconds = time.perf_counter() - began
                if status != 200 or expected not in text:
                    wrong.append(f"{label}: status {status}, without {expected!r}")
                if number:
                    series.setdefault(label, []).append(seconds)
    return series, wrong


def _asker(address: str, token: str) -> Callable[[str], tuple[int, str]]:
    def ask(path: str) -> tuple[int, str]:
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{address}/eos{path}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return ask


def _run_id(number: int) -> str:
    return f"scheduled__{number:08d}"


def _key(number: int) -> str:
    return keys.cursor_run_key(_PIPELINE, _run_id(number))


def _filled(kafka: EmbeddedKafka, runs: int) -> RunSpec:
    """Return a first run's settings; its ledger also holds records of ``runs`` runs, of one offset each."""
    kafka.create_topic("src", partitions=_PARTITIONS)
    spec = RunSpec(
        kafka=kafka.client_config(),
        pipeline="template",
        run_id="template",
        source_topics=("src",),
        group_id=_PIPELINE,
        prefix="test",
        ledger=LedgerSettings(topic="ledger-page", partitions=1, replication_factor=1, create=True),
    )
    template = json.loads(jobs.empty_run(spec).to_json())
    _fill_source(kafka, runs)
    name = template["producer"]["transactional_id"]
    producer = _producer(kafka, name)
    with Link(spec.kafka) as link:
        cluster = KafkaCluster(link)
        status = cluster.describe_transaction(name)
    assert status is not None
    template["producer"].update(producer_id=status.producer_id, producer_epoch=status.producer_epoch)
    for begin in range(0, runs, _PER_TRANSACTION):
        producer.begin_transaction()
        for number in range(begin, min(begin + _PER_TRANSACTION, runs)):
            value = json.dumps(_record(template, number), separators=(",", ":"))
            producer.produce(
                spec.ledger.topic, key=keys.run_record_key(_key(number)), value=value, partition=0
            )
        producer.commit_transaction(120)
    return spec


def _record(template: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        **template,
        "run_key": _key(number),
        "run_id": _run_id(number),
        "pipeline": _PIPELINE,
        "ranges": [["src", partition, number, number + 1] for partition in range(_PARTITIONS)],
        "records_read": {f"src-{partition}": 1 for partition in range(_PARTITIONS)},
        "details": {
            **template["details"],
            "airflow": {"dag_id": _DAG, "task_id": "t", "map_index": -1, "run_id": _run_id(number)},
        },
    }


def _fill_source(kafka: EmbeddedKafka, runs: int) -> None:
    producer = Producer({**kafka.client_config(), "queue.buffering.max.messages": runs + 1})
    for partition in range(_PARTITIONS):
        for _ in range(runs):
            producer.produce("src", value=b"x", partition=partition)
        if producer.flush(120):
            raise RuntimeError("the source was not filled")


def _producer(kafka: EmbeddedKafka, transactional_id: str) -> Producer:
    settings = {"transactional.id": transactional_id, "queue.buffering.max.messages": _PER_TRANSACTION + 1}
    producer = Producer({**kafka.client_config(), **settings})
    producer.init_transactions(30)
    return producer
