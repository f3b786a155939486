"""Requests to brokers by node id, over connections that one thread drives.

kafka-python's ``kafka.net`` provides sockets, TLS, SASL and request schemas on its own event loop; this class
drives that loop and translates kafka-python's exceptions into this package's.
:class:`airflow_eos.wire.connection.BrokerConnections` chooses the node.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.future import Future

from airflow_eos.closeable import Closeable
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError, EnvironmentMismatch
from airflow_eos.wire.backoff import THROTTLED, TRANSIENT, Backoff, NotYet, describe, translated
from airflow_eos.wire.client_config import CLUSTER_SETTING, ClientConfig
from airflow_eos.wire.kafka_python_config import for_kafka_python
from airflow_eos.wire.login_log import quiet_logging
from airflow_eos.wire.transport import DEFAULTS, EventLoop, Manager

log = logging.getLogger(__name__)
T = TypeVar("T")

BOOTSTRAP_TIMEOUT = 60.0
"""Seconds to wait for an answer of a bootstrap server."""
ANSWER_TIMEOUT = 12.0
"""Seconds to wait for an answer without records: a frozen broker loses its roles after 9 s."""


_THROTTLED = "throttle"
"""kafka-python's reason for pausing a connection whose broker has requested a delay (KIP-219)."""
_FIRST_SLICE_MS = 500.0
"""Time limit of the first attempt to find a broker; each further attempt may take twice as long."""


