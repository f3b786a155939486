"""Reads a topic up to its current end, as a consumer of the given isolation level sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos.exceptions import AuthorizationFailed, UnknownTopic
from airflow_eos_testing.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Isolation = Literal["read_committed", "read_uncommitted"]

_BATCH = 10_000
_STALL = 60.0
"""Seconds without a single record or end of partition before a read fails."""
_WAIT = 0.02
"""Seconds that one poll waits for a full batch."""


@dataclass(frozen=True)
class Record:
    """One record as a consumer sees it; ``timestamp`` in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    timestamp_type: int
    """0 not available, 1 create time, 2 log append time."""


def read_topic(
    kafka: str | Mapping[str, Any], topic: str, isolation: Isolation = "read_committed"
) -> list[Record]:
    """Return all records of a topic, sorted by partition and offset.

    The end is the high watermark under ``read_uncommitted`` and the last stable offset under
    ``read_committed``, at the time the reader gets there. Nothing is committed and no group is joined.

    :param kafka: bootstrap servers, or client settings in librdkafka's names.
    :raises UnknownTopic: the topic does not exist.
    :raises AuthorizationFailed: the principal may not see it.
    :raises EmbeddedKafkaError: the brokers did not answer for 60 s.
    """
    records = [_record(message) for message in _messages(kafka, topic, isolation)]
    records.sort(key=lambda record: (record.partition, record.offset))
    return records


def count_records(kafka: str | Mapping[str, Any], topic: str, isolation: Isolation = "read_committed") -> int:
    """Count the records that :func:`read_topic` would return, in constant memory."""
    return sum(1 for _ in _messages(kafka, topic, isolation))


def follow_topic(
    kafka: str | Mapping[str, Any],
    topic: str,
    ended: Callable[[], bool],
    isolation: Isolation = "read_committed",
) -> Iterator[Record]:
    """Yield the records of a topic from its beginning, as they become visible, until ``ended()``.

    Brokers may come and go meanwhile. Nothing is committed and no group is joined.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({**_consumer_config(kafka, isolation), "enable.partition.eof": False})
    try:
        position = dict.fromkeys(_partitions(consumer, topic), OFFSET_BEGINNING)
        refused = True
        while not ended():
            if refused:
                # The library stops fetching a partition once a broker refuses its offset, as one may that
                # does not lead it yet: assign again, after the last record read.
                consumer.assign([TopicPartition(topic, *place) for place in position.items()])
                refused = False
            for message in consumer.consume(_BATCH, timeout=0.1):
                if message.error() is not None:
                    refused = True
                elif not refused:
                    position[message.partition()] = message.offset() + 1
                    yield _record(message)
    finally:
        consumer.close()


def _messages(kafka: str | Mapping[str, Any], topic: str, isolation: Isolation) -> Iterator[Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(_consumer_config(kafka, isolation))
    try:
        partitions = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        unfinished = set(partitions)
        heard = time.monotonic()
        while unfinished:
            messages = consumer.consume(_BATCH, timeout=_WAIT)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _STALL:
                raise EmbeddedKafkaError(
                    f"No answer for {_STALL:.0f} s while reading {topic} partitions "
                    f"{sorted(unfinished)}: are the brokers up?"
                )
            for message in messages:
                error = message.error()
                if error is None:
                    # Records that arrive after the end was seen belong to a later read.
                    if message.partition() in unfinished:
                        yield message
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _partitions(consumer: Any, topic: str) -> list[int]:
    from confluent_kafka import KafkaError, KafkaException

    try:
        metadata = consumer.list_topics(topic, timeout=_STALL).topics[topic]
    except KafkaException as error:
        raise EmbeddedKafkaError(
            f"Cannot read the metadata of topic {topic!r}: {error.args[0].str()}"
        ) from error
    if metadata.error is not None and metadata.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise AuthorizationFailed(f"Cannot read topic {topic!r}: the principal lacks DESCRIBE on it")
    if metadata.error is not None:
        raise UnknownTopic(f"Cannot read topic {topic!r}: {metadata.error.str()}")
    return sorted(metadata.partitions)


def _consumer_config(kafka: str | Mapping[str, Any], isolation: Isolation) -> dict[str, Any]:
    given = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
    return {
        "log_level": 2,
        **given,
        "group.id": "airflow-eos-reader",  # the library requires one; it is never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "check.crcs": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 20,
        "fetch.error.backoff.ms": 20,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "queued.min.messages": 1_000_000,
    }


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=timestamp,
        timestamp_type=kind,
    )
