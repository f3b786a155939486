"""Base classes of triggers, and of conditions that the triggerer, or a sensor in its task, polls."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_eos.compat import to_thread
from airflow_eos.exceptions import BrokersUnavailable, CredentialsRefused, EosError

log = logging.getLogger(__name__)

MAX_FAILURES = 10
"""Consecutive polls that may fail with a transient error: the connection cannot be read now, or credentials
that worked for the sensor were just changed."""


class SerializedTrigger(BaseTrigger):
    """A trigger that is a dataclass of its parameters: its attributes have their names."""

    def __post_init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, in the order of the parameters; they identify the trigger."""
        kind = type(self)
        names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in names}


@dataclass(kw_only=True, eq=False, repr=False)
class ConditionTrigger(SerializedTrigger):
    """Poll a condition until it holds, then fire one event; the first poll comes after ``poll_interval``.

    The event is ``{"answer": {...}}``, or ``{"error": <class of airflow_eos.exceptions>, "message": ...}`` if
    the poll fails for good. Unreachable brokers are polled again without limit; after refused credentials, or
    errors outside this package (Airflow's API server, its database), it polls again only a few times in a
    row. Blocking calls run in a thread.
    Airflow's database gets the name of the connection, not its contents.

    :param kafka_config_id: connection of type ``kafka``.
    :param poll_interval: seconds between two polls.
    """

    kafka_config_id: str = "kafka_default"
    poll_interval: float = 60.0

    def ask(self, kafka: Mapping[str, Any]) -> dict[str, Any] | None:
        """Evaluate the condition once; None if it does not hold yet. Blocks.

        :param kafka: client configuration.
        :raises EosError: the condition cannot be evaluated.
        """
        raise NotImplementedError

    def poll(self) -> dict[str, Any] | None:
        """Read the connection and call :meth:`ask`; None if it returned None or no broker answered. Blocks.

        :raises EosError: the condition cannot be evaluated.
        """
        from airflow_eos.hooks.kafka_eos import KafkaEosHook

        try:
            return self.ask(KafkaEosHook(self.kafka_config_id).get_config())
        except BrokersUnavailable as error:
            log.warning(
                "Kafka connection %r; asking again in %.0f s: %s",
                self.kafka_config_id,
                self.poll_interval,
                error,
            )
            return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the condition holds.

        :raises Exception: an error that occurred ``MAX_FAILURES`` times in a row; it fails the task.
        """
        failures = 0
        while True:
            # The sensor has just polled. And Airflow 3.3 can fail the try if an event comes before the
            # scheduler has seen the end of the process that deferred (apache/airflow#67287, #72716).
            await asyncio.sleep(self.poll_interval)
            try:
                answer = await to_thread(f"kafka {self.kafka_config_id}", self.poll)
                failures = 0
            except Exception as error:
                failures += 1
                may_pass = isinstance(error, CredentialsRefused) or not isinstance(error, EosError)
                if may_pass and failures < MAX_FAILURES:
                    log.warning("Failed poll %d of %d: %r", failures, MAX_FAILURES, error)
                    answer = None
                elif isinstance(error, EosError):
                    yield TriggerEvent({"error": type(error).__name__, "message": str(error)})
                    return
                else:
                    raise
            if answer is not None:
                yield TriggerEvent({"answer": answer})
                return
