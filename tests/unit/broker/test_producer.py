"""The producer's instance is polled as long as it lives, and lives no longer than it is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from airflow_eos.broker import producer as producer_module
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.wire.client_config import ClientConfig


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statistics that were served, as they come."""
    served: list[str] = []
    monkeypatch.setattr(
        producer_module._Events, "statistics", lambda _events, document: served.append(document)
    )
    return served


@pytest.fixture
def producer(statistics: list[str]) -> Iterator[TransactionalProducer]:
    """A producer that never finds its broker."""
    made = TransactionalProducer(
        ClientConfig.of({"bootstrap.servers": "127.0.0.1:1"}),
        "eos.g",
        transaction_timeout=60.0,
        delivery_timeout=30.0,
    )
    yield made
    made.close()


def test_a_closed_producer_is_no_longer_served(producer: TransactionalProducer) -> None:
    """Also after calls that came back: nothing refers to the instance any more."""
    assert producer.call("a call", lambda _, timeout: timeout, 5.0) == 5.0
    producer.close()
    assert not producer._thread.is_alive()


def test_an_instance_is_served_until_a_call_that_was_given_up_returns(
    producer: TransactionalProducer, statistics: list[str]
) -> None:
    """The call keeps the instance alive, and its statistics would pile up."""
    returns = threading.Event()
    with pytest.raises(BrokersUnavailable, match="did not come back"):
        producer.call("a call", lambda _, __: returns.wait(), 0.1, grace=0.1)
    producer.close()
    seen, deadline = len(statistics), time.monotonic() + 30
    while len(statistics) < seen + 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(statistics) >= seen + 10
    returns.set()
    producer._thread.join(30)
    assert not producer._thread.is_alive()
