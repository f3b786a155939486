"""Dead letters of a run whose sink is a table: made and sent by the driver, in the transaction of the run.

That transaction comes after the table's commit, when the executors that processed the records may be gone.
So the INTENT names the records, and the attempt that commits the run reads them again and makes the letters:
the attempt that wrote the rows, or a later one that finds them in the table.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_eos.model.dead_letter import DueLetters, FailingRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt, SealedManifest, SealedTarget
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.spark.arrow_contract import sink_rows
from airflow_eos.spark.dead_letters import DeadLetterRule
from airflow_eos.spark.placement import OwnerLayout
from airflow_eos.spark.seal_task import SealTask
from airflow_eos.spark.source import ARROW_SCHEMA, read_slices
from airflow_eos.spark.targets import describe_targets
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.produce import send_partitions

LOST = "record"
"""Value of the header :data:`~airflow_eos.spark.dead_letters.CUT` if the whole record is missing."""


@dataclass(frozen=True, slots=True)
class LetterBatches:
    """Implements ``airflow_eos.ports.Sealed``; the batches are in this process.

    :param batches: (record count, sealed batch) by target partition, in order.
    """

    manifest: SealedManifest
    batches: Mapping[TopicPartition, Sequence[tuple[int, bytes]]] = field(repr=False)


def seal_letters(config: ClientConfig, compression: str, due: DueLetters) -> LetterBatches:
    """Read records again and make dead letters of them.

    The letter of a record that is no longer in its topic has only place and error.

    :raises UnknownTopic: the dead letter topic or a source topic no longer exists.
    :raises EosError: the records cannot be read now; a retry may succeed.
    """
    with BrokerConnections(config) as connections:
        target = describe_targets(connections, [due.topic])[due.topic]
        places = sorted({record.range.topic_partition for record in due.records})
        starts = list_offsets(connections, places, "earliest")
    task = SealTask(config, OwnerLayout(1), {due.topic: target}, due.topic, compression)
    letters = task.letters(DeadLetterRule(due.topic, len(due.records)))
    kept = [record for record in due.records if record.offset >= starts[record.range.topic_partition]]
    read = _read(config, kept)
    for record in due.records:
        if record in read:
            letters.keep(read[record], record.error)
        else:
            letters.keep(_without_content(record), record.error, lacks=[LOST])
    rows = sink_rows(letters.batch(), None, ())
    batches: defaultdict[TopicPartition, list[tuple[int, bytes]]] = defaultdict(list)
    for sealed in () if rows is None else task.seal(iter(rows.to_batches()), 0, 0):
        for row in sealed.to_pylist():
            if row["batch"] is not None:
                batches[TopicPartition(row["topic"], row["partition"])].append((row["records"], row["batch"]))
    targets = tuple(
        SealedTarget(
            place.topic,
            place.partition,
            records=sum(count for count, _ in of_place),
            batches=len(of_place),
            size=sum(len(data) for _, data in of_place),
        )
        for place, of_place in sorted(batches.items())
    )
    return LetterBatches(SealedManifest(targets, dead_letters=len(due.records)), dict(batches))


def send_letters(
    spec: RunSpec, letters: LetterBatches, identity: ProducerIdentity, timeout: float
) -> Sequence[PartitionReceipt]:
    """Write dead letters under a producer's identity; errors and receipts as of ``send_partitions``."""
    with BrokerConnections(ClientConfig.of(spec.kafka)) as connections:
        return send_partitions(
            connections,
            identity,
            letters.batches,
            delivery_timeout=spec.delivery_timeout.total_seconds(),
            timeout=timeout,
        )


def _read(config: ClientConfig, records: Sequence[FailingRecord]) -> dict[FailingRecord, pa.RecordBatch]:
    read: dict[FailingRecord, pa.RecordBatch] = {}
    for place, batches in read_slices(config, [record.range for record in records]):
        for batch in batches:
            if batch.num_rows:  # compaction may have removed it
                read[records[place]] = batch
    return read


def _without_content(record: FailingRecord) -> pa.RecordBatch:
    row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": int(time.time()) * 1_000_000,
    }
    return pa.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)
