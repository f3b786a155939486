"""Example data of the pages and their pictures: one night's records and attempts of many pipelines."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity, TransactionDescription, TransactionState
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.operators.failure_record import FailureRecord
from airflow_eos.run.states import State
from airflow_eos.ui.attempts import Attempt
from tests.support.page_site import PREFIX, HandHistory, Site
from tests.support.run_records import run_record

NOW = dt.datetime(2026, 11, 21, 6, tzinfo=dt.timezone.utc)
PARTITIONS = 4
FLIGHTS, DAILY, BROKEN, NEVER = "flights.classify", "calls.daily", "orders.enrich", "payments.settle"
BROKEN_LEDGER = "audit.copy"
"""A pipeline with one record missing in the ledger."""
STATES = (
    *(State.ASKED, State.FENCED, State.CHECKED, State.PLANNED, State.SEALED),
    *(State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN),
)
"""States of a run whose sink is a topic."""
TRACE = (0.05, 0.4, 0.45, 0.6, 0.7, 0.75, 0.95, 0.97, 1.0)
"""Times at which a run enters each state, as shares of its duration."""


def text_of(moment: dt.datetime) -> str:
    """Return a moment in the format of records."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Night:
    """Creates records and attempts, reproducibly."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.records: list[RunRecord] = []
        self.attempts: list[Attempt] = []
        self.logs: dict[TopicPartition, LogBounds] = {}
        self.topic_ids: dict[str, str] = {}

    def committed(
        self, pipeline: str, began: dt.datetime, ranges: list[OffsetRange], **changes: Any
    ) -> RunRecord:
        """Add a run that read these ranges."""
        number = sum(record.pipeline == pipeline for record in self.records)
        read = sum(r.span for r in ranges)
        took = 4 + read / 900 + self.random.random()
        dag_id, task_id = pipeline.split(".")
        run_id = f"scheduled__{began:%Y-%m-%dT%H:%M}"
        details = {
            "topic_ids": self.topic_ids,
            "lag": 0,
            "airflow": {"dag_id": dag_id, "task_id": task_id, "map_index": -1, "run_id": run_id},
            "versions": {"airflow": "3.3.0", "spark": "4.1.0", "packages": {"pyarrow": "21.0"}},
            **changes.pop("details", {}),
        }
        fields: dict[str, Any] = {
            "pipeline": pipeline,
            "run_id": run_id,
            "run_key": keys.cursor_run_key(pipeline, run_id),
            "group_id": pipeline,
            "ranges": tuple(ranges),
            "records_read_by_partition": {str(r.topic_partition): r.span for r in ranges},
            "receipts": (PartitionReceipt("out", 0, 0, read - 1, read, 90 * read, 2, 6),),
            "producer": ProducerIdentity(keys.cursor_transactional_id(PREFIX, pipeline), 4000, number),
            "started_at": text_of(began),
            "staged_at": text_of(began + dt.timedelta(seconds=took)),
            "trace": tuple(
                (state.value, round(share * took, 3)) for state, share in zip(STATES, TRACE, strict=True)
            ),
            "details": details,
        }
        record = run_record(**{**fields, **changes})
        self.records.append(record)
        return record

    def tried(self, pipeline: str, at: dt.datetime, state: str = "success", **changes: Any) -> None:
        """Add an attempt."""
        dag_id, task_id = pipeline.split(".")
        fields: dict[str, Any] = {"map_index": -1, "try_number": 1, "max_tries": 2}
        run_id = f"scheduled__{at:%Y-%m-%dT%H:%M}"
        self.attempts.append(
            Attempt(pipeline, pipeline, dag_id, task_id, run_id, state=state, at=at, **{**fields, **changes})
        )

    def cursor(
        self, pipeline: str, runs: int, *, every: dt.timedelta, unread: int = 0, gap: bool = False
    ) -> None:
        """Add a cursor pipeline; with ``gap``, one of its records is missing."""
        topic = pipeline.partition(".")[0]
        self.topic_ids[topic] = f"id-of-{topic}"
        at = [0] * PARTITIONS
        for number in range(runs):
            began = NOW - (runs - number) * every
            ends = [begin + self.random.randint(200, 2_000) for begin in at]
            ranges = [OffsetRange(topic, part, at[part], ends[part]) for part in range(PARTITIONS)]
            at = ends
            if not gap or number != runs // 2:
                self.committed(pipeline, began, ranges)
            self.tried(pipeline, began)
        for part in range(PARTITIONS):
            self.logs[TopicPartition(topic, part)] = LogBounds(0, at[part] + (unread if part else 0))

    def daily(self, pipeline: str, days: int) -> None:
        """Add a data-interval pipeline."""
        topic = "calls"
        self.topic_ids[topic] = "id-of-calls"
        for day in range(days):
            start = NOW.replace(hour=0) - dt.timedelta(days=days - day)
            end = start + dt.timedelta(days=1)
            interval = [text_of(start), text_of(end)]
            ranges = [OffsetRange(topic, part, day * 900, day * 900 + 900) for part in range(PARTITIONS)]
            work = {"topics": [topic], "mode": "interval", "interval": interval}
            began = end + dt.timedelta(minutes=20)
            self.committed(pipeline, began, ranges, mode="interval", details={"work": work})
            self.tried(pipeline, began)
        for part in range(PARTITIONS):
            self.logs[TopicPartition(topic, part)] = LogBounds(0, days * 900 + 120)

    def site(self) -> Site:
        """Return the pages for everything added so far."""
        ordered = sorted(self.records, key=lambda record: record.staged_at)
        attempts = sorted(self.attempts, key=lambda attempt: attempt.at, reverse=True)
        history = HandHistory(*ordered, logs=self.logs, topic_ids=self.topic_ids)
        return Site(history, attempts, NOW)


def example_site(pipelines: int) -> Site:
    """Return the pages for a number of pipelines, 0 or more."""
    night, hour = Night(), dt.timedelta(hours=1)
    if pipelines > 0:
        night.cursor(FLIGHTS, 14, every=hour / 4, unread=270)
        again = night.records[6]
        night.committed(
            FLIGHTS,
            NOW - dt.timedelta(minutes=8),
            list(again.ranges),
            run_key=f"{again.run_key}#1",
            run_id="manual__reprocess",
            mode="reprocess",
        )
    if pipelines > 1:
        night.daily(DAILY, 9)
    if pipelines > 2:
        night.cursor(BROKEN, 9, every=hour, unread=4_000)
        sentence = (
            "group 'orders.enrich' has 1 live member: stop the consumer, or give the pipeline its own group"
        )
        failure = FailureRecord(3, "GroupNotEmpty", sentence)
        night.tried(BROKEN, NOW - hour / 3, "failed", try_number=3, failure=failure)
    if pipelines > 3:
        failure = FailureRecord(
            2, "BrokersUnavailable", "no broker of kafka-2.example:9093 answers within 30 s"
        )
        night.tried(NEVER, NOW - hour / 6, "up_for_retry", try_number=2, failure=failure)
    if pipelines > 4:
        night.cursor(BROKEN_LEDGER, 7, every=3 * hour, gap=True)
    for number in range(5, pipelines):
        night.cursor(f"team{number:03}.copy", 3, every=hour, unread=number % 3 * 10)
    site = night.site()
    if pipelines > 3:
        began = int((NOW - dt.timedelta(seconds=190)).timestamp() * 1000)
        sink = frozenset(TopicPartition("settled", part) for part in range(3))
        status = TransactionDescription(TransactionState.ONGOING, 4100, 2, sink, began, 300_000)
        site.history.open_now = {keys.cursor_transactional_id(PREFIX, NEVER): status}
    return site
