"""A TCP proxy in front of every broker that loses, delays, cuts or refuses chosen Kafka requests.

::

    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        lost = proxy.lose_response("EndTxn")
        run(proxy.bootstrap_servers)
        assert lost.hits == 1

Clients that start from :attr:`KafkaProxy.bootstrap_servers` stay behind the proxy: broker addresses in
Metadata, FindCoordinator and DescribeCluster answers are replaced by the proxy's own.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.faults.connection import ProxiedConnection
from airflow_eos_testing.faults.rules import FOREVER, Action, ProxyFault, Request
from airflow_eos_testing.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self


class KafkaProxy:
    """See the module. The oldest rule that matches a request is applied to it, and no other.

    Limits: connections without TLS only. Inter-broker connections bypass the proxy.

    :param bootstrap_servers: the real brokers.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._upstream = [_address(server) for server in bootstrap_servers.split(",")]
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, int], socket.socket] = {}
        self._connections: set[ProxiedConnection] = set()
        self._faults: list[ProxyFault] = []
        self._seen: Counter[str] = Counter()
        self._closed = False

    def __repr__(self) -> str:
        return f"KafkaProxy({','.join(f'{host}:{port}' for host, port in self._upstream)})"

    def __enter__(self) -> Self:
        for host, port in self._upstream:
            self.translate(host, port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            listeners, connections = list(self._listeners.values()), list(self._connections)
            faults = list(self._faults)
        for fault in faults:
            fault.cancel()
        for listener in listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            listener.close()
        for connection in connections:
            connection.close()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the proxy's listener for every given broker, comma-separated."""
        places = (self.translate(host, port) for host, port in self._upstream)
        return ",".join(f"{host}:{port}" for host, port in places)

    def client_config(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return client settings with the proxy's addresses in place of the brokers'."""
        return {**config, "bootstrap.servers": self.bootstrap_servers}

    def seen(self, api: str) -> int:
        """Return the number of received requests of an API."""
        return self._seen[_valid_api(api)]

    # -- faults -------------------------------------------------------------------------------------------

    def lose_response(
        self, api: str, times: int | None = 1, *, silent: bool = False, containing: str | None = None
    ) -> ProxyFault:
        """Deliver the request, lose the answer, and cut the client's connection.

        :param silent: leave the connection open instead, and never answer on it again.
        """
        return self._add("silence" if silent else "lose response", api, times, containing=containing)

    def cut(self, api: str, times: int | None = 1, *, containing: str | None = None) -> ProxyFault:
        """Cut the client's connection before the request reaches the broker."""
        return self._add("cut", api, times, containing=containing)

    def delay(
        self,
        api: str,
        seconds: float,
        times: int | None = 1,
        *,
        response: bool = False,
        containing: str | None = None,
    ) -> ProxyFault:
        """Deliver the request, or its response, later, even if the client has disconnected meanwhile.

        Later frames on the same connection wait, too.
        """
        action: Action = "hold response" if response else "hold request"
        return self._add(action, api, times, seconds=seconds, containing=containing)

    def hold(
        self, api: str, times: int | None = 1, *, response: bool = False, containing: str | None = None
    ) -> ProxyFault:
        """Delay as :meth:`delay`, until the handle's ``release()``."""
        return self.delay(api, FOREVER, times, response=response, containing=containing)

    def refuse(
        self, api: str, error_code: int, times: int | None = 1, *, containing: str | None = None
    ) -> ProxyFault:
        """Answer in place of the broker, with an error for every partition; the broker sees nothing.

        :raises ConfigurationError: only Produce requests can be answered.
        """
        if api != "Produce":
            raise ConfigurationError(f"refuse({api!r}): the proxy can answer Produce requests only")
        return self._add("refuse", api, times, error_code=error_code, containing=containing)

    def _add(
        self,
        action: Action,
        api: str,
        times: int | None,
        *,
        seconds: float = 0.0,
        error_code: int = 0,
        containing: str | None = None,
    ) -> ProxyFault:
        fault = ProxyFault(
            action, _valid_api(api), times, seconds=seconds, error_code=error_code, containing=containing
        )
        with self._lock:
            self._faults.append(fault)
        return fault

    # -- the connections' side ----------------------------------------------------------------------------

    def fault_for(self, request: Request) -> ProxyFault | None:
        """Count the request; return the fault to apply to it."""
        with self._lock:
            self._seen[request.api] += 1
            return next((fault for fault in self._faults if fault.takes(request)), None)

    def translate(self, host: str, port: int) -> tuple[str, int]:
        """Return the proxy's address for a broker's; a new broker gets a listener."""
        with self._lock:
            listener = self._listeners.get((host, port))
            if listener is None:
                listener = socket.create_server((HOST, 0))
                self._listeners[host, port] = listener
                threading.Thread(target=self._accept, args=(listener, host, port), daemon=True).start()
            return HOST, int(listener.getsockname()[1])

    @property
    def hosts(self) -> frozenset[bytes]:
        """Host names of the brokers seen so far."""
        with self._lock:
            return frozenset(host.encode() for host, _ in self._listeners)

    def forget(self, connection: ProxiedConnection) -> None:
        """Drop a connection that has ended."""
        with self._lock:
            self._connections.discard(connection)

    def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((host, port), timeout=10)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            connection = ProxiedConnection(self, client, broker, f"{host}:{port}")
            with self._lock:
                closed = self._closed
                self._connections.add(connection)
            if closed:
                connection.close()
            else:
                connection.start()


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"{server!r} in bootstrap_servers is not host:port")
    return host, int(port)


def _valid_api(api: str) -> str:
    from kafka.protocol.api_key import ApiKey

    if api not in ApiKey.__members__:
        raise ConfigurationError(f"{api!r} is not a Kafka API; use one of {', '.join(ApiKey.__members__)}")
    return api
