"""Adds consumed offsets to an open transaction, without being a member of the group (KIP-98, KIP-447).

The requests do not go through librdkafka: it waits forever for a group coordinator that it considers dead
(its issues 5456 and 5511), and looks a moved coordinator up only after the next failed connection, up to 10 s
later. The driver's producer does not have to know the offsets: its commit covers everything that the
coordinator has under its producer id and epoch.

All functions raise ProducerFenced if a newer attempt exists, AuthorizationFailed, which names the resource,
and BrokersUnavailable after ``timeout`` seconds, with the last answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kafka.protocol.producer import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from airflow_eos.model.kafka import CommittedOffset, ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections, by_topic, parts_of
from airflow_eos.wire.coordinators import Coordinator
from airflow_eos.wire.error_codes import ADD_OFFSETS, TXN_OFFSET_COMMIT
from airflow_eos.wire.node_connections import ANSWER_TIMEOUT

# A quarter of what brokers allow a batch by default (message.max.bytes).
_REQUEST_BYTES = 1 << 18
_ENTRY_BYTES = 100  # of a stored offset, without its names and metadata


def add_offsets_to_txn(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    group: str,
    *,
    timeout: float = METADATA_TIMEOUT,
) -> None:
    """Add the group's partition of ``__consumer_offsets`` to the transaction; idempotent."""
    subject = f"transaction of {identity.transactional_id!r}: adding group {group!r}"
    coordinator = Coordinator(connections, "transaction", identity.transactional_id)

    async def attempt(node: int) -> None:
        request = AddOffsetsToTxnRequest(**identity.to_dict(), group_id=group, max_version=3)
        answer = await connections.send(request, node, timeout=min(ANSWER_TIMEOUT, timeout))
        coordinator.check(ADD_OFFSETS, answer.error_code, subject)

    coordinator.ask(attempt, subject, timeout)


def commit_offsets_in_txn(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout: float = METADATA_TIMEOUT,
) -> None:
    """Send offsets to the group's coordinator, where they are pending until the transaction ends; idempotent.

    It writes the offsets of a request as one batch of ``__consumer_offsets``, so thousands of partitions
    take several requests.

    Call :func:`add_offsets_to_txn` first.

    :param offsets: next offset to read, with metadata, per partition.
    :raises ProducerFenced: also if the transaction timed out.
    """
    subject = f"transaction of {identity.transactional_id!r}: offsets of group {group!r}"
    coordinator = Coordinator(connections, "group", group)
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic

    def part(tp: TopicPartition) -> Any:
        return topic_class.TxnOffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offsets[tp].offset,
            committed_metadata=offsets[tp].metadata,
        )

    requests: list[list[TopicPartition]] = []
    left = 0
    for tp in sorted(offsets):
        size = _ENTRY_BYTES + len(group) + len(tp.topic) + len(offsets[tp].metadata)
        if size > left:
            requests.append([])
            left = _REQUEST_BYTES
        requests[-1].append(tp)
        left -= size

    async def attempt(node: int) -> None:
        for partitions in requests:
            request = TxnOffsetCommitRequest(
                **identity.to_dict(),
                group_id=group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=by_topic(
                    partitions, lambda name, parts: topic_class(name=name, partitions=parts), part
                ),
                min_version=3,
                max_version=3,
            )
            answer = await connections.send(request, node, timeout=min(ANSWER_TIMEOUT, timeout))
            for tp, answered in parts_of(answer):
                coordinator.check(TXN_OFFSET_COMMIT, answered.error_code, f"{subject} in {tp}")

    coordinator.ask(attempt, subject, timeout)


def stage_offsets(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout: float = METADATA_TIMEOUT,
) -> None:
    """Run :func:`add_offsets_to_txn`, then :func:`commit_offsets_in_txn`, within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    add_offsets_to_txn(connections, identity, group, timeout=timeout)
    left = max(deadline - time.monotonic(), 1.0)
    commit_offsets_in_txn(connections, identity, group, offsets, timeout=left)
