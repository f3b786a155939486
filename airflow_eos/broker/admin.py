"""confluent-kafka's admin client, asked until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from airflow_eos.broker.clients import QuietLog, Refusals, base_settings
from airflow_eos.broker.librdkafka import attempt, explained
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.retry import Backoff

T = TypeVar("T")

_SLICE_SECONDS = 10.0

_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the broker that was asked has left the cluster
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)


class Admin:
    """An admin client that retries what may pass, and ends at once where credentials are refused.

    It connects in the background, at the first question.

    :param config: client configuration in librdkafka's names.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._settings = base_settings(config)
        self.client: Any = self._new_client()

    def _new_client(self) -> Any:
        # What a client was told before says nothing about the next one.
        self._refusals = Refusals()
        return AdminClient({**self._settings, "error_cb": self._refusals.take}, logger=QuietLog())

    def ask(self, doing: str, question: Callable[[float], T], *, timeout: float) -> T:
        """Ask until there is an answer.

        :param doing: names the request in errors.
        :param question: gets the seconds it may take; asks :attr:`client`, which is another one after a
            time-out; returns the answer or raises ``KafkaException``.
        :param timeout: seconds, with all retries.
        :raises ConfigurationError: when the brokers refuse the credentials.
        :raises EosError: for errors that no retry can help, and for the last one after ``timeout`` seconds.
        """
        backoff = Backoff(timeout)
        while True:
            # In slices: librdkafka would try refused credentials until the end.
            left = min(max(backoff.left, 1.0), _SLICE_SECONDS)
            result, error = attempt(lambda left=left: question(left))  # type: ignore[misc]
            # Events are heard in any case: those before an answer must not count after it.
            refusal = self.refusal()
            if error is None:
                self._refusals.forget()
                return result  # type: ignore[return-value]
            error = refusal or error
            if not (error.retriable() or error.code() in _PASSING) or backoff.expired:
                raise explained(error, doing) from KafkaException(error)
            if error.code() == KafkaError._TIMED_OUT:  # noqa: SLF001
                # librdkafka waits for the controller it has heard of first, dead or not, and asks nobody for
                # another: a new client does.
                self.client = self._new_client()
            time.sleep(backoff.next_pause())

    def refusal(self) -> KafkaError | None:
        """Return the reason for which brokers refuse this client, as far as it has heard of one."""
        attempt(lambda: self.client.poll(0))
        return self._refusals.last