class NodeConnections(Closeable):
    """Open connections to a cluster; a context manager.

    :param config: client configuration in librdkafka's names.
    :param bootstrap_timeout: seconds to wait for an answer of a bootstrap server.
    :ivar cluster_id: None if the brokers do not report it.
    :ivar request_timeout: seconds to wait for an answer to Fetch or Produce.
    :ivar answer_timeout: seconds to wait for other answers.
    :ivar throttled: whether a broker has throttled this client because of a quota.
    :ivar patience: upper bound of the seconds for which a request is retried.
    :raises BrokersUnavailable: none answered; the message names the servers and the last error.
    :raises ConfigurationError: a setting cannot be used, or the broker refused the credentials.
    :raises EnvironmentMismatch: the servers are of another cluster than ``eos.cluster.id``.
    """

    def __init__(
        self, config: ClientConfig | Mapping[str, Any], *, bootstrap_timeout: float = BOOTSTRAP_TIMEOUT
    ) -> None:
        self.config = ClientConfig.of(config)
        quiet_logging()
        settings = {**DEFAULTS, **for_kafka_python(self.config)}
        self.request_timeout: float = settings["request_timeout_ms"] / 1000
        self.answer_timeout = self.request_timeout if "socket.timeout.ms" in self.config else ANSWER_TIMEOUT
        self.patience = math.inf
        self.cluster_id: str | None = None
        self._suspects: dict[Any, float] = {}
        self.throttled = False
        self._held: dict[Any, deque[Any]] = {}  # requests that wait for the end of throttling, by connection
        # Callers decode between two turns of the loop, so warnings about slow tasks would be noise.
        self._net = EventLoop(client_id=settings["client_id"], slow_task_threshold_secs=0)
        self._manager = Manager(self._net, **settings)
        try:
            self._bootstrap(bootstrap_timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections; idempotent."""
        if self._manager.closed:
            return
        self._manager.close()
        self._net.close()

    # -- the loop -----------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on kafka-python's loop until it completes."""
        return self._net.run(coroutine)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Future:
        """Schedule a coroutine on the loop; the future holds its result or exception."""
        return self._net.call_soon_with_future(coroutine)

    def hang_up(self, node: Any) -> None:
        """Close the connection to a broker without flushing unsent bytes; its pending requests fail."""
        self._manager.abort(node)

    def wait(self, future: Future) -> Any:
        """Run the loop until a future is complete; return its result or raise its exception."""
        self._net.poll(future=future)
        if future.exception is not None:
            raise future.exception
        return future.value

    def pump(self, turns: int = 1) -> None:
        """Run turns of the loop without blocking; call it between steps of synchronous work."""
        for _ in range(turns):
            self._net.poll(timeout_ms=0)

    async def pause(self, seconds: float) -> None:
        """Sleep while other coroutines run."""
        await self._net.sleep(seconds)

    def wake_later(self, seconds: float, future: Future) -> Callable[[], None]:
        """Complete ``future`` after a delay, unless it is complete; the returned function cancels it."""

        def wake() -> None:
            if not future.is_done:
                future.success(None)

        timer = self._net.call_later(seconds, wake)
        return lambda: self._net.cancel(timer)

    # -- requests -----------------------------------------------------------------------------------------

    def send(self, request: Any, node: Any, *, timeout: float | None = None) -> Future:
        """Send a request and return the future of its answer; failures are set on the future, never raised.

        :param timeout: seconds, by default ``answer_timeout``; when it expires, the connection closes and all
            its requests fail.
        """
        try:
            milliseconds = int((self.answer_timeout if timeout is None else timeout) * 1000)
            connection = self._manager._conns.get(node)  # noqa: SLF001
            if connection is not None and (_THROTTLED in connection.paused or connection in self._held):
                self._held.setdefault(connection, deque()).append(request)
                future = self.spawn(self._throttled(connection, request, milliseconds))
            else:
                future = self._manager.send(request, node, request_timeout_ms=milliseconds)
            # Sent when the connection is ready: a request that cannot be encoded then closes the connection,
            # which fails all other requests.
            connection = self._manager._conns.get(node)  # noqa: SLF001
            if connection is not None and connection.initializing:
                connection.close_future.add_errback(
                    lambda error: None if future.is_done else future.failure(error)
                )
        except Exception as error:  # noqa: BLE001 - callers handle failures in one place, on the future
            future = Future().failure(error)
        future.add_errback(lambda _: self._suspects.__setitem__(node, time.monotonic()))
        future.add_callback(lambda _: self._suspects.pop(node, None))
        return future

    async def _throttled(self, connection: Any, request: Any, milliseconds: int) -> Any:
        """Send a request, on this connection only, once its broker no longer throttles this client.

        A failure would make the sender look up leader or coordinator, which is throttled, too. Requests keep
        their order: brokers refuse a batch that arrives before an earlier one.
        """
        if not self.throttled:
            self.throttled = True
            log.warning(THROTTLED)
        deadline, held = time.monotonic() + milliseconds / 1000, self._held[connection]
        while held[0] is not request or (
            _THROTTLED in connection.paused and connection._throttle_time < deadline  # noqa: SLF001
        ):
            await self.pause(max(connection._throttle_time - time.monotonic(), 0.001))  # noqa: SLF001
        held.popleft()
        if not held:
            del self._held[connection]
        return await connection.send_request(request, request_timeout_ms=milliseconds)

    async def ask_any_async(self, request: Any) -> Any:
        """Try one broker after the other until one answers the request; return the answer.

        :raises NotYet: no broker is known.
        """
        last: Exception = NotYet("no broker is known")
        for node in self._candidates():
            try:
                return await self.send(request, node)
            except TRANSIENT as error:  # noqa: PERF203 - rare
                last = error
        raise last

    def _candidates(self) -> list[Any]:
        """Return all nodes; nodes that failed recently come last, the least recent failure first.

        Bootstrap servers come third: the known brokers may all have changed their addresses.
        """
        cluster = self._manager.cluster
        nodes = [broker.node_id for broker in cluster.brokers()]
        random.shuffle(nodes)
        nodes[2:2] = [broker.node_id for broker in cluster.bootstrap_brokers()]
        return sorted(nodes, key=lambda node: self._suspects.get(node, 0.0))

    async def retry_async(self, attempt: Callable[[], Awaitable[T]], *, subject: str, timeout: float) -> T:
        """Await ``attempt()`` until it returns.

        Retries after :class:`NotYet` and connection errors; other exceptions propagate.

        :param subject: names the request in the error.
        :raises BrokersUnavailable: after ``timeout`` seconds, with the last reason.
        """
        timeout = min(self.patience, timeout)
        backoff = Backoff(timeout)
        while True:
            try:
                return await attempt()
            except (NotYet, *TRANSIENT) as error:
                last: Exception = error
            except kafka_errors.KafkaError as error:
                raise translated(error, subject) from error
            if backoff.expired:
                raise BrokersUnavailable(
                    f"{subject}: no answer from {self._servers} within {timeout:.0f} s; "
                    f"last: {describe(last)}"
                ) from last
            backoff.tell(subject, last)
            await self.pause(backoff.next_pause())

    # -- begin --------------------------------------------------------------------------------------------

    @property
    def _servers(self) -> str:
        return ",".join(self.config.bootstrap_servers)

    def _bootstrap(self, timeout: float) -> None:
        """Find a broker, in growing slices of time, because kafka-python's own timeout gives no reason."""
        backoff = Backoff(timeout)
        slice_ms = _FIRST_SLICE_MS
        while True:
            try:
                self._manager.bootstrap(timeout_ms=min(slice_ms, backoff.left * 1000))
            except kafka_errors.KafkaTimeoutError:
                reason = self._bootstrap_error(min(slice_ms, 5000.0))
                backoff.tell(f"connecting to {self._servers}", reason or NotYet("too slow"))
                if reason is None and not backoff.expired:
                    continue
            except kafka_errors.KafkaError as error:
                raise translated(error, f"connecting to {self._servers}") from error
            else:
                self.cluster_id = self._manager.cluster.cluster_id
                expected = self.config.get(CLUSTER_SETTING)
                if None not in (expected, self.cluster_id) and expected != self.cluster_id:
                    raise EnvironmentMismatch(
                        f"the brokers that {socket.gethostname()} reaches at {self._servers} are of cluster "
                        f"{self.cluster_id}, and those that the run's driver reaches of cluster {expected}: "
                        "nothing was read or written there. Give 'bootstrap.servers' names that lead to one "
                        "cluster from every host"
                    )
                return
            if backoff.expired:
                raise BrokersUnavailable(
                    f"no broker answered at {self._servers} within {timeout:.0f} s "
                    f"({describe(reason) if reason else 'too slow'}); check 'bootstrap.servers', "
                    "'security.protocol', that the brokers run, and that they take more connections "
                    "(max.connections.per.ip)"
                ) from reason
            slice_ms *= 2

    def _bootstrap_error(self, timeout_ms: float) -> Exception | None:
        """Connect to one bootstrap server and return its error; None if it answers now.

        :param timeout_ms: milliseconds to wait for it: if it drops packets, another server may answer.
        :raises ConfigurationError: credentials or certificates are wrong, which a retry cannot fix.
        """
        node = random.choice(self._manager.cluster.bootstrap_brokers()).node_id
        self._manager.reset_backoff(node)

        async def probe() -> None:
            await self._manager.get_connection(node, timeout_ms=timeout_ms, refresh_metadata_on_err=False)

        try:
            self.run(probe())
        except Exception as error:
            fatal = translated(error, f"connecting to {self._servers}")
            if isinstance(fatal, ConfigurationError):
                raise fatal from error
            return error
        return None
