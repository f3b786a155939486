"""Connections of one thread to all brokers of a cluster; knows partition leaders and coordinators.

Coroutines (``*_async``) are for other modules of the wire layer; all other methods block. The object is not
thread-safe, cannot be pickled and must not be used after a fork: open it in the task that uses it.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    EnvironmentMismatch,
    EosError,
    UnknownTopic,
)
from airflow_eos.model.kafka import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicDescription
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import is_topic_name
from airflow_eos.wire.backoff import NotYet, answers_to
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.node_connections import BOOTSTRAP_TIMEOUT, NodeConnections

T = TypeVar("T")

METADATA_TIMEOUT = 60.0
"""Seconds to retry metadata and coordinator look-ups."""
UNKNOWN_TOPIC_GRACE = 5.0
"""Seconds to retry an unknown topic: brokers learn of new topics with a delay."""
_LONGEST_NAME_SHOWN = 60
_TOPICS_OF_COORDINATORS = {
    kind: f": no leader in {topic!r}, or the brokers cannot create it: {setting} may exceed their number"
    for kind, topic, setting in (
        ("group", OFFSETS_TOPIC, "offsets.topic.replication.factor"),
        ("transaction", TRANSACTIONS_TOPIC, "transaction.state.log.replication.factor"),
    )
}
_OPERATIONS = {"READ": 3, "WRITE": 4, "DESCRIBE": 8}


class BrokerConnections(NodeConnections):
    """Open connections to a cluster, with cached topics, leaders and coordinators; a context manager.

    See :class:`airflow_eos.wire.node_connections.NodeConnections` for parameters and errors.
    """

    def __init__(
        self, config: ClientConfig | Mapping[str, Any], *, bootstrap_timeout: float = BOOTSTRAP_TIMEOUT
    ) -> None:
        self._topics: dict[str, TopicDescription] = {}
        self._coordinators: dict[tuple[str, str], int] = {}
        super().__init__(config, bootstrap_timeout=bootstrap_timeout)

    # -- topics -------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str], *, wait: bool = True) -> dict[str, TopicDescription]:
        """Request metadata of topics from a broker, bypassing the cache.

        :param wait: retry an unknown topic for some seconds, because the broker's metadata may be stale.
        :raises UnknownTopic: names the topic, and one with a similar name.
        :raises ConfigurationError: a name is not a valid topic name.
        :raises AuthorizationFailed: Describe on a topic is missing.
        """
        return self.run(self.topics_async(names, wait=wait))

    def visible_topics(
        self, names: Iterable[str]
    ) -> tuple[dict[str, TopicDescription], dict[str, EosError | None]]:
        """Request metadata of topics once; topics without metadata do not raise.

        :returns: the metadata, and for each other topic the error; None if the topic does not exist.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}, {}
        failed = self._metadata_of(wanted, f"metadata of {len(wanted)} topics")
        return {name: self._topics[name] for name in wanted if name not in failed}, failed

    def known_topic(self, topic: str) -> TopicDescription | None:
        """Return the cached metadata of a topic; sends no request."""
        return self._topics.get(topic)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the cached leader, None if unknown; sends no request."""
        description = self._topics.get(topic)
        node = -1 if description is None else description.leaders.get(partition, -1)
        return None if node == -1 else node

    async def topics_async(
        self, names: Iterable[str], *, timeout: float = METADATA_TIMEOUT, wait: bool = True
    ) -> dict[str, TopicDescription]:
        """See :meth:`topics`."""
        wanted = sorted(set(names))
        started = time.monotonic()
        grace = min(UNKNOWN_TOPIC_GRACE, timeout / 2) if wait else 0.0

        async def attempt() -> dict[str, TopicDescription]:
            missing = await self._metadata(wanted)
            if missing and time.monotonic() - started > grace:
                hint = await self._similar_topic(missing)
                raise UnknownTopic(
                    f"topic {', '.join(map(repr, missing))} does not exist on {self._servers}, or "
                    f"this principal may not see it: create it, or correct the name{hint}"
                )
            if missing:
                raise NotYet(f"unknown topics {missing}")
            return {name: self._topics[name] for name in wanted}

        return await self.retry_async(attempt, subject=f"metadata of {', '.join(wanted)}", timeout=timeout)

    async def refresh_async(self, names: Iterable[str]) -> bool:
        """Request metadata again; return whether all topics are known. Unreachable brokers do not raise."""
        try:
            return not await self._metadata(sorted(set(names)))
        except (kafka_errors.KafkaError, NotYet, OSError):
            return False
        finally:
            self._manager.hang_up_moved()

    async def leader_async(self, topic: str, partition: int, *, timeout: float = METADATA_TIMEOUT) -> int:
        """Return the leader, from a broker if it is not cached.

        :raises NotYet: the partition has no leader.
        :raises UnknownTopic: the topic or the partition does not exist.
        """
        leaders, leaderless = await self.by_leader_async([TopicPartition(topic, partition)], timeout=timeout)
        if leaderless:
            raise NotYet(f"{topic}-{partition} has no leader")
        (node,) = leaders
        return node

    async def by_leader_async(
        self, partitions: Iterable[TopicPartition], *, timeout: float = METADATA_TIMEOUT
    ) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
        """Group partitions by leader, requesting unknown leaders; the second value has leaderless partitions.

        :raises UnknownTopic: names a topic or partition that does not exist.
        """
        wanted = sorted(set(partitions))
        # A leader that has just failed to answer may no longer be the leader.
        suspects = {None, *self._suspects}
        unknown = {tp.topic for tp in wanted if self.leader(tp.topic, tp.partition) in suspects}
        if unknown:
            await self.topics_async(unknown, timeout=timeout)
        leaders: dict[int, list[TopicPartition]] = {}
        leaderless = []
        for tp in wanted:
            topic = self._topics[tp.topic]
            if tp.partition not in topic.leaders:
                raise UnknownTopic(
                    f"topic {tp.topic!r} has {topic.partitions} partitions, none has number {tp.partition}"
                )
            node = topic.leaders[tp.partition]
            if node == -1:
                leaderless.append(tp)
            else:
                leaders.setdefault(node, []).append(tp)
        return leaders, leaderless

    def forget_leader(self, topic: str) -> None:
        """Drop this topic's leaders from the cache."""
        self._topics.pop(topic, None)
        self._manager.hang_up_moved()

    async def _metadata(self, names: list[str]) -> list[str]:
        """Request metadata; return the topics the broker does not know; raise for those that it refuses."""
        failed = await self._ask_metadata(names)
        for refusal in failed.values():
            if refusal is not None:
                raise refusal
        return sorted(failed)

    async def _similar_topic(self, missing: list[str]) -> str:
        """Return a hint for an error: the visible topic whose name is most like the first missing one."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False, max_version=12)
        answer = await self.ask_any_async(request)
        return did_you_mean(missing[0], (topic.name for topic in answer.topics if not topic.is_internal))

    def _metadata_of(self, names: list[str], subject: str) -> dict[str, EosError | None]:
        ask = self.retry_async(lambda: self._ask_metadata(names), subject=subject, timeout=METADATA_TIMEOUT)
        return self.run(ask)

    async def _ask_metadata(self, names: list[str]) -> dict[str, EosError | None]:
        """Request metadata; return the error of each topic that has one, None where the topic is unknown."""
        invalid = kafka_errors.InvalidTopicError.errno
        # A broker closes the connection on a name that is too long, as if it were unavailable.
        failed = {name: _refusal(name, invalid) for name in names if not is_topic_name(name)}
        wanted = [name for name in names if name not in failed]
        if names and not wanted:
            return failed
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in wanted],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
            max_version=12,
        )
        answer = await self.ask_any_async(request)
        if None not in (self.cluster_id, answer.cluster_id) and self.cluster_id != answer.cluster_id:
            raise EnvironmentMismatch(
                f"{self._servers}: a broker of cluster {answer.cluster_id} answers, and this client has "
                f"begun with cluster {self.cluster_id}: name brokers of one cluster in 'bootstrap.servers'"
            )
        self._manager.cluster.update_metadata(answer)
        for topic in answer.topics:
            code = topic.error_code
            if code:
                self._topics.pop(topic.name, None)
                failed[topic.name] = _refusal(topic.name, code)
                continue
            self._topics[topic.name] = TopicDescription(
                topic=topic.name,
                topic_id=_uuid_text(topic.topic_id),
                leaders={p.partition_index: p.leader_id for p in topic.partitions},
                operations=operation_names(topic.authorized_operations),
                replicas=min((len(p.replica_nodes) for p in topic.partitions), default=0),
                in_sync={p.partition_index: len(p.isr_nodes) for p in topic.partitions},
            )
        return failed

    # -- brokers ------------------------------------------------------------------------------------------

    def brokers(self) -> list[int]:
        """Request the node ids of all brokers, in order."""
        self._metadata_of([], "the brokers")
        return self.known_brokers()

    def silent_brokers(self) -> list[int]:
        """Return the node ids of the brokers in the metadata that do not answer at their address."""
        request = MetadataRequest(topics=[], max_version=12)
        futures = {node: self.send(request, node) for node in self.brokers()}
        _, failures = self.run(answers_to(futures, "metadata of a broker"))
        return list(failures)

    def known_brokers(self) -> list[int]:
        """Return the node ids of the brokers in the last Metadata answer, in order; sends no request."""
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    # -- coordinators -------------------------------------------------------------------------------------

    def coordinator(self, kind: str, key: str) -> int:
        """See :meth:`coordinator_async`."""
        return self.run(self.coordinator_async(kind, key))

    async def coordinator_async(self, kind: str, key: str, *, timeout: float = METADATA_TIMEOUT) -> int:
        """Return a coordinator's node id, cached if known; see :meth:`forget_coordinator`.

        :param kind: ``"transaction"`` or ``"group"``.
        """
        key_type = CoordinatorType.TRANSACTION if kind == "transaction" else CoordinatorType.GROUP
        request = FindCoordinatorRequest(key=key, key_type=key_type.value, min_version=1, max_version=3)

        async def attempt() -> int:
            answer = await self.ask_any_async(request)
            error = kafka_errors.for_code(answer.error_code)
            if issubclass(error, kafka_errors.AuthorizationError):
                raise AuthorizationFailed(
                    f"this principal may not Describe {kind} {key!r}: grant Describe on {kind} {key!r} by "
                    "an ACL"
                )
            if error is not kafka_errors.NoError:
                is_missing = error is kafka_errors.CoordinatorNotAvailableError
                why = _TOPICS_OF_COORDINATORS[kind] if is_missing else ""
                raise NotYet(f"{error.__name__} ({answer.error_code}){why}")
            self._manager.cluster.add_coordinator(answer, key_type, key, synthesize_node_id=False)
            self._coordinators[kind, key] = answer.node_id
            return int(answer.node_id)

        node = self._coordinators.get((kind, key))
        if node is not None and node not in self._suspects:
            return node
        return await self.retry_async(attempt, subject=f"coordinator of {kind} {key!r}", timeout=timeout)

    def forget_coordinator(self, kind: str, key: str) -> None:
        """Drop a coordinator from the cache: it moved, perhaps to a new address, or did not answer."""
        self._coordinators.pop((kind, key), None)
        self._manager.cluster.request_update()
        self._manager.hang_up_moved()


def _refusal(topic: str, code: int) -> EosError | None:
    """Return the exception for a topic's error code; None if the broker does not know the topic (yet)."""
    if code == kafka_errors.TopicAuthorizationFailedError.errno:
        return AuthorizationFailed(f"this principal may not Describe topic {topic!r}: grant it by an ACL")
    if code == kafka_errors.InvalidTopicError.errno:
        shown = topic if len(topic) <= _LONGEST_NAME_SHOWN else f"{topic[:_LONGEST_NAME_SHOWN]}..."
        return ConfigurationError(
            f"{shown!r} is not a valid topic name: brokers take 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    return None


def operation_names(codes: Collection[int] | None) -> frozenset[str] | None:
    """Return which of READ, WRITE and DESCRIBE are allowed; None if the broker does not say (KIP-430).

    :param codes: ``authorized_operations`` of an answer, codes of AclOperation.
    """
    return None if codes is None else frozenset(name for name, code in _OPERATIONS.items() if code in codes)


def _uuid_text(topic_id: uuid.UUID | str | None) -> str:
    """Return the UUID as Kafka writes it: URL-safe base64 without padding."""
    if topic_id is None or isinstance(topic_id, str):
        return topic_id or ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def by_topic(
    partitions: Iterable[TopicPartition],
    topic_part: Callable[[str, list[Any]], T],
    entry: Callable[[TopicPartition], Any] = attrgetter("partition"),
) -> list[T]:
    """Return the parts of a request, one for each topic, sorted.

    :param topic_part: makes a part from a topic and the entries of its partitions, sorted.
    :param entry: makes the entry of a partition, by default its number.
    """
    grouped: dict[str, list[Any]] = {}
    for tp in sorted(set(partitions)):
        grouped.setdefault(tp.topic, []).append(entry(tp))
    return [topic_part(topic, entries) for topic, entries in grouped.items()]


def parts_of(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield each partition of an answer, or of any part with ``topics``, and its part of the answer."""
    for topic in answer.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part
