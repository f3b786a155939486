"""Partitions in requests and answers, which group them by topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from airflow_eos.model.ranges import TopicPartition


def by_topic(
    partitions: Iterable[TopicPartition], entry: Callable[[TopicPartition], Any] = attrgetter("partition")
) -> dict[str, list[Any]]:
    """Return an entry for each partition by topic, by default its number; both are sorted."""
    grouped: dict[str, list[Any]] = {}
    for tp in sorted(set(partitions)):
        grouped.setdefault(tp.topic, []).append(entry(tp))
    return grouped


def parts_of(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield each partition of an answer, or of a part of one that has ``topics``, and what it says of it."""
    for topic in answer.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part
