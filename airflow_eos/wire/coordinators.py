"""Sends requests to a transaction or group coordinator, and looks it up again when it has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

from airflow_eos.wire.error_codes import Fatal, reaction
from airflow_eos.wire.retry import NotYet, is_transient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from airflow_eos.wire.connection import BrokerConnections
    from airflow_eos.wire.error_codes import Reaction

T = TypeVar("T")
CoordinatorKind = Literal["transaction", "group"]


async def at_coordinator(
    connections: BrokerConnections,
    kind: CoordinatorKind,
    key: str,
    attempt: Callable[[int], Awaitable[T]],
    subject: str,
    timeout: float,
) -> T:
    """Run ``attempt(node)`` at the coordinator until it returns; looks it up again after connection errors.

    :param key: transactional id or group.
    :param subject: names the request in errors.
    :param timeout: seconds, including all retries.
    """

    async def once() -> T:
        node = await connections.coordinator_async(kind, key, timeout=timeout)
        try:
            return await attempt(node)
        except Exception as error:
            if is_transient(error):
                connections.forget_coordinator(kind, key)
            raise

    return await connections.retry_async(once, subject=subject, timeout=timeout)


def refuse(
    connections: BrokerConnections,
    kind: CoordinatorKind,
    key: str,
    table: Mapping[int, Reaction],
    code: int,
    subject: str,
) -> NoReturn:
    """Raise the table's error for a coordinator's error code, or :class:`NotYet` if the code is retriable.

    :param table: one of :mod:`airflow_eos.wire.error_codes`.
    :param code: not 0.
    """
    decision = reaction(table, code)
    if isinstance(decision, Fatal):
        raise decision.error(f"{subject}: {decision.meaning}")
    if decision.refresh:
        connections.forget_coordinator(kind, key)
    raise NotYet(f"{subject}: {decision.meaning}")
