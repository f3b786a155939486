"""Sensors deferred to a real triggerer, and a Dag that its asset's watcher starts. No Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_eos import KafkaDataIntervalSensor, KafkaLagSensor, OffsetRangeTrigger, RunCommittedSensor

with DAG("waits", schedule=None, start_date=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)) as waits:
    common: dict[str, Any] = {
        "deferrable": True,
        "poke_interval": 0.5,
        "timeout": 300,
        # A busy scheduler mistakes the end of the process that deferred for a failure (apache/airflow#72716).
        "retries": 3,
        "retry_delay": dt.timedelta(seconds=1),
    }
    KafkaLagSensor(task_id="lag", topics=["waits-in"], group_id="waits", min_records=5, **common)
    KafkaDataIntervalSensor(task_id="interval", topics=["waits-in"], idle_partitions="wait", **common)
    RunCommittedSensor(task_id="run", pipeline="waits.run", **common)

woken_by = Asset(
    "woken-in",
    uri="kafka://broker:9092/woken-in",
    watchers=[
        AssetWatcher(
            name="woken",
            trigger=OffsetRangeTrigger(
                topics=["woken-in"], group_id="woken", min_records=3, poll_interval=0.5
            ),
        )
    ],
)

with DAG(
    "woken",
    schedule=[woken_by],
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
    is_paused_upon_creation=False,  # its watcher runs from the first parse on
):

    @task
    def batches(triggering_asset_events: Any = None) -> list[Any]:
        """Return the payloads that started this run."""
        return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]

    batches()
