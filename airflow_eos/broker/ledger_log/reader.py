"""Follows a ledger: each look reads only what was decided since the last one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import NamedTuple

from airflow_eos.broker.ledger_log.scan import NoEvidence, Wanted
from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import LedgerReplaced
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.model.ledger import LedgerText
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.isolation import data_batches
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets

log = logging.getLogger(__name__)

STALL_TIMEOUT = 20.0
"""Seconds until a leader that answers nothing ends a look; the next one goes on where it stopped."""
_IGNORED_KEPT = 100


class LedgerChange(NamedTuple):
    """A committed record.

    :param value: None: a tombstone.
    """

    partition: int
    offset: int
    key: str
    value: LedgerText | None


class LedgerReader:
    """Yields every committed record of some kinds once, in the order of each partition.

    It reads up to the last stable offset: a record behind an open transaction comes with a later look. What
    counts as a record is what counts in a look-up: it stands in a transaction, in that of the producer it
    names, and is signed where the ledger has a key. Not for two threads at a time.

    :param prefixes: of the keys that are wanted.
    :param signed_key: of the record that says from where on records are signed; empty: none says so.
    :ivar behind: partitions whose last stable offset lay below the high watermark at the last look.
    :ivar begins_at: log start of the partitions that have lost their first records.
    :ivar ignored: place of the last records that are none, per key; of so many keys at most.
    """

    def __init__(
        self, ledger: KafkaLedger, link: Link, prefixes: Collection[str], *, signed_key: str = ""
    ) -> None:
        self._ledger = ledger
        self._link = link
        self._wanted = Wanted(frozenset({signed_key} - {""}), tuple(prefixes))
        self._signed_key = signed_key
        self._signed_from: SignedFrom | None = None
        self._topic_id = ""
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.behind: frozenset[int] = frozenset()
        self.begins_at: dict[int, int] = {}
        self.ignored: dict[str, tuple[int, int]] = {}

    @property
    def left(self) -> int:
        """Offsets that the last look has found and that were not read yet."""
        return sum(end - self._positions.get(one, 0) for one, end in self._ends.items())

    def start_over(self) -> None:
        """Forget all positions."""
        self._positions.clear()
        self._ends.clear()
        self.ignored.clear()
        self._signed_from = None

    def look(self) -> bool:
        """Find out how far the ledger has come; return whether what was read before does not hold any more.

        That is so where a partition has lost its end. All positions are forgotten then.

        :raises LedgerReplaced: the topic is another one than at the first look.
        :raises LedgerMissing: there is none.
        """
        found = self._ledger.describe(wait=False)
        if self._topic_id not in ("", found.topic_id):
            before, self._topic_id = self._topic_id, ""
            self.start_over()
            raise LedgerReplaced(
                f"the ledger topic {self._ledger.topic!r} was made again while it was read: its id was "
                f"{before}, now it is {found.topic_id}"
            )
        self._topic_id = found.topic_id
        places = [TopicPartition(self._ledger.topic, one) for one in range(found.partitions)]
        with self._link.connections() as connections:
            high = list_offsets(connections, places, "latest", isolation="read_uncommitted")
            stable = list_offsets(connections, places, "latest", isolation="read_committed")
            starts = list_offsets(connections, places, "earliest")
        lost = any(stable[one] < self._positions.get(one.partition, 0) for one in places)
        if lost:
            log.warning("ledger %s has lost the end of a partition; it is read again", self._ledger.topic)
            self.start_over()
        self.behind = frozenset(one.partition for one in places if stable[one] < high[one])
        self.begins_at = {one.partition: starts[one] for one in places if starts[one] > 0}
        for one in places:
            self._positions[one.partition] = max(self._positions.get(one.partition, 0), starts[one])
            self._ends[one.partition] = stable[one]
        return lost

    def changes(self) -> Iterator[LedgerChange]:
        """Yield what lies between the positions and what the last look has found.

        Where it is interrupted it goes on behind the last answer that was taken whole. No other use of the
        link while it is iterated.

        :raises FetchStalled: a leader did not answer in time.
        """
        if self._ledger.key and self._signed_from is None:
            self._learn_what_is_signed()
        for partition, end in sorted(self._ends.items()):
            position = self._positions[partition]
            if position < end:
                yield from self._read(partition, position, end)
                self._positions[partition] = end

    def _learn_what_is_signed(self) -> None:
        key = self._signed_key
        value = self._ledger.view(0, [key]).committed.get(key) if key else None
        self._signed_from = SignedFrom() if value is None else SignedFrom.from_json(value, key)

    def _read(self, partition: int, position: int, end: int) -> Iterator[LedgerChange]:
        judge = NoEvidence(
            self._ledger.key, self._topic_id, (self._signed_from or SignedFrom()).bounds(partition)
        )
        with self._link.connections() as connections:
            answers = fetch_answers(
                connections, self._ledger.topic, partition, position, end, stall_timeout=STALL_TIMEOUT
            )
            for answer in answers:
                for batch in data_batches(answer.batches, answer.aborted):
                    for record in judge.evident(batch, end, self._wanted):
                        if record.offset < position:
                            continue
                        value = record.value
                        yield LedgerChange(
                            partition,
                            record.offset,
                            record.key,
                            None if value is None else LedgerText.at(partition, record.offset, value),
                        )
                self._positions[partition] = max(self._positions[partition], min(answer.next_position, end))
        for key, offset in judge.items():
            if len(self.ignored) < _IGNORED_KEPT or key in self.ignored:
                self.ignored[key] = (partition, offset)
