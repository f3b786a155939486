"""Deferred sensors and an asset's watcher in a real triggerer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.run.protocol import RunProtocol
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.local_runs import LocalDataPlane
from tests.support.patience import wait_until
from tests.system.airflow_waits import deferred

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine

DAY = "2026-11-01T00:00:00Z"
NEXT_DAY = "2026-11-02T00:00:00Z"
NEXT_DAY_MS = 1_793_577_600_000


def publish(
    kafka: EmbeddedKafka, topic: str, count: int, partition: int, timestamp: int = NEXT_DAY_MS
) -> None:
    producer = Producer(kafka.client_config())
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def test_sensors_are_deferred_and_wake_up(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """Three tasks wait without a worker slot; each resumes when its condition holds, and returns a result."""
    run_id = airflow.trigger(
        "waits", logical_date=DAY, data_interval_start=DAY, data_interval_end=NEXT_DAY, timeout=120
    )
    for task_id in ("lag", "interval", "run"):
        deferred(airflow, "waits", run_id, task_id)
        wait_until(lambda name=task_id: not airflow.task_processes("waits", run_id, name), seconds=120)

    publish(kafka, "waits-in", 4, partition=0)
    publish(kafka, "waits-in", 1, partition=1, timestamp=NEXT_DAY_MS - 1)
    airflow.wait_for_task("waits", run_id, "lag", ["success"])
    assert airflow.xcom("waits", run_id, "lag") == {
        "group_id": "waits",
        "lag": 5,
        "ranges": [["waits-in", 0, 0, 4], ["waits-in", 1, 0, 1]],
    }
    airflow.wait_for_task("waits", run_id, "interval", ["deferred"])  # partition 1 is before its end
    publish(kafka, "waits-in", 1, partition=1)
    airflow.wait_for_task("waits", run_id, "interval", ["success"])

    airflow.wait_for_task("waits", run_id, "run", ["deferred"])
    spec = RunSpec(
        kafka=kafka.client_config(),
        pipeline="waits.run",
        run_id=run_id,
        source_topics=("waits-in",),
        sink_topic="waits-out",
        group_id="waits",
    )
    with ControlPlane(spec) as control:
        committed = RunProtocol(spec, control.collaborators(LocalDataPlane(spec)), None).execute()
    ended = airflow.wait_for_run("waits", run_id)
    states = {name: airflow.task("waits", run_id, name)["state"] for name in ("lag", "interval", "run")}
    assert (ended, set(states.values())) == ("success", {"success"}), "\n".join(
        [str(states), *(airflow.task_log("waits", run_id, name, 1) for name in states)]
    )
    assert airflow.xcom("waits", run_id, "run") == committed.summary()


def test_asset_watcher_starts_a_run_for_each_batch(airflow: AirflowStandalone, kafka: EmbeddedKafka) -> None:
    """Batches are contiguous; the watcher commits nothing, and fewer records than a batch wait."""
    airflow.wait_for_dag("woken", timeout=120)
    airflow.api.unpause("woken")

    def payloads() -> list[Any]:
        runs = airflow.api.call("GET", "/dags/woken/dagRuns?order_by=run_after")["dag_runs"]
        if any(run["state"] != "success" for run in runs):
            return []
        return [payload for run in runs for payload in airflow.xcom("woken", run["dag_run_id"], "batches")]

    publish(kafka, "woken-in", 3, partition=0)
    (first,) = wait_until(payloads, seconds=120)
    assert (first["group_id"], first["records"]) == ("woken", 3)
    assert first["ranges"] == [["woken-in", 0, 0, 3]]

    publish(kafka, "woken-in", 2, partition=1)
    publish(kafka, "woken-in", 2, partition=0)
    arrived = wait_until(lambda: len(payloads()) > 1 and payloads(), seconds=120)
    announced = sorted(tuple(offsets[1:]) for payload in arrived for offsets in payload["ranges"])
    per_partition = {p: [span[1:] for span in announced if span[0] == p] for p in (0, 1)}
    assert (per_partition[0][0][0], per_partition[1]) == (0, [(0, 2)])
    for spans in per_partition.values():
        assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert len({payload["batch"] for payload in arrived}) == len(arrived)
    with Link(kafka.client_config()) as link:
        cluster = KafkaCluster(link)
        assert cluster.committed("woken", [TopicPartition("woken-in", p) for p in (0, 1)]) == {}
