"""Shared connections of the wire layer: opened at first use, used by one thread at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_eos.closeable import Closeable
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.node_connections import BOOTSTRAP_TIMEOUT

Parameters = ParamSpec("Parameters")
T = TypeVar("T")


class Link(Closeable):
    """One :class:`~airflow_eos.wire.connection.BrokerConnections` for all parts of the control plane.

    A lock serialises threads. Do not use it in signal handlers: one that interrupts a request would fail.

    :param config: client configuration in librdkafka's names.
    :ivar cluster_id: None before the first use, or if the brokers do not report it.
    """

    def __init__(self, config: ClientConfig | Mapping[str, Any]) -> None:
        self.config = ClientConfig.of(config)
        # Reentrant: a time-out of the task may leave it taken, and this thread closes the connections.
        self._lock = threading.RLock()
        self._connections: BrokerConnections | None = None
        self.cluster_id: str | None = None

    @contextmanager
    def connections(self) -> Iterator[BrokerConnections]:
        """Give this thread exclusive use of the connections.

        :raises BrokersUnavailable: no broker answers at the first use.
        :raises ConfigurationError: the brokers refuse the credentials.
        """
        with self._lock:
            if self._connections is None:
                self._connections = BrokerConnections(self.config, bootstrap_timeout=BOOTSTRAP_TIMEOUT)
                self.cluster_id = self._connections.cluster_id
            yield self._connections

    def ask(
        self,
        question: Callable[Concatenate[BrokerConnections, Parameters], T],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> T:
        """Call a function with the connections; returns and raises as it does, or as :meth:`connections`."""
        with self.connections() as connections:
            return question(connections, *arguments, **named)

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()


def through_link(
    question: Callable[Concatenate[BrokerConnections, Parameters], T],
) -> Callable[Concatenate[Any, Parameters], T]:
    """Turn a function whose first argument is the connections into a method of a class with a ``link``."""

    @functools.wraps(question)
    def method(user: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> T:
        link: Link = user.link
        return link.ask(question, *arguments, **named)

    return method
