"""What stands in the brokers' own files, as Kafka's own DumpLogSegments prints it.

The last witness of an experiment, which shares no code with what it judges: the log holds what the ledger
claims, transaction by transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from airflow_eos.model.record import RunRecord
    from airflow_eos.testing.broker import Broker
    from airflow_eos.testing.cluster import EmbeddedKafka

_TOOL = "kafka.tools.DumpLogSegments"
_FILE = re.compile(r"^Dumping .*-(\d+)/\d+\.log$")
_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: -?\d+ "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) .*isTransactional: (true|false) isControl: (true|false) "
    r".*isvalid: (true|false)"
)
_MARKER = re.compile(r"endTxnMarker: (COMMIT|ABORT)")


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of a log file.

    :param marker: ``COMMIT`` or ``ABORT`` of a control batch, empty of others.
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

    :param broker: whose copy; the first broker's where there is none.
    :raises EmbeddedKafkaError: it has no copy, or a batch of it is damaged.
    """
    folder = (broker or kafka.brokers[0]).data_folder
    files = sorted(folder.glob(f"{topic}-*/*.log"))
    files = [file for file in files if file.parent.name.removeprefix(f"{topic}-").isdigit()]
    if not files:
        raise EmbeddedKafkaError(f"{folder} holds no log of topic {topic!r}")
    said = kafka.run_tool(_TOOL, "--deep-iteration", "--files", ",".join(map(str, files)))
    return sorted(parsed(said.splitlines()), key=lambda batch: (batch.partition, batch.first_offset))


def parsed(lines: Iterable[str]) -> Iterator[DumpedBatch]:
    """Yield the batches of the tool's output.

    :raises EmbeddedKafkaError: a batch's checksum is wrong.
    """
    partition, control = -1, None
    for line in lines:
        if file := _FILE.match(line):
            partition = int(file[1])
        elif control is not None and (marker := _MARKER.search(line)):
            yield DumpedBatch(*control, marker[1])
            control = None
        elif found := _BATCH.match(line):
            *numbers, transactional, is_control, valid = found.groups()
            if valid != "true":
                raise EmbeddedKafkaError(f"partition {partition} holds a damaged batch: {line}")
            first, last, count, sequence, producer_id, epoch = map(int, numbers)
            fields = (partition, first, last, count, sequence, producer_id, epoch, transactional == "true")
            if is_control == "true":
                control = fields
            else:
                yield DumpedBatch(*fields)


@dataclass
class _Open:
    """A producer's transaction in one partition."""

    epoch: int
    first_offset: int
    last_offset: int = -1
    records: int = 0


def log_complaints(batches: Sequence[DumpedBatch], records: Sequence[RunRecord], topic: str) -> Iterable[str]:
    """Compare a topic's log with the receipts of its committed runs; nothing else may be committed there.

    :param batches: by partition and offset.
    """
    committed: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    open_ones: dict[tuple[int, int], _Open] = {}
    for batch in batches:
        where = f"{topic}-{batch.partition} offset {batch.first_offset}"
        key = batch.partition, batch.producer_id
        if batch.marker:
            # Epochs may differ: a coordinator that fences writes its marker with a higher one.
            ended = open_ones.pop(key, None)
            if ended is not None and batch.marker == "COMMIT":
                found = (ended.first_offset, ended.last_offset, ended.records)
                committed[batch.partition, batch.producer_id, ended.epoch] = found
            continue
        if not batch.transactional:
            yield f"{where} holds a batch outside of any transaction"
            continue
        txn = open_ones.setdefault(key, _Open(batch.producer_epoch, batch.first_offset))
        if (batch.producer_epoch, batch.base_sequence) != (txn.epoch, txn.records):
            yield (
                f"{where} has epoch {batch.producer_epoch} sequence {batch.base_sequence}, its transaction "
                f"stood at epoch {txn.epoch} sequence {txn.records}"
            )
        txn.last_offset = batch.last_offset
        txn.records += batch.records
    for partition, producer_id in open_ones:
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
