"""The produce state of one partition: which batch may be sent now, and the effect of answers. No network.

The rules (KIP-98, KIP-679, and measurements: see :mod:`airflow_eos.wire.produce`):

- The first batch of a partition must be acknowledged before the second one is sent; then up to five are in
  flight, because a broker keeps the last five batches to detect duplicates. Across a restart it keeps only
  the last one: if more than one batch was unanswered, "out of order" then ends the attempt.
- A retry sends the same bytes with the same sequence.
- Only the error of the first unacknowledged batch counts: "out of order" after a failed batch is expected.
- After a failure no batch is retried before every batch in flight has an answer; then one batch is sent
  alone.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from airflow_eos.exceptions import DeliveryTimedOut, DuplicateReceipt, ProtocolViolation
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import NO_OFFSET, PartitionReceipt
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import HEADER_BYTES, BatchHeader
from airflow_eos.recordbatch.stamp import next_sequence, stamp
from airflow_eos.wire.backoff import pause_after
from airflow_eos.wire.error_codes import Fatal, Reaction

MAX_IN_FLIGHT = 5
"""Unacknowledged batches of one partition; brokers keep the last five (``ProducerStateEntry``)."""


class BatchState(enum.Enum):
    """Delivery state of a batch."""

    WAITING = "waiting"
    """Stamped, to be sent or sent again."""
    IN_FLIGHT = "in flight"
    ACKED = "acked"
    """Acknowledged, while an earlier batch is not."""
    FAILED = "failed"
    """Answered with an error, which counts once all earlier batches are acknowledged."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The broker wrote the batch, now or at an earlier try."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The broker, or the connection, refused the batch.

    :param reaction: whether to retry or to stop.
    :param text: for messages.
    """

    reaction: Reaction
    text: str


@dataclass(slots=True)
class Batch:
    """A stamped batch of the window."""

    base_sequence: int
    records: int
    data: bytes
    state: BatchState = BatchState.WAITING
    base_offset: int = NO_OFFSET
    refusal: Refusal | None = None


@dataclass(slots=True)
class PartitionQueue:
    """Stamps and orders the batches of one partition.

    :param tp: the partition.
    :param identity: the producer.
    :param source: pairs of record count and sealed batch, in order; read only when the window has room.
    :param end_before: end offset (read_uncommitted) before the first send; an acknowledgement below it
        belongs to another attempt.
    :param delivery_timeout: seconds for the first unacknowledged batch, from the first try to send it.
    :ivar receipt: of the batches acknowledged in order so far.
    """

    tp: TopicPartition
    identity: ProducerIdentity
    source: Iterator[tuple[int, bytes]]
    end_before: int
    delivery_timeout: float
    _window: deque[Batch] = field(default_factory=deque)
    _next_sequence: int = 0
    _exhausted: bool = False
    _proven: bool = False
    _failures: int = 0
    _trying_since: float | None = None
    pause_until: float = 0.0
    last_error: str = "no answer yet"
    receipt: PartitionReceipt = field(init=False)

    def __post_init__(self) -> None:
        self.receipt = PartitionReceipt(
            self.tp.topic,
            self.tp.partition,
            NO_OFFSET,
            NO_OFFSET,
            records=0,
            size=0,
            batches=0,
            last_sequence=NO_OFFSET,
        )

    @property
    def finished(self) -> bool:
        """Whether every batch of the source is acknowledged."""
        return not self._window and self._take_next() is None

    def next_batch(self, now: float) -> Batch | None:
        """Return the batch that may be sent now, if any; it stays WAITING until :meth:`sent`."""
        if now < self.pause_until:
            return None
        in_flight = sum(batch.state is BatchState.IN_FLIGHT for batch in self._window)
        if in_flight and not self._proven:
            return None
        for batch in self._window:
            if batch.state is BatchState.FAILED:
                return None  # its error must be decided first
            if batch.state is BatchState.WAITING:
                return batch
        if len(self._window) >= (MAX_IN_FLIGHT if self._proven else 1):
            return None
        return self._take_next()

    def sent(self, batch: Batch, now: float) -> None:
        """Record that the batch returned by :meth:`next_batch` was sent."""
        batch.state = BatchState.IN_FLIGHT
        if self._trying_since is None:
            self._trying_since = now

    @property
    def give_up_at(self) -> float | None:
        """When the delivery timeout of the first unacknowledged batch is over; None if none was tried."""
        return None if self._trying_since is None else self._trying_since + self.delivery_timeout

    def check_time(self, now: float) -> None:
        """Give up a batch that was not acknowledged in time.

        :raises DeliveryTimedOut: after the delivery timeout.
        """
        if self.give_up_at is not None and now >= self.give_up_at:
            raise DeliveryTimedOut(
                f"{self.tp}: a batch was not acknowledged within {self.delivery_timeout:.0f} s "
                f"(delivery time-out); {self.receipt.records} records before it were; last: "
                f"{self.last_error}"
            )

    def no_leader(self, now: float) -> None:
        """Record that the partition has no leader.

        :raises DeliveryTimedOut: after the delivery timeout.
        """
        if self._trying_since is None:
            self._trying_since = now
        self._retry_later(now, "the partition has no leader")

    def settle(self, batch: Batch, answer: Ack | Refusal, now: float) -> None:
        """Apply an answer to a batch in flight.

        :raises SendError: the error that the table has for the first unacknowledged batch.
        :raises DuplicateReceipt: the acknowledged offset cannot belong to this batch.
        """
        if isinstance(answer, Ack):
            batch.state, batch.base_offset, batch.refusal = BatchState.ACKED, answer.base_offset, None
        else:
            batch.state, batch.refusal = BatchState.FAILED, answer
        while self._window and self._window[0].state is BatchState.ACKED:
            self._accept(self._window.popleft(), now)
        if self._window and self._window[0].state is BatchState.FAILED:
            self._decide(now)

    def _accept(self, batch: Batch, now: float) -> None:
        written = self.receipt
        if batch.base_offset < self.end_before:
            raise DuplicateReceipt(
                f"{self.tp}: the batch with sequence {batch.base_sequence} was acknowledged at offset "
                f"{batch.base_offset}, below {self.end_before} where the log ended before this task began: "
                "it is another attempt's batch, ours is not written. The run must abort and take a new epoch"
            )
        if batch.base_offset <= written.last_offset:
            raise DuplicateReceipt(
                f"{self.tp}: the batch with sequence {batch.base_sequence} was acknowledged at offset "
                f"{batch.base_offset}, not behind {written.last_offset} of the batch before it: another "
                "attempt writes in the same epoch. The run must abort and take a new epoch"
            )
        self.receipt = replace(
            written,
            first_offset=written.first_offset if written.batches else batch.base_offset,
            last_offset=batch.base_offset + batch.records - 1,
            records=written.records + batch.records,
            size=written.size + len(batch.data),
            batches=written.batches + 1,
            last_sequence=next_sequence(batch.base_sequence, batch.records - 1),
        )
        self._proven = True
        self._failures = 0
        self._trying_since = now if self._window else None

    def _decide(self, now: float) -> None:
        first = self._window[0]
        assert first.refusal is not None
        decision = first.refusal.reaction
        if isinstance(decision, Fatal):
            raise decision.error(
                f"writing {self.tp} (sequence {first.base_sequence}, {first.records} records, "
                f"{len(first.data)} bytes): {first.refusal.text}"
            )
        if any(batch.state is BatchState.IN_FLIGHT for batch in self._window):
            return
        for batch in self._window:
            if batch.state is BatchState.FAILED:
                batch.state = BatchState.WAITING
        self._proven = False
        self._retry_later(now, first.refusal.text)

    def _retry_later(self, now: float, text: str) -> None:
        self.last_error = text
        self.check_time(now)
        self.pause_until = now + pause_after(self._failures)
        self._failures += 1

    def _take_next(self) -> Batch | None:
        """Stamp the next batch of the source and add it to the window."""
        if self._exhausted:
            return None
        try:
            records, sealed = next(self.source)
        except StopIteration:
            self._exhausted = True
            return None
        self._check(records, sealed)
        identity = self.identity
        data = stamp(sealed, identity.producer_id, identity.producer_epoch, self._next_sequence)
        batch = Batch(self._next_sequence, records, data)
        self._next_sequence = next_sequence(self._next_sequence, records)
        self._window.append(batch)
        return batch

    def _check(self, records: int, sealed: bytes) -> None:
        header = BatchHeader.unpack(sealed) if len(sealed) >= HEADER_BYTES else None
        if (
            header is None
            or not (header.record_count == records == header.last_offset_delta + 1)
            or not records
        ):
            raise ProtocolViolation(
                f"{self.tp}: a sealed batch of {len(sealed)} bytes does not hold "
                f"the {records} records it should"
            )
