"""Creates and deletes topics, and waits until every broker reflects the change.

Each function takes a list of ``AdminClient``; the first one sends the request, all of them fetch metadata.
A topic that one broker already lists may be unknown to the next one for some milliseconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EosError
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets
from airflow_eos_testing.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POLL = 0.02
_REQUEST_TIMEOUT = 5.0


def create_topic(
    admins: Sequence[Any],
    name: str,
    partitions: int,
    replication_factor: int,
    config: Mapping[str, str],
    timeout: float,
) -> None:
    """Create a topic; return when every client sees a leader for each partition.

    :raises EmbeddedKafkaError: the broker refused it, or a leader is missing after ``timeout`` seconds.
    """
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(
        name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        config={key: str(value) for key, value in config.items()},
    )
    deadline = time.monotonic() + timeout
    request = admins[0].create_topics([topic], request_timeout=timeout, operation_timeout=timeout)
    settle(f"create topic {name!r}", request[name])

    def has_leaders(metadata: Any) -> bool:
        topic = metadata.topics.get(name)
        return (
            topic is not None
            and len(topic.partitions) == partitions
            and all(part.leader in metadata.brokers for part in topic.partitions.values())
        )

    complaint = f"topic {name!r} has no leader for every one of its {partitions} partitions"
    _wait_until(admins, has_leaders, deadline, complaint, topic=name)


def wait_until_served(config: Mapping[str, Any], name: str, partitions: int, timeout: float) -> None:
    """Wait until every leader answers: a broker lists a topic some milliseconds before it leads it.

    :raises EmbeddedKafkaError: a leader did not answer within ``timeout`` seconds.
    """
    places = [TopicPartition(name, number) for number in range(partitions)]
    with BrokerConnections(ClientConfig.of(config)) as connections:
        try:
            list_offsets(connections, places, "latest", timeout=timeout)
        except EosError as error:
            raise EmbeddedKafkaError(f"Topic {name!r} is not served: {error}") from error


def delete_topic(admins: Sequence[Any], name: str, timeout: float) -> None:
    """Delete a topic; return when no client sees it any more."""
    deadline = time.monotonic() + timeout
    request = admins[0].delete_topics([name], request_timeout=timeout, operation_timeout=timeout)
    settle(f"delete topic {name!r}", request[name])
    _wait_until(
        admins, lambda metadata: name not in metadata.topics, deadline, f"topic {name!r} is still listed"
    )


def wait_for_brokers(admins: Sequence[Any], count: int, timeout: float) -> None:
    """Wait until every client sees ``count`` brokers."""
    deadline = time.monotonic() + timeout
    complaint = f"fewer than {count} brokers in the metadata"
    _wait_until(admins, lambda metadata: len(metadata.brokers) == count, deadline, complaint)


def wait_in_sync(admins: Sequence[Any], timeout: float) -> None:
    """Wait until all replicas of all partitions of all topics, internal ones included, are in sync."""

    def in_sync(metadata: Any) -> bool:
        parts = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
        return all(part.leader >= 0 and sorted(part.isrs) == sorted(part.replicas) for part in parts)

    _wait_until(admins, in_sync, time.monotonic() + timeout, "some replicas are not in sync")


def settle(action: str, future: Any) -> None:
    """Wait for an admin request; raise an error that names the action if it was refused."""
    from confluent_kafka import KafkaException

    try:
        future.result()
    except KafkaException as error:
        raise EmbeddedKafkaError(f"Could not {action}: {error.args[0].str()}") from error


def _wait_until(
    admins: Sequence[Any],
    holds: Callable[[Any], bool],
    deadline: float,
    complaint: str,
    *,
    topic: str | None = None,
) -> None:
    """Poll every client's metadata of a topic, or of all topics, until the condition holds."""
    from confluent_kafka import KafkaException

    for admin in admins:
        while True:
            try:
                if holds(admin.list_topics(topic, timeout=_REQUEST_TIMEOUT)):
                    break
                cause = ""
            except KafkaException as error:
                cause = f" ({error.args[0].str()})"
            if time.monotonic() > deadline:
                raise EmbeddedKafkaError(f"Timed out: {complaint}{cause}")
            time.sleep(_POLL)
