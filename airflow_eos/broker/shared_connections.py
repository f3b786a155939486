"""Shared connections of the wire layer: opened at first use, used by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_eos.closeable import Closeable
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections

Parameters = ParamSpec("Parameters")
T = TypeVar("T")

BOOTSTRAP_TIMEOUT = 60.0
"""Seconds to wait for the first answer of a broker."""


class Link(Closeable):
    """One :class:`~airflow_eos.wire.connection.BrokerConnections` for all parts of the control plane.

    A lock serialises threads. Do not use it in signal handlers: one that interrupts a request would deadlock.

    :param config: client configuration in librdkafka's names.
    """

    def __init__(self, config: ClientConfig | Mapping[str, Any]) -> None:
        self.config = ClientConfig.of(config)
        self._lock = threading.Lock()
        self._connections: BrokerConnections | None = None

    @contextmanager
    def connections(self) -> Iterator[BrokerConnections]:
        """Give this thread exclusive use of the connections.

        :raises BrokersUnavailable: no broker answers at the first use.
        :raises ConfigurationError: the brokers refuse the credentials.
        """
        with self._lock:
            if self._connections is None:
                self._connections = BrokerConnections(self.config, bootstrap_timeout=BOOTSTRAP_TIMEOUT)
            yield self._connections

    def ask(
        self,
        question: Callable[Concatenate[BrokerConnections, Parameters], T],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> T:
        """Return what a function of the connections does; raises as it does, and as :meth:`connections`."""
        with self.connections() as connections:
            return question(connections, *arguments, **named)

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()


class LinkUser(Closeable):
    """Base class for users of a :class:`Link`, either shared or owned; an owned link is closed with it.

    :param config: client configuration in librdkafka's names.
    :param link: connections to share; opens its own by default.
    """

    def __init__(self, config: ClientConfig | Mapping[str, Any], *, link: Link | None = None) -> None:
        self._owns_link = link is None
        self._link = link or Link(config)
        self._config = self._link.config

    def close(self) -> None:
        """Close the connections, unless they are shared."""
        if self._owns_link:
            self._link.close()
