"""Calls into librdkafka end in time, although librdkafka itself may not."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker.librdkafka import bounded
from airflow_eos.exceptions import BrokersUnavailable, ProducerFenced


class Interrupted(BaseException):
    """Raised by a signal handler, like Airflow's when a task is killed."""


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_result_and_error_pass() -> None:
    """As without the thread; the call gets its time-out."""

    def fenced(_timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    assert bounded("a call", lambda timeout: timeout * 2, 5.0) == 10.0
    with pytest.raises(ProducerFenced, match="a call: "):
        bounded("a call", fenced, 5.0)
    with pytest.raises(ZeroDivisionError):
        bounded("a call", lambda _: 1 // 0, 5.0)


def test_call_that_never_comes_back_is_given_up(never: threading.Event) -> None:
    """The error says so; the caller goes on."""
    begun = time.monotonic()
    with pytest.raises(BrokersUnavailable, match=r"offsets of g: .*did not come back within 1 s"):
        bounded("offsets of g", lambda _: never.wait(), 0.2, grace=0.4)
    assert time.monotonic() - begun >= 0.6


def test_signal_reaches_the_caller_while_it_waits(never: threading.Event) -> None:
    """A kill does not wait until librdkafka returns."""

    def interrupt(_signum: int, _frame: Any) -> None:
        raise Interrupted

    def hang(_timeout: float) -> None:
        # Sent by the call itself, so that it cannot arrive before the caller expects it.
        time.sleep(0.2)
        signal.pthread_kill(caller, signal.SIGUSR1)
        never.wait()

    caller = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            bounded("a call", hang, 60.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
