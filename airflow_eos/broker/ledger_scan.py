"""Finds some keys in a partition of many small transactions, without decoding the others.

A ledger partition holds one or two tiny batches and a control batch per run. Decoding each would take
minutes for 100,000; searching whole Fetch answers for the bytes of a key takes a fraction of a second. In a
record the key is preceded by its length (https://kafka.apache.org/documentation/#record), which makes the
search nearly exact; what it finds is decoded and compared. Compressed batches, which only a stranger writes,
are always decoded.

Whoever may write to the topic can write any record. One that stands in no transaction, or in that of another
producer than it names, is no evidence: this package never writes one.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from airflow_eos.broker.ledger_records import Record, markers_of, records_of
from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.record import named_writer
from airflow_eos.recordbatch.header import BatchHeader, RawBatch
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import FetchedAnswer, fetch_answers

log = logging.getLogger(__name__)

_MORE = 0x80  # a varint goes on


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys a look-up is for.

    :param keys: exact keys.
    :param prefixes: and every key that begins with one of these.
    """

    keys: frozenset[str]
    prefixes: tuple[str, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.keys or key.startswith(self.prefixes)

    @property
    def needles(self) -> list[bytes]:
        """What the bytes of a batch with a wanted key must contain."""
        return [needle(key) for key in self.keys] + [prefix.encode() for prefix in self.prefixes]


class NoEvidence(dict[str, int]):
    """Offset of the last record per wanted key that is no evidence."""

    def evident(self, batch: RawBatch, end: int, wanted: Wanted) -> Iterator[Record]:
        """Yield the wanted records of a batch that are evidence; note the others here."""
        header = batch.header
        try:
            records = records_of(batch, end)
        except CorruptBatch as error:
            if header.is_transactional:
                raise
            log.warning("ignored, for it was written in no transaction: %s", error)
            return
        for record in records:
            offset, key, value = record
            if key not in wanted:
                continue
            if is_evidence(header, value):
                yield record
            else:
                self[key] = max(offset, self.get(key, -1))


def committed_values(
    connections: BrokerConnections,
    tp: TopicPartition,
    start: int,
    end: int,
    wanted: Wanted,
    no_evidence: NoEvidence,
) -> Mapping[str, str]:
    """Return the latest read_committed value of each key in ``[start, end)``; deleted keys are absent.

    :param end: at or below the last stable offset, so that the broker knows what was aborted.
    :param no_evidence: records behind which there is none of ours are added to it.
    """
    needles = {key: needle(key) for key in wanted.keys}
    latest: dict[str, Record] = {}
    others = NoEvidence()
    for answer in fetch_answers(connections, tp.topic, tp.partition, start, end):
        page = _Page(answer, end, others)
        for key, bytes_of_key in needles.items():
            found = page.latest(key, bytes_of_key)
            if found is not None:
                latest[key] = found
        for prefix in wanted.prefixes:
            latest.update(page.beginning_with(prefix))
    no_evidence.update(
        (key, offset) for key, offset in others.items() if key not in latest or latest[key][0] < offset
    )
    return {key: value for key, (_, _, value) in latest.items() if value is not None}


def raw_entries(
    connections: BrokerConnections,
    tp: TopicPartition,
    start: int,
    end: int,
    wanted: Wanted,
    no_evidence: NoEvidence,
) -> Sequence[LedgerEntry]:
    """Return all control markers and the records of the keys in ``[start, end)``, committed or not.

    :param no_evidence: what no transaction of ours wrote is added to it.
    """
    needles = wanted.needles
    entries: list[LedgerEntry] = []
    answers = fetch_answers(connections, tp.topic, tp.partition, start, end, isolation="read_uncommitted")
    for answer in answers:
        for batch in answer.batches:
            if batch.header.is_control:
                entries.extend(markers_of(batch))
            elif _may_hold(batch, needles):
                entries.extend(
                    LedgerEntry(offset, batch.header.producer_id, "record", key, value or "")
                    for offset, key, value in no_evidence.evident(batch, end, wanted)
                )
    return tuple(entry for entry in entries if start <= entry.offset < end)


def needle(key: str) -> bytes:
    """Return the bytes of a key inside an uncompressed record: its length as a zigzag varint, then itself."""
    encoded = key.encode()
    left = len(encoded) << 1
    prefix = bytearray()
    while left >= _MORE:
        prefix.append(left % _MORE | _MORE)
        left //= _MORE
    return bytes((*prefix, left)) + encoded


class _Page:
    """One read_committed Fetch answer, searched from its end."""

    def __init__(self, answer: FetchedAnswer, end: int, no_evidence: NoEvidence) -> None:
        self._answer = answer
        self._end = end
        self._no_evidence = no_evidence
        self._batches = answer.batches
        sizes = accumulate((batch.header.size for batch in self._batches), initial=0)
        self._begins = list(sizes)
        self._has_compressed = any(batch.header.codec for batch in self._batches)
        self._markers: dict[int, list[int]] | None = None

    def latest(self, key: str, bytes_of_key: bytes) -> Record | None:
        """Return the last committed record of the key."""
        wanted = Wanted(frozenset({key}))
        for batch in self._candidates(bytes_of_key):
            if self._is_aborted(batch):
                continue
            found = list(self._no_evidence.evident(batch, self._end, wanted))
            if found:
                return found[-1]
        return None

    def beginning_with(self, prefix: str) -> dict[str, Record]:
        """Return the last committed record of every key that begins with the prefix."""
        wanted = Wanted(frozenset(), (prefix,))
        latest: dict[str, Record] = {}
        for batch in reversed(list(self._candidates(prefix.encode()))):
            if not self._is_aborted(batch):
                found = self._no_evidence.evident(batch, self._end, wanted)
                latest.update((record[1], record) for record in found)
        return latest

    def _candidates(self, bytes_of_key: bytes) -> Iterator[RawBatch]:
        """Yield data batches that may hold the key, last one first."""
        if self._has_compressed:
            yield from (
                batch
                for batch in reversed(self._batches)
                if not batch.header.is_control and _may_hold(batch, [bytes_of_key])
            )
            return
        # The bytes behind the last whole batch belong to the next answer.
        limit = self._begins[-1]
        while (at := self._answer.data.rfind(bytes_of_key, 0, limit)) >= 0:
            index = bisect_right(self._begins, at) - 1
            limit = self._begins[index]
            if not self._batches[index].header.is_control:
                yield self._batches[index]

    def _is_aborted(self, batch: RawBatch) -> bool:
        """Tell whether the batch lies between an aborted transaction's first offset and its marker."""
        header = batch.header
        if not header.is_transactional:
            return False
        producer = header.producer_id
        first = max(
            (
                first
                for aborted, first in self._answer.aborted or ()
                if aborted == producer and first <= header.last_offset
            ),
            default=None,
        )
        if first is None:
            return False
        if self._markers is None:
            self._markers = {}
            for other in self._batches:
                if other.header.is_control:
                    self._markers.setdefault(other.header.producer_id, []).append(other.header.base_offset)
        # A transaction ends with its producer's next marker; what comes behind that is another one.
        ends = self._markers.get(producer, [])
        following = bisect_right(ends, first)
        return following == len(ends) or ends[following] > header.base_offset


def is_evidence(header: BatchHeader, value: str | None) -> bool:
    """Tell whether a record stands in a transaction, and in that of the producer it names, if any."""
    writer = None if value is None else named_writer(value)
    return header.is_transactional and writer in (None, (header.producer_id, header.producer_epoch))


def _may_hold(batch: RawBatch, needles: Sequence[bytes]) -> bool:
    if batch.header.codec:
        return True
    data = bytes(batch.data)
    return any(wanted in data for wanted in needles)
