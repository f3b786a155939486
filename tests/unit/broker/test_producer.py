"""The producer's instance is polled as long as it lives, and lives no longer than it is used."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker import producer as producer_module
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import BrokersUnavailable, DeliveryTimedOut, EosError
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.wire import backoff
from airflow_eos.wire.client_config import ClientConfig
from tests.support.patience import wait_until

NOWHERE = ClientConfig.of({"bootstrap.servers": "127.0.0.1:1"})


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statistics that were delivered, in order."""
    served: list[str] = []
    monkeypatch.setattr(
        producer_module._Events, "statistics", lambda _events, document: served.append(document)
    )
    return served


@pytest.fixture
def producer(statistics: list[str]) -> Iterator[TransactionalProducer]:
    """A producer that never finds its broker."""
    client = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    yield client
    client.close()


class RefusedOnce:
    """An instance that is refused by its first broker; another one answers, slowly."""

    def __init__(self, settings: dict[str, Any], **_: Any) -> None:
        self._settings = settings
        self._calls: Counter[str] = Counter()

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)

    def list_topics(self, *_: Any, **__: Any) -> None:
        self._calls["topics"] += 1
        if self._calls["topics"] == 1:
            self._settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION))
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def init_transactions(self, _timeout: float) -> None:
        self._calls["init"] += 1
        if self._calls["init"] == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
        eos = {"idemp_state": "Assigned", "producer_id": 7, "producer_epoch": 2}
        self._settings["stats_cb"](json.dumps({"eos": eos}))

    def purge(self, **_: Any) -> None:
        pass


def test_a_refusal_is_forgotten_when_a_broker_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later time-out is another problem, and is retried."""
    monkeypatch.setattr(producer_module, "Producer", RefusedOnce)
    client = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    try:
        assert client.initialise(30.0, topic="ledger") == ProducerIdentity("eos.g", 7, 2)
    finally:
        client.close()


class Occupied(RefusedOnce):
    """An instance whose coordinator has not ended the older transaction, and whose last slice is short."""

    def init_transactions(self, timeout: float) -> None:
        self._calls["init"] += 1
        time.sleep(timeout)
        is_first = self._calls["init"] == 1
        code = KafkaError.CONCURRENT_TRANSACTIONS if is_first else KafkaError._TIMED_OUT
        raise KafkaException(KafkaError(code, retriable=True))


def test_a_last_slice_without_an_answer_does_not_hide_the_answer_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time-out would blame unavailable brokers, although the coordinator has said what it waits for."""
    monkeypatch.setattr(producer_module, "Producer", Occupied)
    monkeypatch.setattr(producer_module, "_INIT_SLICE_SECONDS", 0.2)
    client = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    try:
        with pytest.raises(BrokersUnavailable, match=r"within 0 s: .*CONCURRENT_TRANSACTIONS"):
            client.initialise(0.3, topic="ledger")
    finally:
        client.close()


class Unanswered(RefusedOnce):
    """An instance whose records are never acknowledged."""

    def produce(self, *_: Any, **__: Any) -> None:
        pass


def test_records_that_are_not_acknowledged_are_told_before_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger without in-sync replicas: the delivery time-out is two minutes."""
    monkeypatch.setattr(producer_module, "Producer", Unanswered)
    monkeypatch.setattr(producer_module, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(backoff, "SILENT_SECONDS", 0.1)
    clock = itertools.count(100.0, 0.02)  # a host that stands still does not skip the message
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    client = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    try:
        with pytest.raises(DeliveryTimedOut, match="1 of 1 were not acknowledged"):
            client.publish("ledger", [(0, "run", "{}")], 0.5)
    finally:
        client.close()
    assert [text.partition(" (")[0] for text in caplog.messages] == ["records to ledger: still waiting"]


@pytest.mark.parametrize("client_id", ["CORP\\airflow", 'a "quoted" id', "two\nlines", '"eos": {'])
def test_the_producer_id_is_found_behind_any_client_id(client_id: str) -> None:
    """librdkafka does not escape the client id in its statistics."""
    events = producer_module._Events()
    eos = {"idemp_state": "Assigned", "producer_id": 7, "producer_epoch": 2, "epoch_cnt": 0}
    events.statistics(f'{{ "client_id": "{client_id}", "eos": {json.dumps(eos)} }}')
    assert (events.producer_id, events.producer_epoch) == (7, 2)


def test_an_exception_of_a_callback_fails_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end the polling thread."""

    def failing(_events: object, _document: str) -> None:
        raise ValueError("no JSON")

    monkeypatch.setattr(producer_module._Events, "statistics", failing)
    client = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    try:
        assert "no JSON" in wait_until(lambda: client._events.fatal).str()
        assert client._thread.is_alive()
    finally:
        client.close()


def test_a_closed_producer_is_no_longer_served(producer: TransactionalProducer) -> None:
    """Also after a commit that has returned: nothing references the instance any more."""
    with pytest.raises(EosError, match="a commit: "):
        producer.commit("a commit", 5.0)  # refused: no transaction was begun
    producer.close()
    assert not producer._thread.is_alive()


def test_an_instance_is_served_until_a_commit_that_was_given_up_returns(
    monkeypatch: pytest.MonkeyPatch, statistics: list[str]
) -> None:
    """The call keeps the instance alive, and its unread statistics would pile up."""
    returns = threading.Event()

    class Hanging(confluent_kafka.Producer):
        def commit_transaction(self, *_: Any) -> None:
            returns.wait()

    monkeypatch.setattr(producer_module, "Producer", Hanging)
    producer = TransactionalProducer(NOWHERE, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    with pytest.raises(BrokersUnavailable, match="did not come back"):
        producer.commit("a commit", 0.1, grace=0.1)
    producer.close()
    seen, deadline = len(statistics), time.monotonic() + 30
    while len(statistics) < seen + 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(statistics) >= seen + 10
    returns.set()
    producer._thread.join(30)
    assert not producer._thread.is_alive()
