"""Commits offsets of a consumer group, as a consumer unaware of cursors does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

T = TypeVar("T")

_MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def with_coordinator(ask: Callable[[], T]) -> T:
    """Retry until the group has a coordinator: there is none before the cluster's first group look-up."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _MOVING or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def commit_offset(
    kafka: Mapping[str, Any], group: str, topic: str, offset: int, *, partition: int = 0, metadata: str = ""
) -> None:
    """Commit one offset of a group without members."""
    consumer = Consumer({**kafka, "group.id": group, "enable.auto.commit": False})
    try:
        position = TopicPartition(topic, partition, offset, metadata)
        with_coordinator(lambda: consumer.commit(offsets=[position], asynchronous=False))
    finally:
        consumer.close()
