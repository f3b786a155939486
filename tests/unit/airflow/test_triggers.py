"""Conditions in the triggerer: what is stored, asked and fired."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from airflow.models.trigger import Trigger

from airflow_eos.engine.lag import Unread
from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, CredentialsRefused, LedgerMissing
from airflow_eos.ledger.keys import cursor_run_key
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.triggers.condition import MAX_FAILURES, ConditionTrigger
from airflow_eos.triggers.kafka_data_interval import KafkaDataIntervalTrigger
from airflow_eos.triggers.kafka_lag import KafkaLagTrigger
from airflow_eos.triggers.offset_range import OffsetRangeTrigger
from airflow_eos.triggers.run_committed import RunCommittedTrigger
from airflow_eos.triggers.spark_driver import SparkDriverTrigger
from tests.unit.airflow.fakes import a_record

LAG = KafkaLagTrigger(
    topics=["src"],
    group_id="g",
    min_records=10,
    any_after="2026-11-20T00:00:00+00:00",
    ledger_topic="l",
    poll_interval=0.01,
)
INTERVAL = KafkaDataIntervalTrigger(
    topics=["src"],
    start="2026-11-20T00:00:00+00:00",
    end="2026-11-21T00:00:00+00:00",
    allowed_lateness=0,
    ledger_topic="l",
)
COMMITTED = RunCommittedTrigger(
    pipeline="p",
    run_key=cursor_run_key("p", "r"),
    ledger_topic="airflow-eos-ledger",
    prefix="airflow-eos",
    work={"topics": ["src"]},
)
BATCHES = OffsetRangeTrigger(topics=["src"], group_id="g", min_records=5, max_delay=60.0, max_records=100)
DRIVER = SparkDriverTrigger(backend="standalone", driver_id="driver-1", conn_id="spark")
EVERY = [LAG, INTERVAL, COMMITTED, BATCHES, DRIVER]


@pytest.mark.parametrize("trigger", EVERY, ids=lambda trigger: type(trigger).__name__)
def test_trigger_survives_the_database_and_holds_no_secret(trigger: Any) -> None:
    """Airflow's stored form creates the same trigger again, and has only the connection's id."""
    path, kwargs = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    stored = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs))
    assert type(trigger)(**stored).serialize() == (path, kwargs)
    assert set(json.loads(json.dumps(kwargs))) == set(kwargs)
    assert "hunter2" not in repr(trigger) + json.dumps(kwargs)


class Scripted(ConditionTrigger):
    """Answers from a script; exceptions are raised."""

    def __init__(self, *script: Any) -> None:
        super().__init__(poll_interval=0.01)
        self.script = list(script)
        self.configs: list[Any] = []

    def ask(self, kafka: Any) -> dict[str, Any] | None:
        self.configs.append(kafka)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


async def events_of(trigger: Any, limit: int = 10) -> list[Any]:
    payloads = []
    async for event in trigger.run():
        payloads.append(event.payload)
        if len(payloads) == limit:
            break
    return payloads


def test_condition_is_asked_until_it_holds_and_fires_once() -> None:
    """Nothing yet, brokers down, then the answer: one event; the connection's settings are read each time."""
    trigger = Scripted(None, BrokersUnavailable("no broker"), None, {"lag": 5})
    assert asyncio.run(events_of(trigger)) == [{"answer": {"lag": 5}}]
    assert [kafka["bootstrap.servers"] for kafka in trigger.configs] == ["broker:9092"] * 4


def test_triggerer_asks_an_interval_after_the_sensor() -> None:
    """The sensor has just asked; an immediate answer could overtake the end of the deferring process."""
    trigger = Scripted({"lag": 5})
    trigger.poll_interval = 3600.0

    async def scenario() -> None:
        waiting = asyncio.create_task(events_of(trigger))
        await asyncio.sleep(0.1)
        waiting.cancel()

    asyncio.run(scenario())
    assert trigger.configs == []


def test_a_cluster_that_hangs_stops_no_other_trigger() -> None:
    """Not even one of another package, which has the event loop's own threads: at most 32."""
    goes_on = threading.Event()

    class Hanging(Scripted):
        def poll(self) -> dict[str, Any] | None:
            return {"went on": goes_on.wait(60)}

    async def others() -> list[Any]:
        answered = await events_of(Scripted({"lag": 5}))
        return [*answered, await asyncio.get_running_loop().run_in_executor(None, goes_on.is_set)]

    async def scenario() -> list[Any]:
        hanging = [Hanging() for _ in range(40)]
        for trigger in hanging:
            trigger.kafka_config_id = "hangs"
        waiting = asyncio.gather(*map(events_of, hanging))  # they ask before the others
        try:
            return await asyncio.wait_for(others(), 10)
        finally:
            goes_on.set()
            await waiting

    assert asyncio.run(scenario()) == [{"answer": {"lag": 5}}, False]


def test_question_that_cannot_be_answered_ends_the_trigger_with_its_reason() -> None:
    """The sensor gets the class of the error, and decides whether to retry."""
    trigger = Scripted(None, AuthorizationFailed("no Describe on group g"))
    assert asyncio.run(events_of(trigger)) == [
        {
            "error": "AuthorizationFailed",
            "message": "no Describe on group g (docs/errors.md#authorizationfailed)",
        }
    ]


