"""Connections to all brokers of a cluster, for one thread.

kafka-python's ``kafka.net`` does sockets, TLS, SASL and request schemas on its own event loop; this class
drives that loop, keeps leaders and coordinators, and turns kafka-python's exceptions into this package's.

::

    with BrokerConnections(config) as connections:          # raises BrokersUnavailable naming the servers
        connections.leaders(["orders"])                      # {TopicPartition("orders", 0): 1, ...}
        connections.topic_ids(["orders"])                    # {"orders": "5Jd..."}
        connections.partition_counts(["orders"])             # {"orders": 1}
        connections.call(request, node)                      # one request, one answer
        connections.run(coroutine)                           # any coroutine of the loop

Coroutines (``*_async``) are for other modules of the wire layer; everything else blocks. Not safe for
threads, not picklable, not to be used after a fork: open it in the task that uses it.
"""

from __future__ import annotations

import base64
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

from airflow_eos.closeable import Closeable
from airflow_eos.exceptions import AuthorizationFailed, BrokersUnavailable, ConfigurationError, UnknownTopic
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.backoff import Backoff
from airflow_eos.wire.client_config import ClientConfig, for_kafka_python
from airflow_eos.wire.failures import TRANSIENT, NotYet, describe, translated
from airflow_eos.wire.manager import DEFAULTS, Manager, quiet_logging

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping


T = TypeVar("T")

METADATA_TIMEOUT = 60.0
"""Seconds to look for a broker that knows a topic, its leaders or a coordinator."""
UNKNOWN_TOPIC_GRACE = 5.0
"""Seconds a topic may be unknown before that is believed: a broker learns of new topics with a delay."""
_METADATA_REQUEST_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """What brokers know of a topic.

    :param topic_id: the UUID of this incarnation, in Kafka's own text form (KIP-516).
    :param leaders: leader's node id per partition; -1 while there is none.
    """

    topic: str
    topic_id: str
    leaders: Mapping[int, int]


