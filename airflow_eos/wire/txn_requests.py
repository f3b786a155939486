"""Transaction requests under the executors' producer id and epoch, and the brokers' view of transactions.

They bypass librdkafka, which sends EndTxn only if it has written something itself: otherwise its abort
"succeeds" without a request to the broker. They bypass kafka-python's admin client, which fails at the first
dead broker. All retry until ``timeout``, because coordinators move, leaders change, and markers of the
previous transaction may still be written; then they raise BrokersUnavailable with the last answer. Versions
stay at 3 and below, as in librdkafka's transaction protocol (KIP-890 bumps the epoch from version 5 on).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.model.kafka import (
    ActiveProducer,
    EndTxnAnswer,
    ProducerIdentity,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.backoff import NotYet
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections, by_topic, parts_of
from airflow_eos.wire.coordinators import Coordinator
from airflow_eos.wire.error_codes import ADD_PARTITIONS, COORDINATOR, PRODUCERS, TXN_MARKERS
from airflow_eos.wire.leaders import ask_leaders

_MAX_VERSION = 3
_TRANSACTIONAL_ID_NOT_FOUND = 105
_NOT_ATTEMPTED = 55
_CONCURRENT_TRANSACTIONS = 51
_NO_PRODUCER = -1
_TOUCH_VERSION = 4
_TOUCH_TIMEOUT_MS = 1000  # no transaction begins under it, but brokers refuse values below 1

_END_CODES = {
    0: EndTxnAnswer.ENDED,
    47: EndTxnAnswer.FENCED,
    48: EndTxnAnswer.NOTHING_OPEN,
    49: EndTxnAnswer.FENCED,
    90: EndTxnAnswer.FENCED,
}


def add_partitions_to_txn(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    partitions: Collection[TopicPartition],
    *,
    timeout: float = METADATA_TIMEOUT,
) -> None:
    """Add all partitions to the transaction in one request, before any writer starts; idempotent.

    :raises ProducerFenced: a newer attempt exists.
    :raises AuthorizationFailed: names the topic or the transactional id.
    """
    coordinator = Coordinator(connections, "transaction", identity.transactional_id)
    topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=by_topic(
            partitions, lambda name, numbers: topic_class(name=name, partitions=numbers)
        ),
        max_version=_MAX_VERSION,
    )

    async def attempt(node: int) -> None:
        answer = await connections.send(request, node)
        refused = [
            (part.partition_error_code, TopicPartition(topic.name, part.partition_index))
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
            if part.partition_error_code
        ]
        # 55 means that another partition was refused; report that partition first.
        for code, tp in sorted(refused, key=lambda pair: pair[0] == _NOT_ATTEMPTED):
            coordinator.refuse(ADD_PARTITIONS, code, f"adding {tp} to the transaction")

    if partitions:
        subject = f"adding {len(partitions)} partitions to the transaction of {identity.transactional_id!r}"
        coordinator.ask(attempt, subject, timeout)


def end_txn(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    *,
    commit: bool,
    timeout: float = METADATA_TIMEOUT,
) -> EndTxnAnswer:
    """End the transaction of exactly this producer id and epoch; never sends InitProducerId.

    :param commit: production code only aborts (False) this way; the driver's own producer commits.
    :raises AuthorizationFailed: names the transactional id.
    :raises BrokersUnavailable: no answer within ``timeout`` seconds; the outcome is unknown.
    """
    subject = f"EndTxn({'commit' if commit else 'abort'}) of {identity.transactional_id!r}"
    coordinator = Coordinator(connections, "transaction", identity.transactional_id)

    async def attempt(node: int) -> EndTxnAnswer:
        request = EndTxnRequest(**identity.to_dict(), committed=commit, max_version=_MAX_VERSION)
        answer = await connections.send(request, node)
        result = _END_CODES.get(answer.error_code)
        if result is None:
            coordinator.refuse(COORDINATOR, answer.error_code, subject)
        return result

    return coordinator.ask(attempt, subject, timeout)


def touch_transactional_id(
    connections: BrokerConnections, transactional_id: str, *, timeout: float = METADATA_TIMEOUT
) -> None:
    """Initialise an id that no producer uses, which restarts ``transactional.id.expiration.ms``.

    :raises AuthorizationFailed: Write on the transactional id is missing.
    """
    subject = f"InitProducerId of {transactional_id!r}"
    coordinator = Coordinator(connections, "transaction", transactional_id)

    async def attempt(node: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=_TOUCH_TIMEOUT_MS,
            producer_id=_NO_PRODUCER,
            producer_epoch=_NO_PRODUCER,
            max_version=_TOUCH_VERSION,
        )
        answer = await connections.send(request, node)
        if answer.error_code not in (0, _CONCURRENT_TRANSACTIONS):  # another process is initialising it
            coordinator.refuse(COORDINATOR, answer.error_code, subject)

    coordinator.ask(attempt, subject, timeout)


def describe_transaction(
    connections: BrokerConnections, transactional_id: str
) -> TransactionDescription | None:
    """Return the coordinator's view of an id; None if it does not know the id.

    :raises AuthorizationFailed: names the transactional id.
    """
    subject = f"describing transaction {transactional_id!r}"
    coordinator = Coordinator(connections, "transaction", transactional_id)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    async def attempt(node: int) -> TransactionDescription | None:
        state = (await connections.send(request, node)).transaction_states[0]
        if state.error_code == _TRANSACTIONAL_ID_NOT_FOUND:
            return None
        coordinator.check(COORDINATOR, state.error_code, subject)
        return TransactionDescription(
            state=TransactionState(state.transaction_state),
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            partitions=frozenset(
                TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions
            ),
            timeout_ms=state.transaction_timeout_ms,
            start_ms=state.transaction_start_time_ms,
        )

    return coordinator.ask(attempt, subject, METADATA_TIMEOUT)


def list_transactions(connections: BrokerConnections, producer_ids: Collection[int]) -> dict[int, str]:
    """Return the transactional id of each producer id that a coordinator knows (ListTransactions, KIP-664).

    Omits ids that this principal may not Describe.
    """
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=sorted(set(producer_ids)), max_version=0
    )
    entries = _listed(connections, request)
    return {entry.producer_id: entry.transactional_id for entry in entries}


def open_transactional_ids(connections: BrokerConnections) -> list[str]:
    """Return the transactional ids of all open transactions, sorted (ListTransactions, KIP-664)."""
    states = ["Ongoing", "PrepareCommit", "PrepareAbort"]
    request = ListTransactionsRequest(state_filters=states, producer_id_filters=[], max_version=0)
    return sorted({entry.transactional_id for entry in _listed(connections, request)})


def _listed(connections: BrokerConnections, request: Any) -> list[Any]:
    """Return the entries of all brokers: each lists the ids that it coordinates."""

    async def list_on(node: int) -> Any:
        answer = await connections.send(request, node)
        if answer.error_code:
            raise NotYet(f"listing transactions of broker {node}: error code {answer.error_code}")
        return answer.transaction_states

    entries: list[Any] = []
    for node in connections.brokers():
        subject, once = f"listing transactions of broker {node}", partial(list_on, node)
        entries += connections.run(connections.retry_async(once, subject=subject, timeout=METADATA_TIMEOUT))
    return entries


def describe_producers(
    connections: BrokerConnections, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
    """Return the producers that each leader knows (DescribeProducers, KIP-664); one request per broker.

    Leaders list the older epoch of a producer id until the new epoch writes to the partition.

    :raises UnknownTopic: names the topic or partition.
    :raises AuthorizationFailed: Read on the topic is missing.
    """
    return connections.run(
        ask_leaders(
            connections,
            partitions,
            _producers_request,
            lambda part: tuple(map(_producer, part.active_producers)),
            subject="producers",
            table=PRODUCERS,
        )
    )


def write_txn_markers(
    connections: BrokerConnections,
    producer_id: int,
    epoch: int,
    partitions: Collection[TopicPartition],
    *,
    commit: bool,
) -> None:
    """Make leaders write the markers that a coordinator omitted (WriteTxnMarkers, as KIP-664's tool does).

    Leaders refuse a coordinator epoch below that of the producer id's last marker.

    :param epoch: producer epoch of the open transaction; a leader refuses it if a newer one has written
        since.
    :raises AuthorizationFailed: ClusterAction, or Alter, on the cluster is missing; or Read on the topic,
        without which the coordinator epoch is unknown.
    """
    if not partitions:
        return
    coordinator_epoch = 0  # if there was no marker
    for tp in partitions:
        with suppress(AuthorizationFailed):  # another partition may have the same epoch
            for producer in describe_producers(connections, [tp])[tp]:
                if producer.producer_id == producer_id:
                    coordinator_epoch = max(coordinator_epoch, producer.coordinator_epoch)

    def request(group: Collection[TopicPartition]) -> Any:
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic_class = marker.WritableTxnMarkerTopic
        return WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transaction_result=commit,
                    topics=by_topic(
                        group, lambda name, numbers: topic_class(name=name, partition_indexes=numbers)
                    ),
                    coordinator_epoch=coordinator_epoch,
                )
            ],
            max_version=1,
        )

    connections.run(
        ask_leaders(
            connections,
            partitions,
            request,
            lambda _: None,
            subject="transaction markers",
            table=TXN_MARKERS,
            read=lambda answer: parts_of(answer.markers[0]),
        )
    )


def _producers_request(partitions: Collection[TopicPartition]) -> Any:
    topic_class = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=by_topic(partitions, lambda name, numbers: topic_class(name=name, partition_indexes=numbers))
    )


def _producer(entry: Any) -> ActiveProducer:
    return ActiveProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        current_txn_start_offset=entry.current_txn_start_offset,
        coordinator_epoch=entry.coordinator_epoch,
    )
