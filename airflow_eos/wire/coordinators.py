"""Requests to a coordinator: found, asked, and found anew when it has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from airflow_eos.wire.failures import is_transient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_eos.wire.connection import BrokerConnections

T = TypeVar("T")
CoordinatorKind = Literal["transaction", "group"]


async def at_coordinator(
    connections: BrokerConnections,
    kind: CoordinatorKind,
    key: str,
    attempt: Callable[[int], Awaitable[T]],
    what: str,
    timeout: float,
) -> T:
    """Run ``attempt(node)`` at the coordinator until it returns; a connection error looks for it anew.

    :param key: transactional id or group.
    :param what: names the request in errors.
    :param timeout: seconds, with all retries.
    """

    async def once() -> T:
        node = await connections.coordinator_async(kind, key, timeout=timeout)
        try:
            return await attempt(node)
        except Exception as error:
            if is_transient(error):
                connections.forget_coordinator(kind, key)
            raise

    return await connections.retry_async(once, what=what, timeout=timeout)
