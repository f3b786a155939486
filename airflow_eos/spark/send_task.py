"""The send task: writes the sealed batches of its partitions under the run's producer identity.

Law 1: never a second attempt within one epoch. A broker acknowledges a batch with a known sequence without
comparing the content, so a retried or speculated task writes nothing. For the same reason a failed first
attempt does not raise (Spark would start another one): its error is a row of the result.

A block may be on two executors with rows of different seal attempts, if the seal stage was partly repeated
while blocks were materialised: the manifest may read one copy and the send the other, with equal counts.
Rows of other attempts than the manifest's are therefore refused.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import (
    DuplicateReceipt,
    EosError,
    ProducerFenced,
    ProtocolViolation,
    SealedBlockLost,
    SecondAttempt,
    SendError,
)
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.spark.errors import ErrorMark, error_from_dict, error_to_dict
from airflow_eos.spark.running_task import running_task, tidy
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions

ANSWER_DDL = "answer string"
_ANSWER = pa.schema([("answer", pa.string())])
SECOND_ATTEMPT_WAIT = 30.0
"""Seconds a speculative copy waits on Spark Connect, which cannot tell a lost attempt from a slow one."""
STREAM_ORDER = ("topic", "partition", "seal_partition", "seq")
"""Columns by which Spark sorts an owner's rows if they do not fit in memory."""
_BOOTSTRAP_TIMEOUT = 60.0
_COLUMNS = ("topic", "partition", "seal_partition", "attempt_id", "seq", "records")


@dataclass(frozen=True, slots=True)
class SendTask:
    """The function that ``mapInArrow`` calls in every send task; pickled with the plan and credentials.

    :param expected: (batches, records) per target partition, from the manifest.
    :param attempts: attempt per seal task, from the manifest.
    :param timeout: seconds from the task's start, because clocks of hosts differ. The driver cancels tasks
        that start late.
    :param second_attempt_wait: seconds a second attempt waits to be killed before it fails; Spark starts a
        few more, one after the other.
    :param streamed: rows come in :data:`STREAM_ORDER`: send partition after partition, in constant memory.
    """

    config: ClientConfig = field(repr=False)
    identity: ProducerIdentity
    expected: Mapping[TopicPartition, tuple[int, int]]
    attempts: Mapping[int, int]
    delivery_timeout: float
    timeout: float
    streamed: bool = False
    second_attempt_wait: float = SECOND_ATTEMPT_WAIT
    mark: ErrorMark = field(default_factory=ErrorMark)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per receipt, or one row with the error."""
        context = running_task()
        if context.attemptNumber() > 0:
            with self.mark.errors():
                wait = min(self.second_attempt_wait, self.timeout)
                refuse_second_attempt(context.partitionId(), context.attemptNumber(), wait)
        try:
            answers = [json.dumps({"receipt": r.to_dict()}) for r in self.send(batches)]
        except EosError as error:
            answers = [json.dumps({"error": error_to_dict(error)})]
        except Exception as error:  # noqa: BLE001 - a raise would make Spark start a second attempt
            place = f"send task {context.partitionId()} on {socket.gethostname()}"
            text = f"{type(error).__name__}: {error} ({place})"
            answers = [json.dumps({"error": error_to_dict(SendError(text))})]
        if answers:
            yield pa.RecordBatch.from_arrays([pa.array(answers, pa.string())], schema=_ANSWER)
        tidy()

    def send(self, batches: Iterable[pa.RecordBatch]) -> list[PartitionReceipt]:
        """Write one owner's batches; return a receipt per partition."""
        end = time.monotonic() + self.timeout
        if self.streamed:
            return self._send_streamed(batches, end)
        pieces_of = gather(batches, self.attempts)
        for tp, pieces in pieces_of.items():
            self._check(tp, len(pieces), sum(f.records for f in pieces), "nothing was written by this task")
        if not pieces_of:
            return []
        with self._connections(end) as connections:
            return self._write(
                connections,
                {tp: (piece.sealed() for piece in pieces) for tp, pieces in pieces_of.items()},
                end,
            )

    def _send_streamed(self, batches: Iterable[pa.RecordBatch], end: float) -> list[PartitionReceipt]:
        receipts: list[PartitionReceipt] = []
        with self._connections(end) as connections:
            for tp, pieces in stream(batches, self.attempts):
                (receipt,) = self._write(connections, {tp: (piece.sealed() for piece in pieces)}, end)
                self._check(tp, receipt.batches, receipt.records, "they are written, the run must abort")
                receipts.append(receipt)
        return receipts

    def _connections(self, end: float) -> BrokerConnections:
        left = end - time.monotonic()
        return BrokerConnections(self.config, bootstrap_timeout=max(1.0, min(_BOOTSTRAP_TIMEOUT, left)))

    def _write(
        self,
        connections: BrokerConnections,
        batches: Mapping[TopicPartition, Iterable[tuple[int, bytes]]],
        end: float,
    ) -> list[PartitionReceipt]:
        return send_partitions(
            connections,
            self.identity,
            batches,
            delivery_timeout=self.delivery_timeout,
            timeout=max(1.0, end - time.monotonic()),
        )

    def _check(self, tp: TopicPartition, batches: int, records: int, consequence: str) -> None:
        """Compare with the manifest; raises ProtocolViolation if the blocks have changed."""
        if self.expected.get(tp) != (batches, records):
            raise ProtocolViolation(
                f"the blocks hold {batches} batches with {records} records for {tp}, the manifest says "
                f"{self.expected.get(tp)}; {consequence}"
            )


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    """A sealed batch in Arrow's memory, in the order of the log."""

    seal_partition: int
    seq: int
    records: int = field(compare=False)
    column: pa.Array = field(compare=False, repr=False)
    row: int = field(compare=False)

    def sealed(self) -> tuple[int, bytes]:
        return self.records, self.column[self.row].as_py()


