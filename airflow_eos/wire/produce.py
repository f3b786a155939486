"""Writes sealed batches to their partitions inside an open transaction, for one owner task.

Guarantee: on return every batch is in the log once, in the given order, acknowledged by all in-sync replicas,
and the receipts give the offsets. After an exception some batches may be in the log: the transaction must
abort. A call must not be repeated in the same producer epoch: a broker acknowledges a known sequence without
comparing the content.

Mechanism: sequences start at 0, so the caller must own these partitions in this epoch. One request per broker
carries one batch for each of its partitions. The first batches of all partitions share a request, because a
broker verifies with the coordinator that a partition is in the transaction, and parallel verifications
collide. Retries send the same bytes. See :mod:`airflow_eos.wire.partition_queue` for the order within a
partition and :data:`airflow_eos.wire.error_codes.PRODUCE` for the reactions to errors. Produce stays at
versions 9 to 11: from version 12 on a broker adds partitions to the transaction implicitly (KIP-890).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.protocol.producer import ProduceRequest

from airflow_eos.exceptions import DecodeError, DeliveryTimedOut, EosError, RecordRefused, RecordTooLarge
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.wire.backoff import THROTTLED, describe, is_transient, translated
from airflow_eos.wire.connection import BrokerConnections, by_topic
from airflow_eos.wire.error_codes import BATCH_TOO_LARGE, PRODUCE, Fatal, Retry, reaction
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.partition_queue import Ack, Batch, PartitionQueue, Refusal

DELIVERY_TIMEOUT = 120.0
"""Seconds until a batch must be acknowledged."""
MAX_REQUEST_BYTES = 4 << 20
"""Record bytes in one request; a single batch may be larger."""
MAX_BYTES_IN_FLIGHT = 16 << 20
"""Unanswered record bytes over all brokers; bounds the memory of the task."""
MAX_REQUESTS_PER_BROKER = 5
_MIN_VERSION, _MAX_VERSION = 9, 11
_NAMED, _KEY_BYTES = 3, 100  # of refused records, in messages
_LEAST_WAIT = 1.0  # seconds to wait for any answer before an overdue batch is given up
# The broker should answer before the client's own timeout, which would close the connection.
_BROKER_TIMEOUT_SHARE = 0.8


def send_partitions(
    connections: BrokerConnections,
    identity: ProducerIdentity,
    batches: Mapping[TopicPartition, Iterable[tuple[int, bytes]]],
    *,
    delivery_timeout: float = DELIVERY_TIMEOUT,
    timeout: float | None = None,
) -> list[PartitionReceipt]:
    """Send all batches; return one receipt per partition, sorted, including partitions without batches.

    :param identity: the producer; the partitions must already be in its transaction.
    :param batches: (record count, sealed batch) per partition, in order; iterators are read only as fast as
        batches are sent.
    :param delivery_timeout: seconds per batch, from the first try.
    :param timeout: seconds for the whole call; None for no limit.
    :raises UnknownTopic: a topic or partition does not exist; nothing was sent.
    :raises BrokersUnavailable: the end offsets could not be read; nothing was sent.
    :raises ProducerFenced: a newer attempt exists, or the transaction timed out.
    :raises DeliveryTimedOut: names the partition and the last error.
    :raises DuplicateReceipt: another attempt wrote in the same epoch.
    :raises RecordRefused: the topic's settings refuse a record, for example because of its size.
    :raises SinkChanged: they refuse a batch whose records may fit into smaller ones.
    :raises AuthorizationFailed: names what to grant.
    :raises ProtocolViolation: the broker's answer violates the protocol; the run must abort.
    """
    started = time.monotonic()
    # The end covers replicated data only: the last writes of an earlier attempt may be above it. Exactness
    # relies on the rule of one attempt per epoch; this check detects most violations of that rule.
    ends = list_offsets(
        connections,
        list(batches),
        "latest",
        isolation="read_uncommitted",
        timeout=delivery_timeout if timeout is None else min(timeout, delivery_timeout),
    )
    queues = [
        PartitionQueue(tp, identity, iter(source), ends[tp], delivery_timeout)
        for tp, source in sorted(batches.items())
    ]
    topics = {tp.topic for tp in batches}
    deadline = None if timeout is None else started + timeout
    dispatcher = _Dispatcher(connections, identity.transactional_id, deque(queues), topics, deadline)
    connections.run(dispatcher.run())
    return [queue.receipt for queue in queues]


_Load = list[tuple[PartitionQueue, Batch]]


@dataclass(eq=False)
class _Dispatcher:
    """Packs batches of many queues into requests, broker by broker, until every queue is finished."""

    connections: BrokerConnections
    transactional_id: str
    queues: deque[PartitionQueue]
    topics: Collection[str]
    deadline: float | None
    _answered: deque[tuple[_Load, Future]] = field(default_factory=deque, init=False)
    _requests: Counter[int] = field(default_factory=Counter, init=False)
    _bytes: int = field(default=0, init=False)
    _refreshing: bool = field(default=False, init=False)
    _refresh_error: EosError | None = field(default=None, init=False)
    _wake: Future = field(default_factory=Future, init=False)

    async def run(self) -> None:
        """Send until all queues are finished; the first fatal answer stops all queues."""
        try:
            await self._run()
        except BaseException:
            # Queued bytes must not reach a broker after this run has failed.
            for node in self._requests:
                self.connections.hang_up(node)
            raise

    async def _run(self) -> None:
        while True:
            while self._answered:
                self._settle(*self._answered.popleft())
            if self._refresh_error is not None:
                raise self._refresh_error
            self.queues = deque(queue for queue in self.queues if not queue.finished)
            if not self.queues:
                return
            now = time.monotonic()
            if self.deadline is not None and now >= self.deadline:
                raise self._too_late()
            while load := self._next_load(now):
                self._dispatch(load, now)
            await self._wait_for_event(now)

    def _too_late(self) -> DeliveryTimedOut:
        queue = self.queues[0]
        why = f"{THROTTLED}, or {queue.last_error}" if self.connections.throttled else queue.last_error
        return DeliveryTimedOut(
            f"the task's time is over with {len(self.queues)} partitions unfinished, among them "
            f"{queue.tp}: {why}. Give the transaction more time, or write fewer records a run"
        )

    # -- sending ------------------------------------------------------------------------------------------

    def _next_load(self, now: float) -> _Load:
        """Return batches for one request to one broker, or nothing; queues take turns."""
        load: _Load = []
        size = 0
        node: int | None = None
        for queue in self.queues:
            batch = queue.next_batch(now)
            if batch is None:
                continue
            leader = self.connections.leader(queue.tp.topic, queue.tp.partition)
            if leader is None:
                queue.no_leader(now)
                self._refresh()
                continue
            if (
                leader != (leader if node is None else node)
                or self._requests[leader] >= MAX_REQUESTS_PER_BROKER
            ):
                continue
            if load and size + len(batch.data) > MAX_REQUEST_BYTES:
                break
            if self._bytes + size and self._bytes + size + len(batch.data) > MAX_BYTES_IN_FLIGHT:
                break
            node = leader
            size += len(batch.data)
            load.append((queue, batch))
        return load

    def _dispatch(self, load: _Load, now: float) -> None:
        first = load[0][0].tp
        node = self.connections.leader(first.topic, first.partition)
        assert node is not None
        size = 0
        for queue, batch in load:
            queue.sent(batch, now)
            size += len(batch.data)
            # Round-robin: move the queue to the end for the next request.
            self.queues.remove(queue)
            self.queues.append(queue)
        self._requests[node] += 1
        self._bytes += size
        future = self.connections.send(self._request(load), node, timeout=self.connections.request_timeout)

        def answered(_: Any) -> None:
            self._requests[node] -= 1
            self._bytes -= size
            self._answered.append((load, future))
            self._wake_up()

        future.add_both(answered)

    def _request(self, load: _Load) -> Any:
        topic_class = ProduceRequest.TopicProduceData
        records = {queue.tp: batch.data for queue, batch in load}

        def part(tp: TopicPartition) -> Any:
            return topic_class.PartitionProduceData(index=tp.partition, records=records[tp])

        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=int(self.connections.request_timeout * 1000 * _BROKER_TIMEOUT_SHARE),
            topic_data=by_topic(
                records, lambda name, parts: topic_class(name=name, partition_data=parts), part
            ),
            min_version=_MIN_VERSION,
            max_version=_MAX_VERSION,
        )

    # -- answers ------------------------------------------------------------------------------------------

    def _settle(self, load: _Load, future: Future) -> None:
        now = time.monotonic()
        if future.exception is not None:
            error = future.exception
            if not is_transient(error):
                raise translated(error, f"writing {load[0][0].tp}") from error
            refusal = Refusal(Retry("connection", refresh=True), describe(error))
            self._refresh()
            for queue, batch in load:
                queue.settle(batch, refusal, now)
            return
        answers = {
            (topic.name, part.index): part
            for topic in future.value.responses
            for part in topic.partition_responses
        }
        for queue, batch in load:
            answer = self._answer(answers.get((queue.tp.topic, queue.tp.partition)), queue.tp, batch)
            queue.settle(batch, answer, now)

    def _answer(self, part: Any, tp: TopicPartition, batch: Batch) -> Ack | Refusal:
        if part is None:
            return Refusal(Retry("no answer"), "the broker's answer does not name the partition")
        if part.error_code == 0:
            return Ack(part.base_offset)
        decision = reaction(PRODUCE, part.error_code)
        if isinstance(decision, Fatal) and decision.error is RecordTooLarge and batch.records > 1:
            decision = BATCH_TOO_LARGE
        if isinstance(decision, Retry) and decision.refresh:
            self._refresh()
        name = kafka_errors.for_code(part.error_code).__name__
        broker_message = f"; the broker says: {part.error_message}" if part.error_message else ""
        if isinstance(decision, Fatal) and issubclass(decision.error, RecordRefused):
            broker_message += refused_records(
                tp,
                batch.data,
                [record_error.batch_index for record_error in getattr(part, "record_errors", None) or ()],
            )
        return Refusal(decision, f"error {part.error_code} ({name}), {decision.meaning}{broker_message}")

    # -- waiting ------------------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        if not self._wake.is_done:
            self._wake.success(None)

    async def _wait_for_event(self, now: float) -> None:
        """Wait for an answer, new leaders, the end of a pause, of a delivery timeout, or the deadline."""
        if self._answered:
            return
        self._wake = Future()
        times = [queue.pause_until for queue in self.queues if queue.pause_until > now]
        # A broker gets some time to answer, however long the sources took.
        overdue = time.monotonic() + _LEAST_WAIT
        times += [max(queue.give_up_at, overdue) for queue in self.queues if queue.give_up_at is not None]
        if self.deadline is not None:
            times.append(self.deadline)
        cancel = self.connections.wake_later(max(0.0, min(times) - now), self._wake) if times else None
        await self._wake
        if cancel is not None:
            cancel()
        woken = time.monotonic()
        if not self._answered and woken >= overdue:
            for queue in self.queues:
                queue.check_time(woken)

    def _refresh(self) -> None:
        """Refresh leaders in the background, so that a broker that hangs does not delay the others."""
        if self._refreshing:
            return
        self._refreshing = True

        async def refresh() -> None:
            try:
                await self.connections.refresh_async(self.topics)
            except EosError as error:
                self._refresh_error = error
            finally:
                self._refreshing = False
                self._wake_up()

        self.connections.spawn(refresh())


def refused_records(tp: TopicPartition, data: bytes, indices: Sequence[int]) -> str:
    """Return key and timestamp of the first refused records (KIP-467) for a message; empty if unknown.

    :param indices: indexes of the refused records in the batch (``batch_index`` of the answer).
    """
    try:
        (raw,) = iter_batches(data, tp.topic, tp.partition)
        records = decode_batch(raw, check_crc=False, headers=False)
    except (DecodeError, ValueError):
        return ""
    named = [
        f"record {index} with key {str(records.key[index].as_py())[:_KEY_BYTES]} and timestamp "
        f"{records.timestamp[index]} ms"
        for index in indices[:_NAMED]
        if 0 <= index < len(records)
    ]
    if len(indices) > len(named) > 0:
        named.append(f"{len(indices) - len(named)} more")
    return f"; refused of the batch: {', '.join(named)}" if named else ""
