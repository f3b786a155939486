"""The content of the brokers' log files, read by kafka-python's record parser, which nothing else uses.

The last check of an experiment: the log holds what the ledger claims, transaction by transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos_testing.broker import Broker
    from airflow_eos_testing.cluster import EmbeddedKafka

_MARKERS = ("ABORT", "COMMIT")


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of a log file.

    :param marker: ``COMMIT`` or ``ABORT`` for a control batch, else empty.
    """

    partition: int
    first_offset: int
    last_offset: int
    records: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    marker: str = ""


def dump_log(kafka: EmbeddedKafka, topic: str, broker: Broker | None = None) -> list[DumpedBatch]:
    """Return a broker's copy of a topic, by partition and offset.

    :param broker: default: the first broker.
    :raises EmbeddedKafkaError: it has no copy, or a batch of it is damaged.
    """
    folder = (broker or kafka.brokers[0]).data_folder
    batches: list[DumpedBatch] = []
    for place in sorted(folder.glob(f"{topic}-*")):
        number = place.name.removeprefix(f"{topic}-")
        if number.isdigit():
            for segment in sorted(place.glob("*.log")):
                batches += dumped(segment.read_bytes(), int(number))
    if not batches:
        raise EmbeddedKafkaError(f"{folder} holds no batch of topic {topic!r}")
    return sorted(batches, key=lambda batch: (batch.partition, batch.first_offset))


def dumped(segment: bytes, partition: int) -> Iterator[DumpedBatch]:
    """Yield the batches of a log segment.

    :raises EmbeddedKafkaError: a batch's checksum is wrong.
    """
    from kafka.record import MemoryRecords

    batches: Any = MemoryRecords(segment)
    while (batch := batches.next_batch()) is not None:
        if not batch.validate_crc():
            raise EmbeddedKafkaError(f"partition {partition} holds a damaged batch at {batch.base_offset}")
        marker = ""
        if batch.is_control_batch:
            (record,) = batch  # its key: version 2, type 2
            marker = _MARKERS[int.from_bytes(record.key[2:4], "big")]
        yield DumpedBatch(
            partition,
            batch.base_offset,
            batch.last_offset,
            batch.records_count,
            batch.base_sequence,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            marker,
        )


@dataclass
class _Open:
    """A producer's open transaction in one partition."""

    epoch: int
    first_offset: int
    last_offset: int = -1
    records: int = 0


def log_complaints(batches: Sequence[DumpedBatch], records: Sequence[RunRecord], topic: str) -> Iterable[str]:
    """Compare a topic's log with the receipts of its committed runs; nothing else may be committed there.

    :param batches: by partition and offset.
    """
    committed: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    open_txns: dict[tuple[int, int], _Open] = {}
    for batch in batches:
        label = f"{topic}-{batch.partition} offset {batch.first_offset}"
        key = batch.partition, batch.producer_id
        if batch.marker:
            # Epochs may differ: a coordinator that fences writes its marker with a higher epoch.
            ended = open_txns.pop(key, None)
            if ended is not None and batch.marker == "COMMIT":
                dumped_range = (ended.first_offset, ended.last_offset, ended.records)
                committed[batch.partition, batch.producer_id, ended.epoch] = dumped_range
            continue
        if not batch.transactional:
            yield f"{label} holds a batch outside of any transaction"
            continue
        txn = open_txns.setdefault(key, _Open(batch.producer_epoch, batch.first_offset))
        if (batch.producer_epoch, batch.base_sequence) != (txn.epoch, txn.records):
            yield (
                f"{label} has epoch {batch.producer_epoch} sequence {batch.base_sequence}, its transaction "
                f"stood at epoch {txn.epoch} sequence {txn.records}"
            )
        txn.last_offset = batch.last_offset
        txn.records += batch.records
    for partition, producer_id in open_txns:
        yield f"{topic}-{partition} ends with an open transaction of producer {producer_id}"
    claimed = {
        (r.partition, record.producer.producer_id, record.producer.producer_epoch): (
            r.first_offset,
            r.last_offset,
            r.records,
        )
        for record in records
        for r in record.receipts
        if r.topic == topic and r.records
    }
    for place in sorted(claimed.keys() | committed.keys()):
        if claimed.get(place) != committed.get(place):
            partition, producer_id, epoch = place
            yield (
                f"{topic}-{partition}, producer {producer_id} epoch {epoch}: the ledger claims (first, last "
                f"offset, records) {claimed.get(place)}, the log holds {committed.get(place)}"
            )
