"""ListOffsets: the first offset of a log, its end for a reader, the first offset at or after a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from airflow_eos.model.kafka import LogBounds, TimedOffset
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections, by_topic
from airflow_eos.wire.error_codes import LIST_OFFSETS
from airflow_eos.wire.leaders import ask_leaders

Isolation = Literal["read_committed", "read_uncommitted"]
OffsetSpec = Literal["earliest", "latest", "earliest_local", "max_timestamp"] | int

_SPECIAL = {"latest": -1, "earliest": -2, "max_timestamp": -3, "earliest_local": -4}
_MIN_VERSIONS = {_SPECIAL["max_timestamp"]: 7, _SPECIAL["earliest_local"]: 8}
"""Lowest request version per special timestamp; isolation levels need version 2."""
_BOUNDS: tuple[tuple[str, Isolation], ...] = (
    ("earliest", "read_committed"),
    ("latest", "read_committed"),
    ("latest", "read_uncommitted"),
)
"""Log start, last stable offset and high watermark."""
NO_OFFSET = -1
"""Answer for a time after the last record."""


def list_offsets(
    connections: BrokerConnections,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    *,
    isolation: Isolation = "read_committed",
    timeout: float = METADATA_TIMEOUT,
) -> dict[TopicPartition, int]:
    """Return one offset per partition, from the partitions' leaders; sends one request per broker.

    :param spec: ``"earliest"``, ``"latest"``, a time in ms since 1970, or ``"earliest_local"`` (the first
        offset that is not only in remote storage, KIP-405). A time before 1970 is sent as 1970, because
        negative timestamps have special meanings in the request (-1 is the end of the log).
    :param isolation: with ``read_committed``, "latest" is the last stable offset (LSO) and look-ups by time
        only cover offsets below it; otherwise it is the high watermark.
    :returns: offset per partition; -1 if no record has that time or a later one.
    :raises UnknownTopic: names the topic or partition.
    :raises AuthorizationFailed: Describe on a topic is missing.
    :raises BrokersUnavailable: a leader did not answer within ``timeout`` seconds.
    """
    return connections.run(
        list_offsets_async(connections, partitions, spec, isolation=isolation, timeout=timeout)
    )


async def list_offsets_async(
    connections: BrokerConnections,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    *,
    isolation: Isolation = "read_committed",
    timeout: float = METADATA_TIMEOUT,
) -> dict[TopicPartition, int]:
    """See :func:`list_offsets`."""
    timestamp = _SPECIAL[spec] if isinstance(spec, str) else max(spec, 0)
    timed_offsets = await _ask(connections, partitions, timestamp, isolation, timeout)
    return {tp: timed.offset for tp, timed in timed_offsets.items()}


def log_bounds(
    connections: BrokerConnections,
    partitions: Collection[TopicPartition],
    *,
    starts: bool = True,
    ends: bool = True,
) -> LogBounds:
    """Return start, last stable offset and high watermark of each log; the requests are sent together.

    Raises as :func:`list_offsets`.

    :param starts: False leaves the log starts out.
    :param ends: False leaves the high watermarks out.
    """
    requests = {
        (spec, isolation): connections.spawn(
            _ask(connections, partitions, _SPECIAL[spec], isolation, METADATA_TIMEOUT)
        )
        for spec, isolation in _BOUNDS
        if (starts or spec != "earliest") and (ends or isolation != "read_uncommitted")
    }
    answers = [connections.wait(requests[bound]) if bound in requests else {} for bound in _BOUNDS]
    first, stable, end = ({tp: timed.offset for tp, timed in answer.items()} for answer in answers)
    return LogBounds(first, stable, end, {tp: timed.leader_epoch for tp, timed in answers[1].items()})


def epoch_ends(
    connections: BrokerConnections, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the end offset of a leader epoch in each partition (KIP-101); -1 if unknown.

    Raises as :func:`list_offsets`.
    """

    def request(partitions: Collection[TopicPartition]) -> Any:
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        def part(tp: TopicPartition) -> Any:
            return topic_class.OffsetForLeaderPartition(
                partition=tp.partition, current_leader_epoch=-1, leader_epoch=epochs[tp]
            )

        topics = by_topic(partitions, lambda topic, parts: topic_class(topic=topic, partitions=parts), part)
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics, min_version=3, max_version=4)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
        for topic in answer.topics:
            for part in topic.partitions:
                yield TopicPartition(topic.topic, part.partition), part

    return connections.run(
        ask_leaders(
            connections,
            list(epochs),
            request,
            lambda part: part.end_offset,
            subject="ends of leader epochs",
            table=LIST_OFFSETS,
            read=read,
        )
    )


def first_since(
    connections: BrokerConnections, partitions: Collection[TopicPartition], timestamp: int
) -> dict[TopicPartition, TimedOffset | None]:
    """Return the first record with timestamp >= ``timestamp`` ms in each partition; None if there is none.

    Includes records of open and aborted transactions, and transaction markers. The record's timestamp may be
    much later than ``timestamp``. Times before 1970, and errors, are as in :func:`list_offsets`.
    """
    timestamp = max(timestamp, 0)
    timed_offsets = connections.run(_ask(connections, partitions, timestamp, "read_uncommitted"))
    return {tp: None if timed.offset == NO_OFFSET else timed for tp, timed in timed_offsets.items()}


def max_timestamps(
    connections: BrokerConnections, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the highest timestamp in each log, in ms since 1970 (KIP-734); -1 for an empty log.

    Includes records of open and aborted transactions, and transaction markers. Omits logs with segments that
    only remote storage has (KIP-405), because brokers compare local ones only. Raises as
    :func:`list_offsets`.
    """
    starts = list_offsets(connections, partitions, "earliest")
    timed_offsets = connections.run(
        _ask(connections, partitions, _SPECIAL["max_timestamp"], "read_uncommitted")
    )
    local = list_offsets(connections, partitions, "earliest_local")  # afterwards: it only rises
    return {tp: timed.timestamp for tp, timed in timed_offsets.items() if local[tp] <= starts[tp]}


async def _ask(
    connections: BrokerConnections,
    partitions: Collection[TopicPartition],
    timestamp: int,
    isolation: Isolation,
    timeout: float = METADATA_TIMEOUT,
) -> dict[TopicPartition, TimedOffset]:
    return await ask_leaders(
        connections,
        partitions,
        lambda group: _request(group, timestamp, isolation),
        lambda part: TimedOffset(part.offset, part.timestamp, part.leader_epoch),
        subject="offsets",
        table=LIST_OFFSETS,
        timeout=timeout,
    )


def _request(partitions: Collection[TopicPartition], timestamp: int, isolation: Isolation) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic

    def part(tp: TopicPartition) -> Any:
        return topic_class.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp
        )

    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(isolation == "read_committed"),
        topics=by_topic(partitions, lambda name, parts: topic_class(name=name, partitions=parts), part),
        min_version=_MIN_VERSIONS.get(timestamp, 2),
        max_version=8,
    )
