"""Asks confluent-kafka's admin client until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker.failures import attempt, explained
from airflow_eos.wire.backoff import Backoff

T = TypeVar("T")


def ask(doing: str, call: Callable[[float], T], *, timeout: float) -> T:
    """Call the admin client until it answers.

    :param doing: names the request in errors.
    :param call: gets the seconds left, returns the answer or raises ``KafkaException``.
    :raises EosError: for errors that no retry can help, and for the last one after ``timeout`` seconds.
    """
    backoff = Backoff(timeout)
    while True:
        result, error = attempt(lambda: call(max(backoff.left, 1.0)))
        if error is None:
            return result  # type: ignore[return-value]
        if not _may_pass(error) or backoff.expired:
            raise explained(error, doing) from KafkaException(error)
        time.sleep(backoff.next_pause())


def _may_pass(error: KafkaError) -> bool:
    return error.retriable() or error.code() in (
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    )
