"""Reads many small ranges in order, with several partitions in one Fetch request.

One request for each of a thousand partitions would cost a thousand round trips. Therefore small neighbouring
ranges are fetched together, one request per leader, and the next group is fetched while the caller uses this
one. Only the first answer of a range comes from here. Everything else (errors, partitions that did not fit
into the answer, the rest of a range) is left to :func:`airflow_eos.wire.fetch.fetch_answers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafka.future import Future

from airflow_eos.exceptions import EosError
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.wire.backoff import NotYet, answers_to
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections
from airflow_eos.wire.fetch import MAX_BYTES, FetchedAnswer, fetch_request

SMALL_SPAN = 5_000
"""Largest range, in offsets, that is fetched together with others."""
GROUP_SPAN = 20_000
"""Largest sum of offsets in one group: about what :data:`MAX_BYTES` hold."""
GROUP_SIZE = 200
"""Maximum number of ranges in one group."""
_MAX_WAIT_MS = 100  # if no record is readable yet, the reader of the single range waits
_TURNS = 4


def first_answers(
    connections: BrokerConnections, ranges: Sequence[OffsetRange]
) -> Iterator[tuple[int, FetchedAnswer | None]]:
    """Yield the index and first ``read_committed`` answer of each range; None if the caller must fetch it.

    Error codes of brokers do not raise here: the reader of the single range gets them again and raises.

    :param ranges: non-empty ranges, each of another partition.
    """
    groups = group_ranges(ranges)
    coming: Future | None = None
    for place, group in enumerate(groups):
        answers: dict[int, FetchedAnswer] = {}
        if coming is not None:
            answers = connections.wait(coming)
        elif len(group) > 1:
            answers = connections.run(_ask(connections, ranges, group))
        coming = None
        if place + 1 < len(groups) and len(groups[place + 1]) > 1:
            coming = connections.spawn(_ask(connections, ranges, groups[place + 1]))
            connections.pump(_TURNS)
        for number in group:
            yield number, answers.pop(number, None)


def group_ranges(ranges: Sequence[OffsetRange]) -> list[list[int]]:
    """Return the ranges' indexes in groups of neighbours that are fetched together; large ranges alone."""
    groups: list[list[int]] = []
    span = GROUP_SPAN + 1
    for number, wanted in enumerate(ranges):
        span += wanted.span
        if wanted.span > SMALL_SPAN or span > GROUP_SPAN or len(groups[-1]) >= GROUP_SIZE:
            groups.append([])
            span = wanted.span if wanted.span <= SMALL_SPAN else GROUP_SPAN + 1
        groups[-1].append(number)
    return groups


async def _ask(
    connections: BrokerConnections, ranges: Sequence[OffsetRange], group: Sequence[int]
) -> dict[int, FetchedAnswer]:
    """Fetch the group's ranges from their leaders; return the usable answers by index."""
    numbers = {ranges[number].topic_partition: number for number in group}
    try:
        leaders, _ = await connections.by_leader_async(numbers, timeout=METADATA_TIMEOUT)
    except (EosError, NotYet):
        return {}
    futures = {
        node: connections.send(
            fetch_request(
                {tp: ranges[numbers[tp]].start for tp in tps},
                isolation="read_committed",
                max_bytes=MAX_BYTES,
                max_wait_ms=_MAX_WAIT_MS,
            ),
            node,
            timeout=connections.request_timeout,
        )
        for node, tps in leaders.items()
    }
    answers, _ = await answers_to(futures, "reading small ranges")
    usable_by_number: dict[int, FetchedAnswer] = {}
    for answer in answers.values():
        for topic in () if answer.error_code else answer.responses:
            for part in topic.partitions:
                number = numbers[TopicPartition(topic.topic, part.partition_index)]
                usable = _usable(ranges[number], part)
                if usable is not None:
                    usable_by_number[number] = usable
    return usable_by_number


def _usable(wanted: OffsetRange, part: Any) -> FetchedAnswer | None:
    """Return a partition's part of an answer; None for errors, and without a usable batch."""
    if part.error_code or part.log_start_offset > wanted.start:
        return None
    fetched = FetchedAnswer.of(part, wanted.topic_partition, wanted.start, "read_committed")
    return None if fetched is None or fetched.next_position <= wanted.start else fetched
