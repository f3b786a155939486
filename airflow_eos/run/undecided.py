"""Offsets that ``read_committed`` readers do not get yet, because of an open transaction before them.

A run stops before them and notes it: to a run and to lag figures they look like the end of the log, even if
the transaction hangs for ever.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.keys import utc_text
from airflow_eos.model.kafka import ActiveProducer, TransactionDescription
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.ports import Cluster
from airflow_eos.wording import moment_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Undecided offsets of one partition, and the open transaction at their start.

    :param offsets: from the last stable offset to the high watermark.
    :param producer: of the transaction; None if its leader does not report it.
    :param transactional_id: of the transaction; None if it is forgotten, or this client may not see it.
    :param since: start of the transaction by its coordinator, else the time of its last record; None if
        unknown.
    """

    offsets: OffsetRange
    producer: ActiveProducer | None = None
    transactional_id: str | None = None
    since: dt.datetime | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the offsets."""
        return self.offsets.topic_partition

    def age_seconds(self, now: dt.datetime) -> float | None:
        """Return how long the transaction has been open; None if unknown."""
        return None if self.since is None else max(0.0, (now - self.since).total_seconds())

    def to_dict(self, now: dt.datetime) -> dict[str, Any]:
        """Return the JSON form, as ``airflow eos status`` shows it."""
        age = self.age_seconds(now)
        return {
            "partition": str(self.topic_partition),
            "start": self.offsets.start,
            "end": self.offsets.end,
            "transactional_id": self.transactional_id,
            "producer_id": None if self.producer is None else self.producer.producer_id,
            "since": None if self.since is None else utc_text(self.since),
            "age_seconds": None if age is None else round(age, 1),
            "text": str(self),
        }

    def __str__(self) -> str:
        """Return the offsets and the transaction that they wait for, as a sentence."""
        first, last = self.offsets.start, self.offsets.end - 1
        which = f"offset {first}" if first == last else f"offsets {first} to {last}"
        since = "" if self.since is None else f" since {utc_text(self.since)}"
        owner = ""
        if self.transactional_id is not None:
            owner = f" (transactional id {self.transactional_id!r})"
        elif self.producer is not None:
            owner = f" (producer id {self.producer.producer_id}, epoch {self.producer.producer_epoch})"
        return (
            f"{which} of {self.topic_partition} {'waits' if first == last else 'wait'} behind a transaction "
            f"that is open{since}{owner}"
        )


def undecided(
    cluster: Cluster, ends: Mapping[TopicPartition, int], stable: Mapping[TopicPartition, int]
) -> list[Undecided]:
    """Return the partitions whose high watermark is above their last stable offset, sorted.

    :param ends: high watermarks, requested first: an offset below them that is not stable afterwards is in or
        behind an open transaction.
    """
    open_ranges = [
        OffsetRange(tp.topic, tp.partition, stable[tp], end)
        for tp, end in sorted(ends.items())
        if end > stable[tp]
    ]
    if not open_ranges:
        return []
    try:
        return _described(cluster, open_ranges)
    except EosError as error:
        log.info("cannot look up the open transactions: %s", error)
        return [Undecided(offsets) for offsets in open_ranges]


def _described(cluster: Cluster, open_ranges: Collection[OffsetRange]) -> list[Undecided]:
    active = cluster.describe_producers([offsets.topic_partition for offsets in open_ranges])
    first = {
        offsets.topic_partition: next(
            (p for p in active[offsets.topic_partition] if p.current_txn_start_offset == offsets.start), None
        )
        for offsets in open_ranges
    }
    producers = {producer.producer_id for producer in first.values() if producer is not None}
    ids = cluster.transactional_ids(producers) if producers else {}
    transactions = {name: cluster.describe_transaction(name) for name in sorted(set(ids.values()))}
    described = []
    for offsets in open_ranges:
        producer = first[offsets.topic_partition]
        named = None if producer is None else ids.get(producer.producer_id)
        transaction = None if named is None else transactions[named]
        since = None if producer is None else _since(producer, transaction)
        described.append(Undecided(offsets, producer, named, since))
    return described


def _since(producer: ActiveProducer, transaction: TransactionDescription | None) -> dt.datetime | None:
    """Return the start of a transaction; the time of its last record if no coordinator calls it open."""
    milliseconds = producer.last_timestamp
    if (
        transaction is not None
        and transaction.start_ms >= 0
        and (transaction.producer_id, transaction.producer_epoch)
        == (producer.producer_id, producer.producer_epoch)
    ):
        milliseconds = transaction.start_ms
    return moment_of(milliseconds) if milliseconds >= 0 else None
