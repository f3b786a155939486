"""Reads a run's output as a consumer would, and compares it with the receipts in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger.records.run_record import TABLE, RunRecord
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import JsonForm
from airflow_eos.operations.table_verification import Connected, Outcome, compared_rows
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.run.retention import is_compacted
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.describe_configs import topic_settings
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wording import counted

NOT_MATCHING: tuple[Outcome, ...] = ("mismatch", "unavailable")
"""Outcomes of output that does not match its receipts."""


@dataclass(frozen=True, slots=True)
class Finding(JsonForm):
    """The result for one target partition, or table, of one run.

    :param topic: the topic, or a table, whose partition is 0.
    :param outcome: ``expired``: retention has deleted some of the output, or the table's snapshot was
        expired, so it cannot be verified; ``compacted``: the topic is compacted, and later records of their
        keys may have replaced missing ones; ``table``: the table could not be read, or is not read here;
        ``unavailable``: the partition has no leader, so nobody can read it.
    :param recorded: number of records written, according to the ledger.
    :param found: number of the run's records that a ``read_committed`` consumer gets, or of rows in the data
        files of the run's snapshot.
    """

    run_key: str
    topic: str
    partition: int
    outcome: Outcome
    recorded: int
    found: int
    detail: str = ""


def verify_output(
    kafka: Mapping[str, Any],
    record: RunRecord,
    *,
    seconds: float | None = None,
    connected: Connected | None = None,
) -> list[Finding]:
    """Compare every receipt of a run with the log: checksums, number of records, sequence, visibility.

    Records of other producers may be in between; the run's records have its producer id and epoch.

    :param seconds: time limit; None for no limit.
    :param connected: adds the properties of its connection to a table; None: tables are not read.
    :raises EosError: the log cannot be read.
    :raises AuthorizationFailed: Read on a topic of the receipts is missing; nothing was read.
    :raises TimeoutError: it took longer than ``seconds``.
    """
    deadline = None if seconds is None else time.monotonic() + seconds

    def in_time() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError

    with Link(kafka) as link:
        cluster = KafkaCluster(link)
        topics = {receipt.topic for receipt in record.receipts}
        _may_be_read(cluster, topics)
        described = cluster.describe_topics((), optional=topics)
        with link.connections() as connections:
            # Requested only if records are missing, once per topic.
            settings_of = cache(lambda topic: topic_settings(connections, [topic]).get(topic))
            return [
                *(
                    _verify(settings_of, connections, record, receipt, described.get(receipt.topic), in_time)
                    for receipt in record.receipts
                ),
                *([table_finding(record, connected, in_time)] if TABLE in record.details else []),
            ]


def _may_be_read(cluster: KafkaCluster, topics: Collection[str]) -> None:
    """Refuse before reading, so that no finding reveals anything about a topic without Read permission."""
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
    topic: TopicDescription | None,
    in_time: Callable[[], None],
) -> Finding:
    in_time()
    tp = TopicPartition(receipt.topic, receipt.partition)

    def finding(outcome: Outcome, count: int, detail: str = "") -> Finding:
        return Finding(
            record.run_key, receipt.topic, receipt.partition, outcome, receipt.records, count, detail
        )

    if not receipt.records:
        return finding("ok", 0)
    if topic is None or receipt.partition >= topic.partitions:
        return finding("mismatch", 0, "the topic, or its partition, is gone")
    if tp in topic.without_leader:
        detail = "the partition has no leader: verify again once its brokers are back"
        return finding("unavailable", 0, detail)
    begin = list_offsets(connections, [tp], "earliest")[tp]
    stable = list_offsets(connections, [tp], "latest")[tp]
    if begin > receipt.first_offset:
        return finding("expired", 0, f"the log begins at {begin}, the run wrote from {receipt.first_offset}")
    if stable <= receipt.last_offset:
        detail = f"the last stable offset is {stable}, the run wrote up to {receipt.last_offset}"
        return finding("mismatch", 0, f"{detail}: the log was truncated, or the topic recreated")
    visible, gap = _count(connections, record, receipt, in_time)
    lost = receipt.records - visible
    if not lost and not gap:
        return finding("ok", visible)
    if lost > 0:
        missing = f"{counted(lost, 'record')} {'is' if lost == 1 else 'are'}"
        settings = settings_of(receipt.topic)
        if is_compacted(settings):
            because = "the topic is compacted, later records of their keys may have replaced them"
            return finding("compacted", visible, f"{missing} gone: {because}")
        unread = "" if settings is not None else "whether the topic is compacted may not be read"
        problems = (f"{missing} missing", gap, unread)
    else:
        problems = (f"{-lost:,} more than were written" if lost else "", gap, "")
    return finding("mismatch", visible, "; ".join(filter(None, problems)))


def _count(
    connections: BrokerConnections,
    record: RunRecord,
    receipt: PartitionReceipt,
    in_time: Callable[[], None],
) -> tuple[int, str]:
    """Return how many of the run's records a consumer gets, and a text for the first gap in the sequence."""
    records, expected, gap = 0, 0, ""
    tp = TopicPartition(receipt.topic, receipt.partition)
    answers = fetch_answers(connections, tp, receipt.first_offset, receipt.last_offset + 1)
    identity = (record.producer.producer_id, record.producer.producer_epoch)
    for answer in answers:
        in_time()
        # Without control batches and aborted transactions, as for a read_committed consumer.
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
            records += header.record_count
    return records, gap


def table_finding(record: RunRecord, connected: Connected | None, in_time: Callable[[], None]) -> Finding:
    """Return the finding about the rows of a run in its table.

    :param connected: None if tables are not to be read.
    """
    recorded = record.details[TABLE]
    outcome, rows, detail = compared_rows(record, connected, in_time)
    return Finding(record.run_key, str(recorded["sink"]), 0, outcome, int(recorded["rows"]), rows, detail)


def verified_counts(findings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return ``records``, the number that was compared, and ``expired``, the number that no longer can be.

    Records that compaction may have removed count as expired.

    :param findings: results of :meth:`Finding.to_dict`.
    """
    return {
        "records": sum(finding["found"] for finding in findings),
        "expired": sum(
            finding["recorded"] - finding["found"]
            for finding in findings
            if finding["outcome"] in ("expired", "compacted")
        ),
    }
