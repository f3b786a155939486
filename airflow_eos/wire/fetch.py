"""Reads ``[start, end)`` of one partition, exactly, in bounded memory.

Guarantee: under read_committed it returns exactly the committed records of the range, each once, in order, or
raises an error. The range is complete when the *position* reaches ``end``: control markers, aborted records
and compaction leave gaps, so a reader that counts records would wait forever or stop too late. Offsets are
never reset. The next request is in flight while an answer is decoded; memory is about three answers
(``max_bytes`` each, or one batch if a batch is larger).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.errors import RequestTimedOutError
from kafka.protocol.consumer import FetchRequest

from airflow_eos.exceptions import CorruptBatch, FetchStalled, OffsetsOutOfRange
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.decode import DecodedBatch, decode_batches
from airflow_eos.recordbatch.header import RawBatch, iter_batches
from airflow_eos.recordbatch.isolation import AbortedTransaction, data_batches
from airflow_eos.recordbatch.limits import DEFAULT_LIMITS, DecodeLimits
from airflow_eos.wire.backoff import THROTTLED, Backoff, NotYet, describe, is_transient, translated
from airflow_eos.wire.connection import BrokerConnections, by_topic
from airflow_eos.wire.error_codes import FETCH, Fatal, Retry, reaction
from airflow_eos.wire.offsets import Isolation, list_offsets_async

MAX_BYTES = 4 << 20
"""Bytes per request, fewer after a time-out; an answer is larger only if a single batch is."""
_LEAST_BYTES = 16 << 10
STALL_TIMEOUT = 120.0
"""Seconds without progress after which a read fails."""
_MAX_WAIT_MS = 500
_PUMP_BYTES = 256 << 10
_REQUEST_TURNS = 4  # of the event loop: start the coroutine, queue, wait for the socket, write


@dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """One answer of the leader, not decoded.

    :param position: requested offset; the first batch may begin before it.
    :param next_position: where the next answer begins.
    :param data: record batches as stored in the log; the last one may be truncated.
    :param batches: the whole batches in ``data``, as views.
    :param aborted: aborted transactions that overlap the answer; None under read_uncommitted.
    :param log_start: log start offset; -1 if the leader did not say. The high watermark of an answer is not
        kept: that of a newly elected leader may be too low, where it refuses ListOffsets (KIP-207).
    """

    position: int
    next_position: int
    data: bytes
    batches: tuple[RawBatch, ...]
    aborted: tuple[AbortedTransaction, ...] | None
    log_start: int = -1

    @classmethod
    def of(cls, part: Any, tp: TopicPartition, position: int, isolation: Isolation) -> FetchedAnswer | None:
        """Return a partition's part of a Fetch answer; None if it has no whole batch."""
        batches = tuple(iter_batches(part.records or b"", tp.topic, tp.partition))
        if not batches:
            return None
        aborted = None
        if isolation == "read_committed":
            aborted = tuple((txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ())
        behind = batches[-1].header.next_offset
        return cls(position, behind, part.records, batches, aborted, part.log_start_offset)


def fetch_answers(
    connections: BrokerConnections,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    isolation: Isolation = "read_committed",
    max_bytes: int = MAX_BYTES,
    stall_timeout: float = STALL_TIMEOUT,
    first: FetchedAnswer | None = None,
) -> Iterator[FetchedAnswer]:
    """Yield the answers that cover ``[start, end)``, not decoded.

    The next request is in flight when an answer is yielded.

    :param start: first offset; may be in the middle of a batch.
    :param end: exclusive end offset. If it is above the last stable offset, the read waits up to
        ``stall_timeout`` for it.
    :param max_bytes: bytes per answer.
    :param stall_timeout: seconds without progress until :class:`FetchStalled`. An answer that a quota left
        empty restarts them.
    :param first: the first answer of the range, if it was already fetched.
    :raises OffsetsOutOfRange: the log begins above the position: records have been deleted.
    :raises FetchStalled: names the position and the reason.
    :raises CorruptBatch: names topic, partition and offset.
    :raises UnknownTopic: the topic was deleted.
    :raises AuthorizationFailed: Read on the topic is missing.
    """
    reader = _RangeReader(connections, tp, end, isolation, max_bytes, Backoff(stall_timeout))
    if first is not None and first.position != start:
        raise ValueError(f"{tp}: the first answer begins at {first.position}, not at {start}")
    answer = first
    while True:
        position = start if answer is None else answer.next_position
        coming = connections.spawn(reader.answer_at(position)) if position < end else None
        if answer is not None:
            connections.pump(_REQUEST_TURNS)
            if answer.batches:
                yield answer
        if coming is None:
            return
        # The event loop does not run while the caller processes an answer, which may take minutes. A request
        # that timed out meanwhile is not a stall.
        reader.backoff.extend()
        answer = connections.wait(coming)


def decoded(
    connections: BrokerConnections,
    answers: Iterable[FetchedAnswer],
    start: int,
    end: int,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Iterator[DecodedBatch]:
    """Decode the records of ``[start, end)``; omits batches without a record of the range.

    :param answers: of :func:`fetch_answers`, over the same connections.
    :param limits: limits for decoding a batch.
    """
    unpumped = 0
    for answer in answers:
        visible = data_batches(answer.batches, answer.aborted)
        for batch in decode_batches(visible, start=start, end=end, limits=limits):
            unpumped += batch.value.nbytes
            if unpumped >= _PUMP_BYTES:
                # Drain the socket, so that the broker keeps sending while this answer is decoded.
                unpumped = 0
                connections.pump()
            if len(batch):
                yield batch


@dataclass(slots=True)
class _RangeReader:
    """Fetches one partition's batches from its current leader."""

    connections: BrokerConnections
    tp: TopicPartition
    end: int
    isolation: Isolation
    max_bytes: int
    backoff: Backoff

    async def answer_at(self, position: int) -> FetchedAnswer:
        """Return the answer that begins at ``position``; retries until the stall timeout."""
        backoff = self.backoff = Backoff(self.backoff.timeout)
        while True:
            try:
                return await self._try(position)
            except _Waiting as error:
                last: Exception = error
                pause = 0.0
            except _Throttled as error:
                backoff.extend()
                last, pause = error, backoff.next_pause()
            except NotYet as error:
                last, pause = error, backoff.next_pause()
            except Exception as error:
                if not is_transient(error):
                    raise translated(error, f"reading {self.tp}") from error
                last, pause = error, backoff.next_pause()
                if isinstance(error, RequestTimedOutError):
                    # On a slow network fewer bytes may arrive in time.
                    self.max_bytes = max(self.max_bytes // 4, _LEAST_BYTES)
                self.connections.forget_leader(self.tp.topic)
            if backoff.expired:
                raise FetchStalled(
                    f"reading {self.tp} made no progress at offset {position} (the end is {self.end}) "
                    f"for {backoff.timeout:.0f} s; last: {describe(last)}"
                ) from last
            backoff.tell(f"reading {self.tp} at offset {position}", last)
            await self.connections.pause(pause)

    async def _try(self, position: int) -> FetchedAnswer:
        tp = self.tp
        node = await self.connections.leader_async(tp.topic, tp.partition, timeout=self.backoff.left)
        request = fetch_request(
            {tp: position}, isolation=self.isolation, max_bytes=self.max_bytes, max_wait_ms=_MAX_WAIT_MS
        )
        answer = await self.connections.send(request, node, timeout=self.connections.request_timeout)
        part = answer.responses[0].partitions[0] if answer.responses and not answer.error_code else None
        code = answer.error_code if part is None else part.error_code
        if code == 1:
            await self._out_of_range(position)
        if code:
            self._raise_for(code)
        if part is None:  # the answer to a client that has used up its quota
            raise _Throttled(THROTTLED)
        if part.log_start_offset > position:
            raise self._deleted(position, part.log_start_offset)
        fetched = FetchedAnswer.of(part, tp, position, self.isolation)
        if fetched is None:
            return await self._empty_answer(position, answer, part)
        if fetched.next_position <= position:
            raise CorruptBatch(
                f"{tp} was asked for offset {position}, the answer ends before {fetched.next_position}"
            )
        return fetched

    async def _empty_answer(self, position: int, answer: Any, part: Any) -> FetchedAnswer:
        """Interpret an empty answer: not yet readable, or compaction has removed the rest of the range."""
        committed = self.isolation == "read_committed"
        bound = part.last_stable_offset if committed else part.high_watermark
        if part.records:
            raise CorruptBatch(f"{self.tp} at offset {position}: an answer without one whole batch")
        if bound < self.end:
            why = f"the last stable offset (an open transaction holds it) is {bound}"
            if part.high_watermark < self.end:
                why = (
                    f"the high watermark is {part.high_watermark} (the topic was recreated or lost its end, "
                    "or a new leader is behind)"
                )
            raise _Waiting(f"{why}, below the end of the range")
        if answer.throttle_time_ms:
            raise _Throttled(THROTTLED)
        # A broker that reads from remote storage may return an empty answer although records exist (KIP-405).
        # From the local log, an empty answer below the bound means that all batches up to the end were
        # compacted away.
        local = await list_offsets_async(self.connections, [self.tp], "earliest_local")
        if local[self.tp] > position:
            raise _Waiting("the broker reads from remote storage")
        return FetchedAnswer(position, self.end, b"", (), None)

    async def _out_of_range(self, position: int) -> None:
        """Raise for the bound that the position is beyond; retry if none, because the leader may be new."""
        begin = (await list_offsets_async(self.connections, [self.tp], "earliest"))[self.tp]
        if begin > position:
            raise self._deleted(position, begin)
        latest = await list_offsets_async(self.connections, [self.tp], "latest", isolation="read_uncommitted")
        if latest[self.tp] < position:
            raise OffsetsOutOfRange(
                f"{self.tp} ends at offset {latest[self.tp]}, below the requested {position}: the "
                "topic was recreated, or lost its end; compare its topic id with the plan's"
            )
        self.connections.forget_leader(self.tp.topic)
        raise NotYet("OFFSET_OUT_OF_RANGE of an offset that is in range")

    def _deleted(self, position: int, log_start: int) -> OffsetsOutOfRange:
        return OffsetsOutOfRange(
            f"{self.tp} begins at offset {log_start}, above the requested {position}: the records "
            "between are deleted (retention, or DeleteRecords); nothing was skipped"
        )

    def _raise_for(self, code: int) -> None:
        decision = reaction(FETCH, code)
        if isinstance(decision, Fatal):
            raise decision.error(f"reading {self.tp}: {decision.meaning}")
        if isinstance(decision, Retry) and decision.refresh:
            self.connections.forget_leader(self.tp.topic)
        raise NotYet(decision.meaning)


def fetch_request(
    positions: Mapping[TopicPartition, int], *, isolation: Isolation, max_bytes: int, max_wait_ms: int
) -> Any:
    """Return the request for the batches at these offsets.

    :param max_bytes: per partition, and of the answer; an answer has at least one whole batch (KIP-74).
    :param max_wait_ms: how long the broker waits for the first byte.
    """
    topic_class = FetchRequest.FetchTopic

    def part(tp: TopicPartition) -> Any:
        return topic_class.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=-1,
            fetch_offset=positions[tp],
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )

    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(isolation == "read_committed"),
        session_id=0,
        session_epoch=-1,
        topics=by_topic(positions, lambda topic, parts: topic_class(topic=topic, partitions=parts), part),
        forgotten_topics_data=[],
        # The first version that returns zstd batches, and the last one in which a leader names no follower to
        # read from instead, with an empty answer (KIP-392): a replica.selector.class decides.
        min_version=10,
        max_version=10,
    )


class _Waiting(NotYet):
    """The broker has no readable records at the position yet; it waited for them (max_wait_ms) already."""


class _Throttled(NotYet):
    """A quota left the answer empty: the readers that share it take turns, as long as the broker answers."""
