"""Offsets that no ``read_committed`` reader gets yet, because a transaction in front of them is open.

A run that stops below them is right, and says so: to a run and to lag figures they look like the end of the
log, also where the transaction hangs and nobody will end it.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.keys import utc_text
from airflow_eos.model.kafka import ActiveProducer
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.ports import Cluster

log = logging.getLogger(__name__)

_EPOCH = dt.datetime.fromtimestamp(0, dt.timezone.utc)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Undecided offsets of one partition, and the open transaction they begin with.

    :param offsets: from the last stable offset to the high watermark.
    :param producer: of the transaction; None: its leader does not tell.
    :param transactional_id: of the transaction; None: this client may not see it, or it is forgotten.
    :param since: when the transaction began, as its coordinator says, else the time of its last record, at
        which it was open; None: not known.
    """

    offsets: OffsetRange
    producer: ActiveProducer | None = None
    transactional_id: str | None = None
    since: dt.datetime | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Where they are."""
        return self.offsets.topic_partition

    def age_seconds(self, now: dt.datetime) -> float | None:
        """Return for how long the transaction is open, None where that is not known."""
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
        """Return the offsets, what they wait for and since when, as a sentence."""
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

    :param ends: high watermarks. Ask for them first: an offset below them that is not stable afterwards
        belongs to an open transaction, or is behind one.
    :param stable: last stable offsets.
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
        log.info("the open transactions could not be looked at: %s", error)
        return [Undecided(one) for one in open_ranges]


def _described(cluster: Cluster, open_ranges: Collection[OffsetRange]) -> list[Undecided]:
    known = cluster.describe_producers([one.topic_partition for one in open_ranges])
    first = {
        one.topic_partition: next(
            (p for p in known[one.topic_partition] if p.current_txn_start_offset == one.start), None
        )
        for one in open_ranges
    }
    producers = {one.producer_id for one in first.values() if one is not None}
    ids = cluster.transactional_ids(producers) if producers else {}
    described = []
    for one in open_ranges:
        producer = first[one.topic_partition]
        named = None if producer is None else ids.get(producer.producer_id)
        since = None if producer is None else _since(cluster, producer, named)
        described.append(Undecided(one, producer, named, since))
    return described


def _since(cluster: Cluster, producer: ActiveProducer, transactional_id: str | None) -> dt.datetime | None:
    """Return when a transaction began; its last record's time where no coordinator calls it open."""
    milliseconds = producer.last_timestamp
    if transactional_id is not None:
        status = cluster.describe_transaction(transactional_id)
        if (
            status is not None
            and status.start_ms >= 0
            and (status.producer_id, status.producer_epoch) == (producer.producer_id, producer.producer_epoch)
        ):
            milliseconds = status.start_ms
    try:
        return _EPOCH + dt.timedelta(milliseconds=milliseconds) if milliseconds >= 0 else None
    except OverflowError:
        return None
