"""Sends one kind of request to the leaders of many partitions, one request per broker, until all answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.backoff import Backoff, NotYet, answers_to, describe
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections, parts_of
from airflow_eos.wire.error_codes import Fatal, Reaction, reaction

T = TypeVar("T")
Read = Callable[[Any], Iterable[tuple[TopicPartition, Any]]]


async def ask_leaders(
    connections: BrokerConnections,
    partitions: Collection[TopicPartition],
    request_for: Callable[[Collection[TopicPartition]], Any],
    value: Callable[[Any], T],
    *,
    subject: str,
    table: Mapping[int, Reaction],
    timeout: float = METADATA_TIMEOUT,
    read: Read = parts_of,
) -> dict[TopicPartition, T]:
    """Send requests until every partition has an answer.

    :param request_for: builds the request for some partitions.
    :param value: returns the value in a partition's part of an answer.
    :param subject: names the request in errors, such as "offsets".
    :param table: reactions to error codes, one of :mod:`airflow_eos.wire.error_codes`.
    :param read: yields each partition of a broker's answer, and its part of the answer.
    :raises UnknownTopic: names the topic or partition.
    :raises AuthorizationFailed: names the partition and what to grant.
    :raises BrokersUnavailable: after ``timeout`` seconds, with the last reason.
    """
    results: dict[TopicPartition, T] = {}
    remaining = set(partitions)
    timeout = min(connections.patience, timeout)
    backoff = Backoff(timeout)
    while remaining:
        leaders, leaderless = await connections.by_leader_async(remaining, timeout=backoff.left)
        # All requests leave before the first answer is awaited.
        futures = {node: connections.send(request_for(group), node) for node, group in leaders.items()}
        answers, failures = await answers_to(futures, f"{subject} of {len(remaining)} partitions")
        last = NotYet("no answer")
        for node, error in failures.items():
            last = NotYet(f"the leader, broker {node}: {describe(error)}")
        for tp, part in chain.from_iterable(map(read, answers.values())):
            if part.error_code == 0:
                results[tp] = value(part)
                continue
            decision = reaction(table, part.error_code)
            if isinstance(decision, Fatal):
                raise decision.error(f"{subject} of {tp}: {decision.meaning}")
            last = NotYet(f"{tp}: {decision.meaning}")
        if leaderless:
            last = NotYet(f"{leaderless[0]} has no leader")
        remaining.difference_update(results)
        if not remaining:
            break
        doing = f"{subject} of {min(remaining)} ({len(remaining)} partitions)"
        if backoff.expired:
            raise BrokersUnavailable(
                f"{doing}: no answer within {timeout:.0f} s; last: {describe(last)}"
            ) from last
        backoff.tell(doing, last)
        await connections.pause(backoff.next_pause())
        await connections.refresh_async({tp.topic for tp in remaining})
    return results
