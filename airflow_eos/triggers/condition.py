"""The base of triggers, and of conditions that a trigger polls in the triggerer, or a sensor in its task."""

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
"""Questions in a row that may fail for a reason that may pass: a connection that cannot be read now, or whose
credentials, with which the sensor has asked before, were just changed."""


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
    """Ask until there is an answer, then fire one event; the first question comes after ``poll_interval``.

    The event is ``{"answer": {...}}``, or ``{"error": <class of airflow_eos.exceptions>, "message": ...}`` if
    the question cannot be answered. Unreachable brokers are asked again; a few times in a row also those that
    refuse the credentials, and what failed outside this package (Airflow's API server, its database).
    Blocking calls run in a thread.
    Airflow's database gets the name of the connection, not its contents.

    :param kafka_config_id: connection of type ``kafka``.
    :param poll_interval: seconds between two questions.
    """

    kafka_config_id: str = "kafka_default"
    poll_interval: float = 60.0

    def ask(self, kafka: Mapping[str, Any]) -> dict[str, Any] | None:
        """Ask once; None: not yet. Blocks.

        :param kafka: client configuration.
        :raises EosError: the question cannot be answered.
        """
        raise NotImplementedError

    def poll(self) -> dict[str, Any] | None:
        """Read the connection and ask once; None: not yet, or no broker answered. Blocks.

        :raises EosError: the question cannot be answered.
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
            # The sensor has just asked. And Airflow 3.3 can fail the try if an event comes before the
            # scheduler has seen the end of the process that deferred (apache/airflow#67287, #72716).
            await asyncio.sleep(self.poll_interval)
            try:
                answer = await to_thread(f"kafka {self.kafka_config_id}", self.poll)
                failures = 0
            except Exception as error:
                failures += 1
                may_pass = isinstance(error, CredentialsRefused) or not isinstance(error, EosError)
                if may_pass and failures < MAX_FAILURES:
                    log.warning("Question %d of %d failed: %r", failures, MAX_FAILURES, error)
                    answer = None
                elif isinstance(error, EosError):
                    yield TriggerEvent({"error": type(error).__name__, "message": str(error)})
                    return
                else:
                    raise
            if answer is not None:
                yield TriggerEvent({"answer": answer})
                return
