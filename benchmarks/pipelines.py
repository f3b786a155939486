"""The cost of many pipelines on one worker that have nothing to read, with one run per minute each.

The runs are spread over the minute, as a scheduler's are. Threads represent the slots of the worker; Spark
and Airflow are not involved. A proxy in front of the broker counts the requests of a few runs, including
librdkafka's.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka.protocol.api_key import ApiKey

from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos_testing.faults.proxy import KafkaProxy
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.processes import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_eos_testing import EmbeddedKafka

MINUTE = 60.0
SLOTS = 16
"""Number of concurrent runs: Airflow's default for a Celery worker."""
_COUNTED = 20
_ESTABLISHED = "01"


@dataclass(frozen=True, slots=True)
class Load:
    """The cost of the runs of one minute.

    :param pipelines: number of pipelines, with one run each.
    :param seconds: seconds from the first start to the last end.
    :param median_seconds: median duration of a run.
    :param slowest_seconds: longest duration of a run.
    :param worker_cpu_seconds: CPU seconds per run, in the worker.
    :param broker_cpu_seconds: CPU seconds per run, in the broker.
    :param connections: peak number of connections to the broker.
    :param requests: requests per run by kind, including its clients'.
    """

    pipelines: int
    seconds: float
    median_seconds: float
    slowest_seconds: float
    worker_cpu_seconds: float
    broker_cpu_seconds: float
    connections: int
    requests: Mapping[str, float]


def pipelines(out: Path, rounds: int, most: int) -> int:
    """Measure one minute per round, after a first one that creates the cursors; print medians.

    :param most: number of pipelines.
    """
    with benchmark_broker() as kafka:
        for number in range(most):
            kafka.create_topic(f"source-{number}", partitions=3)
        _minute(kafka, most, "first")
        requests = _requests(kafka, most)
        loads = [_minute(kafka, most, f"round {number}", requests) for number in range(rounds)]
    (out / "pipelines.json").write_text(json.dumps([asdict(load) for load in loads], indent=2) + "\n")
    middle = {
        name: statistics.median(getattr(load, name) for load in loads)
        for name in (
            "seconds",
            "median_seconds",
            "slowest_seconds",
            "worker_cpu_seconds",
            "broker_cpu_seconds",
        )
    }
    kinds = ", ".join(f"{number:g} {kind}" for kind, number in requests.items())
    print(f"pipelines: {most} runs per minute without records, {middle['median_seconds']:.2f} s each")
    for name in ("worker", "broker"):
        cpu = middle[f"{name}_cpu_seconds"]
        print(f"pipelines: CPU in the {name}: {1000 * cpu:.0f} ms per run, {cpu * most / MINUTE:.2f} cores")
    print(f"pipelines: at most {max(load.connections for load in loads)} concurrent connections")
    print(f"pipelines: {sum(requests.values()):g} requests per run: {kinds}")
    return 0


def _minute(
    kafka: EmbeddedKafka, count: int, run_id: str, requests: Mapping[str, float] | None = None
) -> Load:
    """Start one run of each pipeline, spread over a minute, and wait for all."""
    seconds: list[float] = []
    config = kafka.client_config()

    def run(number: int) -> None:
        began = time.perf_counter()
        _run(config, number, run_id)
        seconds.append(time.perf_counter() - began)

    broker = kafka.brokers[0].pid or 0
    cpu = time.process_time(), cpu_seconds(broker)
    began = time.perf_counter()
    with _most_connections(kafka.bootstrap_servers) as connections, ThreadPoolExecutor(SLOTS) as slots:
        runs = []
        for number in range(count):
            time.sleep(max(0.0, began + number * MINUTE / count - time.perf_counter()))
            runs.append(slots.submit(run, number))
        for ended in runs:
            ended.result()
    return Load(
        pipelines=count,
        seconds=time.perf_counter() - began,
        median_seconds=statistics.median(seconds),
        slowest_seconds=max(seconds),
        worker_cpu_seconds=(time.process_time() - cpu[0]) / count,
        broker_cpu_seconds=(cpu_seconds(broker) - cpu[1]) / count,
        connections=connections[0],
        requests=requests or {},
    )


def _requests(kafka: EmbeddedKafka, count: int) -> dict[str, float]:
    """Return the requests per run by kind, averaged over a few pipelines."""
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        config = proxy.client_config(kafka.client_config())
        numbers = range(min(count, _COUNTED))
        for number in numbers:
            _run(config, number, "counted")
        totals = Counter({api: proxy.seen(api) for api in ApiKey.__members__})
    return {api: total / len(numbers) for api, total in totals.most_common() if total}


def _run(config: Mapping[str, str], number: int, run_id: str) -> None:
    spec = RunSpec(
        kafka=config,
        pipeline=f"pipeline-{number}",
        run_id=run_id,
        source_topics=(f"source-{number}",),
        group_id=f"group-{number}",
        prefix="pipelines",
        ledger=LedgerSettings(replication_factor=1, create=True),
    )
    record = jobs.empty_run(spec)
    if record.records_read:
        raise AssertionError(f"{record.records_read} records were read from an empty topic")


@contextmanager
def _most_connections(bootstrap_servers: str) -> Iterator[list[int]]:
    """Yield a list whose only item is the peak number of connections to the port."""
    port = int(bootstrap_servers.rpartition(":")[2])
    most, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            most[0] = max(most[0], _connections_to(port))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield most
    finally:
        ended.set()
        sampler.join()


def _connections_to(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows)
