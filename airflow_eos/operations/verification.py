"""Reads a run's output again, as a consumer would, and compares it with the ledger's receipts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos.broker import KafkaCluster, Link
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger.records.run import TABLE
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.run.retention import is_compacted
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wording import counted

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run import RunRecord
    from airflow_eos.model.output import PartitionReceipt
    from airflow_eos.wire.connection import BrokerConnections

Outcome = Literal["ok", "mismatch", "compacted", "expired", "table"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One target partition of one run.

    :param outcome: ``expired``: retention has deleted some of it since, nothing can be said; ``compacted``:
        the topic is, and what is gone may have been replaced by a later record of its key; ``table``: the
        rows are in a table, which is not read here.
    :param recorded: records the ledger says were written.
    :param found: records a ``read_committed`` consumer sees of this run.
    :param detail: what is wrong; empty otherwise.
    """

    run_key: str
    topic: str
    partition: int
    outcome: Outcome
    recorded: int
    found: int
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def verify_output(
    kafka: Mapping[str, Any], record: RunRecord, *, seconds: float | None = None
) -> list[Finding]:
    """Compare every receipt of a run with the log: checksums, number of records, sequence, visibility.

    Records of other producers may lie in between; the run's are those of its producer id and epoch.

    :param seconds: how long it may take; default: as long as it takes.
    :raises EosError: the log cannot be read.
    :raises AuthorizationFailed: a topic of the receipts may not be read; nothing was looked at.
    :raises TimeoutError: it took longer.
    """
    deadline = None if seconds is None else time.monotonic() + seconds

    def in_time() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError

    with Link(kafka) as link, KafkaCluster(kafka, link=link) as cluster:
        _may_be_read(cluster, {receipt.topic for receipt in record.receipts})
        with link.connections() as connections:
            # Asked only where records are missing, and then once for all partitions of a topic.
            settings_of = cache(cluster.topic_settings)
            return [
                *(_verify(settings_of, connections, record, receipt, in_time) for receipt in record.receipts),
                *_in_tables(record),
            ]


def _in_tables(record: RunRecord) -> list[Finding]:
    """Say of rows in a table that they were not compared, and where they are."""
    table = record.details.get(TABLE, {})
    detail = f"not compared: read the table's snapshot {table.get('snapshot')}"
    return [
        Finding(record.run_key, name, 0, "table", rows, 0, detail) for name, rows in record.table_rows.items()
    ]


def _may_be_read(cluster: KafkaCluster, topics: Collection[str]) -> None:
    """Refuse before anything is looked at, so that no finding tells of a topic that may not be read."""
    if not topics:
        return
    for topic, operations in sorted(cluster.topic_operations(topics).items()):
        if operations is not None and "READ" not in operations:
            raise AuthorizationFailed(f"this principal may not Read topic {topic!r}: grant it by an ACL")


def _verify(
    settings_of: Callable[[str], Mapping[str, str] | None],
    connections: BrokerConnections,
    record: RunRecord,
    receipt: PartitionReceipt,
    in_time: Callable[[], None],
) -> Finding:
    in_time()
    tp = TopicPartition(receipt.topic, receipt.partition)

    def finding(outcome: Outcome, found: int, detail: str = "") -> Finding:
        return Finding(
            record.run_key, receipt.topic, receipt.partition, outcome, receipt.records, found, detail
        )

    if not receipt.records:
        return finding("ok", 0)
    begin = list_offsets(connections, [tp], "earliest")[tp]
    stable = list_offsets(connections, [tp], "latest")[tp]
    if begin > receipt.first_offset:
        return finding("expired", 0, f"the log begins at {begin}, the run wrote from {receipt.first_offset}")
    if stable <= receipt.last_offset:
        detail = f"the last stable offset is {stable}, the run wrote up to {receipt.last_offset}"
        return finding("mismatch", 0, f"{detail}: the log was truncated, or the topic made again")
    found, gap = _count(connections, record, receipt, in_time)
    gone = receipt.records - found
    if not gone and not gap:
        return finding("ok", found)
    if gone > 0:
        missing = f"{counted(gone, 'record')} {'is' if gone == 1 else 'are'}"
        settings = settings_of(receipt.topic)
        if is_compacted(settings):
            because = "the topic is compacted, later records of their keys may have replaced them"
            return finding("compacted", found, f"{missing} gone: {because}")
        unread = "" if settings is not None else "whether the topic is compacted may not be read"
        said = (f"{missing} missing", gap, unread)
    else:
        said = (f"{-gone:,} more than were written" if gone else "", gap, "")
    return finding("mismatch", found, "; ".join(filter(None, said)))


def _count(
    connections: BrokerConnections,
    record: RunRecord,
    receipt: PartitionReceipt,
    in_time: Callable[[], None],
) -> tuple[int, str]:
    """Return how many records of the run a consumer sees, and where the first batch is out of sequence."""
    found, expected, gap = 0, 0, ""
    answers = fetch_answers(
        connections, receipt.topic, receipt.partition, receipt.first_offset, receipt.last_offset + 1
    )
    identity = (record.producer.producer_id, record.producer.producer_epoch)
    for answer in answers:
        in_time()
        # Control batches and aborted transactions are left out: what a consumer sees remains.
        for batch in data_batches(answer.batches, answer.aborted):
            header = batch.header
            if (header.producer_id, header.producer_epoch) != identity:
                continue
            if header.base_offset > receipt.last_offset:
                continue
            batch.check_crc()
            if header.base_sequence != expected and not gap:
                gap = f"offset {header.base_offset} has sequence {header.base_sequence}, not {expected}"
            expected = (header.base_sequence + header.last_offset_delta + 1) % 2**31
            found += header.record_count
    return found, gap


def verified_counts(findings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many records were compared, and how many cannot be any more: ``records``, ``expired``.

    What compaction may have taken counts as expired.

    :param findings: as :meth:`Finding.to_dict` gives them.
    """
    return {
        "records": sum(one["found"] for one in findings),
        "expired": sum(
            one["recorded"] - one["found"] for one in findings if one["outcome"] in ("expired", "compacted")
        ),
    }
