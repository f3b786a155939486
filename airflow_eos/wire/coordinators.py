"""Sends requests to a transaction or group coordinator, and looks it up again when it has moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeVar

from airflow_eos.wire.backoff import NotYet, describe, is_transient
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.error_codes import Fatal, Reaction, reaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The coordinator of a transactional id or a group, which is its key."""

    connections: BrokerConnections
    kind: Literal["transaction", "group"]
    key: str

    def ask(self, attempt: Callable[[int], Awaitable[T]], subject: str, timeout: float) -> T:
        """Run ``attempt(node)`` until it returns; looks the coordinator up again after connection errors.

        :param subject: names the request in errors.
        :param timeout: seconds, including all retries.
        :raises BrokersUnavailable: after ``timeout`` seconds, with the last answer.
        """

        async def once() -> T:
            node = await self.connections.coordinator_async(self.kind, self.key, timeout=timeout)
            try:
                return await attempt(node)
            except Exception as error:
                if not is_transient(error):
                    raise
                self.connections.forget_coordinator(self.kind, self.key)
                raise NotYet(f"its coordinator, broker {node}: {describe(error)}") from error

        return self.connections.run(self.connections.retry_async(once, subject=subject, timeout=timeout))

    def check(self, table: Mapping[int, Reaction], code: int, subject: str) -> None:
        """Do nothing for code 0; for another one see :meth:`refuse`."""
        if code:
            self.refuse(table, code, subject)

    def refuse(self, table: Mapping[int, Reaction], code: int, subject: str) -> NoReturn:
        """Raise the table's error for an error code, or :class:`NotYet` if the code is retriable.

        :param table: one of :mod:`airflow_eos.wire.error_codes`.
        :param code: not 0.
        """
        decision = reaction(table, code)
        if isinstance(decision, Fatal):
            raise decision.error(f"{subject}: {decision.meaning}")
        if decision.refresh:
            self.connections.forget_coordinator(self.kind, self.key)
        raise NotYet(f"{subject}: {decision.meaning}")