class BrokerConnections(Closeable):
    """Open connections to a cluster; a context manager.

    :param config: client configuration in librdkafka's names.
    :param bootstrap_timeout: seconds until some bootstrap server must have answered.
    :raises BrokersUnavailable: when none did; the message names the servers and the last error.
    :raises ConfigurationError: for settings that cannot be used, and for refused credentials.
    """

    def __init__(
        self, config: ClientConfig | Mapping[str, Any], *, bootstrap_timeout: float = METADATA_TIMEOUT
    ) -> None:
        self.config = ClientConfig.of(config)
        quiet_logging()
        settings = {**DEFAULTS, **for_kafka_python(self.config)}
        self.request_timeout: float = settings["request_timeout_ms"] / 1000
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._suspects: dict[Any, float] = {}
        # Decoding between two turns of the loop is no mistake here: no warning about slow tasks.
        self._net = NetworkSelector(client_id=settings["client_id"], slow_task_threshold_secs=0)
        self._manager = Manager(self._net, **settings)
        try:
            self._bootstrap(bootstrap_timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections; harmless when closed."""
        if self._manager.closed:
            return
        self._manager.close()
        self._net.close()

    # -- the loop -----------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of kafka-python's loop to its end."""
        return self._net.run(coroutine)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Future:
        """Let a coroutine run beside others; the future holds its result or exception."""
        return self._net.call_soon_with_future(coroutine)

    def hang_up(self, node: Any) -> None:
        """Cut the connection to a broker; bytes that have not left stay here, its requests fail."""
        self._manager.abort(node)

    def wait(self, future: Future) -> Any:
        """Run the loop until a future is complete; return its result or raise its exception."""
        self._net.poll(future=future)
        if future.exception is not None:
            raise future.exception
        return future.value

    def pump(self, turns: int = 1) -> None:
        """Move bytes that are ready, without waiting: between two steps of work of one's own."""
        for _ in range(turns):
            self._net.poll(timeout_ms=0)

    async def pause(self, seconds: float) -> None:
        """Sleep while other coroutines run."""
        await self._net.sleep(seconds)

    def wake_later(self, seconds: float, future: Future) -> Callable[[], None]:
        """Complete ``future`` after a time, unless it is complete; the returned function cancels that."""

        def wake() -> None:
            if not future.is_done:
                future.success(None)

        timer = self._net.call_later(seconds, wake)
        return lambda: self._net.cancel(timer)

    # -- requests -----------------------------------------------------------------------------------------

    def send(self, request: Any, node: Any, *, timeout: float | None = None) -> Future:
        """Send a request and return the future of its answer; every failure is in the future, none is raised.

        :param timeout: seconds; its end closes the connection with all its requests.
        """
        try:
            future = self._manager.send(
                request, node, request_timeout_ms=None if timeout is None else int(timeout * 1000)
            )
        except Exception as error:  # noqa: BLE001 - one way of failing for the callers
            future = Future().failure(error)
        future.add_errback(lambda _: self._suspects.__setitem__(node, time.monotonic()))
        future.add_callback(lambda _: self._suspects.pop(node, None))
        return future

    async def call_async(self, request: Any, node: Any, *, timeout: float | None = None) -> Any:
        """Send a request and return its answer; kafka-python's exceptions pass."""
        return await self.send(request, node, timeout=timeout)

    def call(self, request: Any, node: Any) -> Any:
        """Send a request, wait, return the answer; no retry."""
        return self.run(self.call_async(request, node))

    async def retry_async(self, attempt: Callable[[], Awaitable[T]], *, what: str, timeout: float) -> T:
        """Await ``attempt()`` until it returns.

        Tries again after :class:`NotYet` and after errors of connections; any other exception ends it.

        :param what: names the request in the error.
        :raises BrokersUnavailable: after ``timeout`` seconds, with the last reason.
        """
        backoff = Backoff(timeout)
        while True:
            try:
                return await attempt()
            except (NotYet, *TRANSIENT) as error:
                last: Exception = error
            except kafka_errors.KafkaError as error:
                raise translated(error, what) from error
            if backoff.expired:
                raise BrokersUnavailable(
                    f"{what}: no answer from {self._servers} within {timeout:.0f} s; last: {describe(last)}"
                ) from last
            await self.pause(backoff.next_pause())

    # -- topics -------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str], *, patient: bool = True) -> dict[str, TopicMetadata]:
        """Ask a broker for topics, now.

        :param patient: ask again for some seconds before a topic is taken for unknown: the broker may be
            behind.
        :raises UnknownTopic: naming the topic.
        :raises AuthorizationFailed: when a topic may not be described.
        """
        return self.run(self.topics_async(names, patient=patient))

    def leaders(self, names: Iterable[str]) -> dict[TopicPartition, int]:
        """Ask for the leader's node id of every partition of these topics, now; -1 where there is none."""
        return {
            TopicPartition(topic.topic, partition): leader
            for topic in self.topics(names).values()
            for partition, leader in topic.leaders.items()
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the id of each topic's present incarnation (KIP-516)."""
        return {name: topic.topic_id for name, topic in self.topics(names).items()}

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        return {name: len(topic.leaders) for name, topic in self.topics(names).items()}

    def refresh(self, names: Iterable[str]) -> bool:
        """Ask for topics once more, quietly: a dead broker or a missing leader is no error here."""
        return self.run(self.refresh_async(names))

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader as last heard, None when unknown: asks nobody."""
        known = self._topics.get(topic)
        node = -1 if known is None else known.leaders.get(partition, -1)
        return None if node == -1 else node

    async def topics_async(
        self, names: Iterable[str], *, timeout: float = METADATA_TIMEOUT, patient: bool = True
    ) -> dict[str, TopicMetadata]:
        """See :meth:`topics`."""
        wanted = sorted(set(names))
        started = time.monotonic()
        grace = min(UNKNOWN_TOPIC_GRACE, timeout / 2) if patient else 0.0

        async def attempt() -> dict[str, TopicMetadata]:
            missing = await self._metadata(wanted)
            if missing and time.monotonic() - started > grace:
                raise UnknownTopic(
                    f"topic {', '.join(map(repr, missing))} does not exist on {self._servers}, or "
                    "this principal may not see it: create it, or correct the name"
                )
            if missing:
                raise NotYet(f"unknown topics {missing}")
            return {name: self._topics[name] for name in wanted}

        return await self.retry_async(attempt, what=f"metadata of {', '.join(wanted)}", timeout=timeout)

    async def refresh_async(self, names: Iterable[str]) -> bool:
        """See :meth:`refresh`."""
        try:
            return not await self._metadata(sorted(set(names)))
        except (kafka_errors.KafkaError, NotYet, OSError):
            return False

    async def leader_async(self, topic: str, partition: int, *, timeout: float = METADATA_TIMEOUT) -> int:
        """Return the leader, asking for it when unknown.

        :raises NotYet: while there is none.
        :raises UnknownTopic: also for a partition the topic does not have.
        """
        node = self.leader(topic, partition)
        if node is None:
            known = await self.topics_async([topic], timeout=timeout)
            node = self._leader_in(known[topic], partition)
        if node is None:
            raise NotYet(f"{topic}-{partition} has no leader")
        return node

    def _leader_in(self, known: TopicMetadata, partition: int) -> int | None:
        if partition not in known.leaders:
            raise UnknownTopic(
                f"topic {known.topic!r} has {len(known.leaders)} partitions, none has number {partition}"
            )
        node = known.leaders[partition]
        return None if node == -1 else node

    async def by_leader_async(
        self, partitions: Iterable[TopicPartition], *, timeout: float = METADATA_TIMEOUT
    ) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
        """Group partitions by leader, asking for unknown ones; the second value has those without a leader.

        :raises UnknownTopic: naming a topic, or a partition the topic does not have.
        """
        wanted = sorted(set(partitions))
        unknown = {where.topic for where in wanted if self.leader(where.topic, where.partition) is None}
        if unknown:
            await self.topics_async(unknown, timeout=timeout)
        leaders: dict[int, list[TopicPartition]] = {}
        leaderless = []
        for where in wanted:
            node = self._leader_in(self._topics[where.topic], where.partition)
            if node is None:
                leaderless.append(where)
            else:
                leaders.setdefault(node, []).append(where)
        return leaders, leaderless

    def forget_leader(self, topic: str) -> None:
        """Ask again before the next use of this topic's leaders."""
        self._topics.pop(topic, None)

    async def _metadata(self, names: list[str]) -> list[str]:
        """Ask the brokers in turn; return the topics none of them knows."""
        last: Exception = NotYet("no broker is known")
        for node in self._candidates():
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
                max_version=12,
            )
            try:
                answer = await self.send(request, node, timeout=_METADATA_REQUEST_TIMEOUT_MS / 1000)
            except TRANSIENT as error:
                last = error
                continue
            return self._take_metadata(answer)
        raise last

    def _take_metadata(self, answer: Any) -> list[str]:
        self._manager.cluster.update_metadata(answer)
        missing = []
        for topic in answer.topics:
            code = topic.error_code
            if code == kafka_errors.TopicAuthorizationFailedError.errno:
                raise AuthorizationFailed(
                    f"this principal may not Describe topic {topic.name!r}: grant it by an ACL"
                )
            if code == kafka_errors.InvalidTopicError.errno:
                raise UnknownTopic(f"{topic.name!r} is no valid topic name")
            if code:
                self._topics.pop(topic.name, None)
                missing.append(topic.name)
                continue
            self._topics[topic.name] = TopicMetadata(
                topic=topic.name,
                topic_id=_uuid_text(topic.topic_id),
                leaders={p.partition_index: p.leader_id for p in topic.partitions},
            )
        return missing

    def _candidates(self) -> list[Any]:
        """All nodes, those that failed lately at the end, longest ago first."""
        cluster = self._manager.cluster
        nodes = [broker.node_id for broker in cluster.brokers()]
        random.shuffle(nodes)
        nodes += [broker.node_id for broker in cluster.bootstrap_brokers()]
        return sorted(nodes, key=lambda node: self._suspects.get(node, 0.0))

    # -- coordinators -------------------------------------------------------------------------------------

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the node id of the transactional id's coordinator."""
        return self.run(self.coordinator_async("transaction", transactional_id))

    def group_coordinator(self, group: str) -> int:
        """Return the node id of the group's coordinator."""
        return self.run(self.coordinator_async("group", group))

    async def coordinator_async(self, kind: str, key: str, *, timeout: float = METADATA_TIMEOUT) -> int:
        """Return a coordinator, from memory where it is known; see :meth:`forget_coordinator`.

        :param kind: ``"transaction"`` or ``"group"``.
        """
        key_type = CoordinatorType.TRANSACTION if kind == "transaction" else CoordinatorType.GROUP

        async def attempt() -> int:
            last: Exception = NotYet("no broker is known")
            for node in self._candidates():
                request = FindCoordinatorRequest(
                    key=key, key_type=key_type.value, min_version=1, max_version=3
                )
                try:
                    answer = await self.send(request, node, timeout=_METADATA_REQUEST_TIMEOUT_MS / 1000)
                except TRANSIENT as error:
                    last = error
                    continue
                return self._take_coordinator(answer, kind, key_type, key)
            raise last

        known = self._coordinators.get((key_type.value, key))
        if known is not None:
            return known
        return await self.retry_async(attempt, what=f"coordinator of {kind} {key!r}", timeout=timeout)

    def forget_coordinator(self, kind: str, key: str) -> None:
        """Ask again before the next use: it moved, or did not answer."""
        key_type = CoordinatorType.TRANSACTION if kind == "transaction" else CoordinatorType.GROUP
        self._coordinators.pop((key_type.value, key), None)

    def _take_coordinator(self, answer: Any, kind: str, key_type: Any, key: str) -> int:
        error = kafka_errors.for_code(answer.error_code)
        if issubclass(error, kafka_errors.AuthorizationError):
            raise AuthorizationFailed(
                f"this principal may not Describe {kind} {key!r}: grant Describe on {kind} {key!r} by an ACL"
            )
        if error is not kafka_errors.NoError:
            raise NotYet(f"{error.__name__} ({answer.error_code})")
        self._manager.cluster.add_coordinator(answer, key_type, key, synthesize_node_id=False)
        self._coordinators[key_type.value, key] = answer.node_id
        return int(answer.node_id)

    # -- begin --------------------------------------------------------------------------------------------

    @property
    def _servers(self) -> str:
        return ",".join(self.config.bootstrap_servers)

    def _bootstrap(self, timeout: float) -> None:
        """Find a broker; in growing slices of time, because kafka-python's own time-out knows no reason."""
        backoff = Backoff(timeout)
        slice_ms = 2000.0
        while True:
            try:
                self._manager.bootstrap(timeout_ms=min(slice_ms, backoff.left * 1000))
            except kafka_errors.KafkaTimeoutError:
                reason = self._why_not()
                if reason is None and not backoff.expired:
                    continue
            except kafka_errors.KafkaError as error:
                raise translated(error, f"connecting to {self._servers}") from error
            else:
                return
            if backoff.expired:
                raise BrokersUnavailable(
                    f"no broker answered at {self._servers} within {timeout:.0f} s "
                    f"({describe(reason) if reason else 'too slow'}); check 'bootstrap.servers', "
                    "'security.protocol' and that the brokers run"
                ) from reason
            slice_ms *= 2

    def _why_not(self) -> Exception | None:
        """Try one server again and return what it fails by; None when it answers now.

        :raises ConfigurationError: for credentials and certificates, which no waiting can mend.
        """
        node = random.choice(self._manager.cluster.bootstrap_brokers()).node_id
        self._manager.reset_backoff(node)

        async def probe() -> None:
            await self._manager.get_connection(node, timeout_ms=5000, refresh_metadata_on_err=False)

        try:
            self.run(probe())
        except Exception as error:
            fatal = translated(error, f"connecting to {self._servers}")
            if isinstance(fatal, ConfigurationError):
                raise fatal from error
            return error
        return None


def _uuid_text(topic_id: uuid.UUID | str | None) -> str:
    """Return the UUID as Kafka writes it: base64 for URLs without padding."""
    if topic_id is None or isinstance(topic_id, str):
        return topic_id or ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")