def gather(
    batches: Iterable[pa.RecordBatch], attempts: Mapping[int, int]
) -> dict[TopicPartition, list[_Piece]]:
    """Group an owner's rows by target, each in the order of the source: (seal task, number).

    Omits trailers. The bytes stay in Arrow's buffers.

    :raises SealedBlockLost: the rows are not the ones that the manifest counted.
    """
    by_target: dict[TopicPartition, list[_Piece]] = {}
    for tp, piece in _pieces(batches, attempts):
        by_target.setdefault(tp, []).append(piece)
    for pieces in by_target.values():
        pieces.sort()
    return by_target


def stream(
    batches: Iterable[pa.RecordBatch], attempts: Mapping[int, int]
) -> Iterator[tuple[TopicPartition, Iterator[_Piece]]]:
    """Yield each target with its batches, from rows in :data:`STREAM_ORDER`; read each to its end.

    :raises SealedBlockLost: the rows are not the ones that the manifest counted; some may be written.
    :raises ProtocolViolation: the rows are in another order.
    """
    finished: set[TopicPartition] = set()
    for tp, group in groupby(_pieces(batches, attempts), key=itemgetter(0)):
        if tp in finished:
            raise ProtocolViolation(f"the batches of {tp} do not come together; nothing more is written")
        finished.add(tp)
        yield tp, _in_order(tp, (piece for _, piece in group))


def _in_order(tp: TopicPartition, pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    last: _Piece | None = None
    for piece in pieces:
        if last is not None and not last < piece:
            raise ProtocolViolation(f"the batches of {tp} are not in order: {last}, {piece}")
        last = piece
        yield piece


def _pieces(
    batches: Iterable[pa.RecordBatch], attempts: Mapping[int, int]
) -> Iterator[tuple[TopicPartition, _Piece]]:
    """Yield the sealed batches of an owner's rows, without trailers; refuses rows of other attempts."""
    for batch in batches:
        column = batch.column("batch")
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for row, (topic, partition, seal_partition, attempt, seq, records) in enumerate(
            zip(*columns, strict=True)
        ):
            if attempts.get(seal_partition) != attempt:
                raise SealedBlockLost(
                    f"the rows of seal task {seal_partition} are of attempt {attempt}, the manifest counted "
                    f"those of attempt {attempts.get(seal_partition)}: Spark ran the task again and holds "
                    "two copies of a block; the run must abort and its ranges be sealed again"
                )
            if topic is not None and column[row].is_valid:
                yield TopicPartition(topic, partition), _Piece(seal_partition, seq, records, column, row)


def refuse_second_attempt(task: int, attempt: int, wait: float) -> None:
    """Wait to be killed, then raise: law 1.

    :raises SecondAttempt: always.
    """
    time.sleep(wait)
    raise SecondAttempt(
        f"send task {task} was started again (attempt {attempt}) within one producer epoch and wrote "
        "nothing; its first attempt was lost, with its executor or its Python worker (Spark's log says why), "
        "or Spark speculates: the run aborts and sends again under a new epoch"
    )


def read_answers(answers: Iterable[str], manifest: SealedManifest) -> list[PartitionReceipt]:
    """Return the receipts, sorted; exactly one per target partition.

    :raises SendError: the error that a task reported.
    :raises DuplicateReceipt: a partition was written by two tasks.
    """
    receipts: dict[TopicPartition, PartitionReceipt] = {}
    errors: list[EosError] = []
    for text in answers:
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            errors.append(error_from_dict(answer["error"]))
            continue
        receipt = PartitionReceipt.from_dict(answer["receipt"])
        tp = TopicPartition(receipt.topic, receipt.partition)
        if tp in receipts:
            errors.append(DuplicateReceipt(f"{tp} has two receipts: {receipts[tp]} and {receipt}"))
        receipts[tp] = receipt
    if errors:
        # If one task fails, others often see only a fenced epoch.
        raise next((e for e in errors if not isinstance(e, ProducerFenced)), errors[0])
    missing = [str(tp) for tp in manifest.partitions if tp not in receipts]
    if missing:
        raise SendError(f"no receipt came for {', '.join(missing)}; the transaction must be aborted")
    return [receipts[tp] for tp in sorted(receipts)]
