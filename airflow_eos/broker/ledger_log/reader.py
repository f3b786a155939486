"""Follows a ledger: each look reads only the records that were decided since the last one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import NamedTuple

from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery, Rejected
from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import LedgerReplaced
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import log_bounds

log = logging.getLogger(__name__)

STALL_TIMEOUT = 20.0
"""Seconds without an answer from a leader after which a look ends; the next look resumes there."""
_IGNORED_KEPT = 100


class LedgerChange(NamedTuple):
    """A committed record.

    :param value: None for a tombstone.
    """

    partition: int
    offset: int
    key: str
    value: LedgerValue | None


class LedgerReader:
    """Yields every committed record of some kinds once, in offset order within each partition.

    It reads up to the last stable offset: a record behind an open transaction comes with a later look. A
    record counts under the same conditions as in a look-up: it is part of a transaction, that of the producer
    which it names, and it is signed if the ledger has a key. Not thread-safe.

    :param prefixes: prefixes of the keys to yield.
    :ivar behind: partitions whose last stable offset was below the high watermark at the last look.
    :ivar begins_at: log start offset of the partitions whose first records are deleted.
    :ivar ignored: partition and offset of the last record per key that does not count; of a limited number of
        keys.
    """

    def __init__(self, ledger: KafkaLedger, link: Link, prefixes: Collection[str]) -> None:
        self._ledger = ledger
        self._link = link
        self._query = KeyQuery(frozenset({ledger.own_keys.signed} - {""}), tuple(prefixes))
        self._signed_from: SignedFrom | None = None
        self._topic_id = ""
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.behind: frozenset[int] = frozenset()
        self.begins_at: dict[int, int] = {}
        self.ignored: dict[str, tuple[int, int]] = {}

    @property
    def left(self) -> int:
        """Number of offsets up to the last look's ends that were not read yet."""
        return sum(end - self._positions.get(partition, 0) for partition, end in self._ends.items())

    def start_over(self) -> None:
        """Forget all positions."""
        self._positions.clear()
        self._ends.clear()
        self.ignored = {}
        self._signed_from = None

    def look(self) -> bool:
        """Update the ends of the partitions; return whether the records read before are no longer valid.

        They are invalid if a partition has lost its end. All positions are then reset.

        :raises LedgerReplaced: the topic was deleted and created again since the first look.
        :raises LedgerMissing: the topic does not exist.
        """
        description = self._ledger.describe(wait=False)
        if self._topic_id not in ("", description.topic_id):
            before, self._topic_id = self._topic_id, ""
            self.start_over()
            raise LedgerReplaced(
                f"the ledger topic {self._ledger.topic!r} was recreated while it was read: its id was "
                f"{before}, now it is {description.topic_id}"
            )
        self._topic_id = description.topic_id
        tps = [TopicPartition(self._ledger.topic, number) for number in range(description.partitions)]
        with self._link.connections() as connections:
            bounds = log_bounds(connections, tps)
        starts, stable, high = bounds.starts, bounds.stable, bounds.ends
        lost = any(stable[tp] < self._positions.get(tp.partition, 0) for tp in tps)
        if lost:
            log.warning("ledger %s has lost the end of a partition; reading it again", self._ledger.topic)
            self.start_over()
        self.behind = frozenset(tp.partition for tp in tps if stable[tp] < high[tp])
        self.begins_at = {tp.partition: starts[tp] for tp in tps if starts[tp] > 0}
        for tp in tps:
            self._positions[tp.partition] = max(self._positions.get(tp.partition, 0), starts[tp])
            self._ends[tp.partition] = stable[tp]
        return lost

    def changes(self) -> Iterator[LedgerChange]:
        """Yield the committed records between the positions and the ends of the last look.

        After an interruption the next call resumes after the last answer that was consumed completely. Do
        not use the link otherwise while iterating.

        :raises FetchStalled: a leader did not answer in time.
        """
        if self._ledger.key and self._signed_from is None:
            self._signed_from = self._ledger.signed_from()
        for partition, end in sorted(self._ends.items()):
            position = self._positions[partition]
            if position < end:
                yield from self._read(partition, position, end)
                self._positions[partition] = end

    def _read(self, partition: int, position: int, end: int) -> Iterator[LedgerChange]:
        signed_from = self._signed_from or SignedFrom()
        evidence = Evidence(self._ledger.key, self._topic_id, signed_from.of(partition))
        rejected: list[Rejected] = []
        with self._link.connections() as connections:
            tp = TopicPartition(self._ledger.topic, partition)
            answers = fetch_answers(connections, tp, position, end, stall_timeout=STALL_TIMEOUT)
            for answer in answers:
                for batch in data_batches(answer.batches, answer.aborted):
                    records, others = evidence.judge(batch, end, self._query)
                    rejected += others
                    for record in records:
                        if record.offset < position:
                            continue
                        yield LedgerChange(partition, record.offset, record.key, record.value_in(partition))
                self._positions[partition] = max(self._positions[partition], min(answer.next_position, end))
        ignored = dict(self.ignored)  # other threads may read it meanwhile
        for other in rejected:
            if len(ignored) < _IGNORED_KEPT or other.key in ignored:
                ignored[other.key] = (partition, other.offset)
        self.ignored = ignored