def test_failures_outside_the_question_are_asked_again_a_few_times() -> None:
    """A connection that cannot be read now may be readable later; ten failures in a row fail the task."""
    failures = [RuntimeError("API server is busy")] * (MAX_FAILURES - 1)
    trigger = Scripted(*failures, None, *failures, {"lag": 5})
    assert asyncio.run(events_of(trigger)) == [{"answer": {"lag": 5}}]
    with pytest.raises(RuntimeError, match="busy"):
        asyncio.run(events_of(Scripted(*failures, RuntimeError("API server is busy"), {"lag": 5})))


def test_credentials_that_were_changed_are_read_by_the_next_question() -> None:
    """The sensor worked with the old ones before it was deferred."""
    failures = [CredentialsRefused("the broker refused the credentials")] * (MAX_FAILURES - 1)
    assert asyncio.run(events_of(Scripted(*failures, {"lag": 5}))) == [{"answer": {"lag": 5}}]
    (event,) = asyncio.run(events_of(Scripted(*failures, *failures)))
    assert event["error"] == "CredentialsRefused"


def test_triggerer_is_not_blocked_while_brokers_are_asked() -> None:
    """Other triggers of the process run while a condition waits for its answer."""

    entered, went_on = threading.Event(), threading.Event()
    others_ran: list[bool] = []

    class Slow(Scripted):
        def ask(self, kafka: Any) -> dict[str, Any] | None:
            entered.set()
            others_ran.append(went_on.wait(60))
            return super().ask(kafka)

    async def both() -> None:
        asking = asyncio.create_task(events_of(Slow({"done": True})))
        while not entered.is_set():  # noqa: ASYNC110 - set by the trigger's thread
            await asyncio.sleep(0.01)
        went_on.set()
        await asking

    asyncio.run(both())
    assert others_ran == [True]


def lag(*spans: tuple[int, int]) -> Unread:
    return Unread(tuple(OffsetRange("src", n, *span) for n, span in enumerate(spans)), {"src": "id"})


@pytest.mark.parametrize(
    ("any_after", "unread", "fires"),
    [
        (None, lag((0, 5), (3, 7)), False),
        (None, lag((0, 5), (3, 8)), True),
        ("2026-11-20T00:00:00+00:00", lag((0, 0), (7, 8)), True),
        ("2026-11-20T00:00:00+00:00", lag((0, 0), (7, 7)), False),
        ("2126-11-20T00:00:00+00:00", lag((0, 0), (7, 8)), False),
    ],
)
def test_lag_fires_when_there_is_enough_or_anything_late(
    monkeypatch: pytest.MonkeyPatch, any_after: str | None, unread: Unread, fires: bool
) -> None:
    """min_records applies to all partitions together; after the delay one record is enough."""
    monkeypatch.setattr("airflow_eos.engine.lag.unread", lambda *_, **__: unread)
    trigger = KafkaLagTrigger(
        topics=["src"], group_id="g", min_records=10, any_after=any_after, ledger_topic="l"
    )
    answer = trigger.ask({})
    assert (answer is not None) is fires
    if answer is not None:
        ranges = [r.to_list() for r in unread.ranges if r.span]
        assert answer == {"group_id": "g", "lag": unread.offsets, "ranges": ranges}


@pytest.mark.parametrize(("start", "fires"), [("latest", True), ("earliest", False)])
def test_group_that_begins_at_the_end_is_not_waited_for_before_it_has_a_position(
    monkeypatch: pytest.MonkeyPatch, start: Any, fires: bool
) -> None:
    """At its start nothing is unread, however often it is polled: the next run sets its position."""
    nowhere = Unread(lag((7, 7), (3, 5)).ranges, {"src": "id"}, frozenset({TopicPartition("src", 0)}))
    monkeypatch.setattr("airflow_eos.engine.lag.unread", lambda *_, **__: nowhere)
    trigger = KafkaLagTrigger(topics=["src"], group_id="g", min_records=10, start=start, ledger_topic="l")
    answer = {"group_id": "g", "lag": 2, "ranges": [["src", 1, 3, 5]]}
    assert trigger.ask({}) == (answer if fires else None)


def test_interval_fires_when_no_partition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine checks the condition; the trigger passes the sensor's arguments on."""
    calls: list[Any] = []
    answers: list[list[str]] = [["src-0 holds nothing"], []]

    def progress(kafka: Any, topics: Any, interval: Any, *, idle: str, ledger: Any) -> list[str]:
        assert (ledger.topic, interval.accept_deleted) == ("l", False)
        calls.append((topics, interval.end.isoformat(), interval.allowed_lateness.total_seconds(), idle))
        return answers.pop(0)

    monkeypatch.setattr("airflow_eos.engine.lag.interval_waits_for", progress)
    assert INTERVAL.ask({}) is None
    assert INTERVAL.ask({}) == {"start": INTERVAL.start, "end": INTERVAL.end}
    assert calls == [(["src"], "2026-11-21T00:00:00+00:00", 0.0, "allowed_lateness")] * 2


def test_run_is_waited_for_until_the_ledger_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing ledger or record is not an answer; the record's summary is."""
    answers: list[Any] = [LedgerMissing("none"), None, a_record()]

    def record(*_: Any, **named: Any) -> Any:
        assert named == {"pipeline": "p", "run_key": cursor_run_key("p", "r"), "work": {"topics": ["src"]}}
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("airflow_eos.engine.committed.find_committed_by_key", record)
    assert COMMITTED.ask({}) is None
    assert COMMITTED.ask({}) is None
    assert COMMITTED.ask({}) == a_record().summary()
