"""Finds some keys in a partition of many small transactions, without decoding the others.

A ledger partition contains one or two tiny batches and a control batch per run. Decoding all of them would
take minutes for 100,000 runs; searching whole Fetch answers for the bytes of a key takes a fraction of a
second. In a record the key follows its length (https://kafka.apache.org/documentation/#record), which makes
the search nearly exact; hits are decoded and compared. Compressed batches, which this package never writes,
are always decoded.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery, Rejected, may_hold, needles
from airflow_eos.broker.ledger_log.records import Record, markers_of, records_of
from airflow_eos.exceptions import CorruptBatch
from airflow_eos.model.ledger import LedgerEntry, LedgerValue
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import RawBatch
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import MAX_BYTES, FetchedAnswer, fetch_answers

log = logging.getLogger(__name__)

_FEW_BYTES = 64 << 10
_MANY_KEYS = 200
"""More searches of an answer than this take longer than decoding all of it."""


@dataclass(eq=False)
class Findings:
    """The last committed record of each wanted key below the last stable offset, collected range by range.

    :ivar latest: the last record per key that is evidence, including tombstones.
    :ivar log_start: log start offset, from the last answer; -1 before one.
    """

    tp: TopicPartition
    evidence: Evidence
    latest: dict[str, Record] = field(default_factory=dict)
    log_start: int = -1
    all_rejected: list[Rejected] = field(default_factory=list, init=False)

    def scan(
        self,
        connections: BrokerConnections,
        start: int,
        end: int,
        query: KeyQuery,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> int:
        """Read ``[start, end)``, in any order of ranges; return the size of its batches in bytes.

        :param end: at or below the last stable offset.
        """
        size = 0
        for answer in fetch_answers(connections, self.tp, start, end, max_bytes=max_bytes):
            page = _Page(answer, end, self.evidence)
            if len(query.keys) > _MANY_KEYS:
                records = page.latest_of(query)
            else:
                records = [record for key in query.keys if (record := page.latest(key)) is not None]
            for prefix in query.starts:
                records.extend(page.beginning_with(prefix).values())
            self.take(records)
            self.all_rejected += page.rejected
            self.log_start = answer.log_start
            size += sum(batch.header.size for batch in answer.batches if batch.header.base_offset < end)
        return size

    def take(self, records: Iterable[Record]) -> None:
        """Add records that are evidence."""
        for record in records:
            before = self.latest.get(record.key)
            if before is None or before.offset < record.offset:
                self.latest[record.key] = record

    @property
    def committed(self) -> dict[str, LedgerValue]:
        """The latest value of each key; deleted keys are absent."""
        values = ((key, record.value_in(self.tp.partition)) for key, record in self.latest.items())
        return {key: value for key, value in values if value is not None}

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The records that are not evidence, without those before a later record that is."""
        last = {key: record.offset for key, record in self.latest.items()}
        return tuple(record for record in self.all_rejected if record.offset > last.get(record.key, -1))


def records_at(
    connections: BrokerConnections, tp: TopicPartition, wanted: Mapping[int, str], evidence: Evidence
) -> dict[int, Record]:
    """Return committed records that are evidence, by offset; omits offsets without such a record.

    :param wanted: the key at each offset, all of them below the last stable offset.
    """
    records: dict[int, Record] = {}
    left = sorted(wanted)
    while left:
        at = left[0]
        answer = next(fetch_answers(connections, tp, at, at + 1, max_bytes=_FEW_BYTES), None)
        behind = at + 1 if answer is None else max(answer.next_position, at + 1)
        if answer is not None:
            page = _Page(answer, behind, evidence)
            for offset in left[: bisect_left(left, behind)]:
                record = page.at(offset, wanted[offset])
                if record is not None:
                    records[offset] = record
        left = left[bisect_left(left, behind) :]
    return records


def decided_records(
    connections: BrokerConnections, tp: TopicPartition, start: int, end: int, evidence: Evidence
) -> Iterator[tuple[int, list[tuple[Record, bool]]]]:
    """Yield committed records of ``[start, end)``, each with whether it is evidence, and the next offset.

    Ends early before a batch that cannot be decoded; this package never writes one.

    :param end: at or below the last stable offset.
    """
    for answer in fetch_answers(connections, tp, start, end):
        page = _Page(answer, end, evidence)
        judged: list[tuple[Record, bool]] = []
        for batch in answer.batches:
            records = page.committed_in(batch)
            if records is None:
                yield batch.header.base_offset, judged
                return
            judged += [
                (record, evidence.holds(batch, record)) for record in records if record.offset >= start
            ]
        yield min(answer.next_position, end), judged


def committed_values(
    connections: BrokerConnections,
    tp: TopicPartition,
    start: int,
    end: int,
    query: KeyQuery,
    evidence: Evidence,
) -> Findings:
    """Return the latest read_committed value of each key in ``[start, end)``.

    :param end: at or below the last stable offset, so that the broker knows the aborted transactions.
    """
    findings = Findings(tp, evidence)
    findings.scan(connections, start, end, query)
    return findings


@dataclass(frozen=True, slots=True)
class RawTail:
    """Entries that are not decided yet.

    :param entries: control markers, and wanted records that are evidence if they are committed.
    :param rejected: wanted records that are not evidence in any case.
    :param size: size of all batches, in bytes.
    """

    entries: tuple[LedgerEntry, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    size: int = 0


def raw_entries(
    connections: BrokerConnections,
    tp: TopicPartition,
    start: int,
    end: int,
    query: KeyQuery,
    evidence: Evidence,
) -> RawTail:
    """Return all control markers and the records of the keys in ``[start, end)``, committed or not."""
    sought = query.needles
    entries: list[LedgerEntry] = []
    rejected: list[Rejected] = []
    size = 0
    answers = fetch_answers(connections, tp, start, end, isolation="read_uncommitted")
    for answer in answers:
        for batch in answer.batches:
            size += batch.header.size
            if batch.header.is_control:
                entries.extend(markers_of(batch))
            elif may_hold(batch, sought):
                records, others = evidence.judge(batch, end, query)
                rejected += others
                entries.extend(
                    LedgerEntry(
                        record.offset,
                        batch.header.producer_id,
                        "record",
                        record.key,
                        record.value_in(tp.partition),
                    )
                    for record in records
                )
    return RawTail(tuple(entry for entry in entries if start <= entry.offset < end), tuple(rejected), size)


class _Page:
    """One read_committed Fetch answer, searched from its end; collects rejected records."""

    def __init__(self, answer: FetchedAnswer, end: int, evidence: Evidence) -> None:
        self._answer = answer
        self._end = end
        self._evidence = evidence
        self.rejected: list[Rejected] = []
        self._batches = answer.batches
        sizes = accumulate((batch.header.size for batch in self._batches), initial=0)
        self._begins = list(sizes)
        self._has_compressed = any(batch.header.codec for batch in self._batches)
        self._markers: dict[int, list[int]] | None = None

    def latest(self, key: str) -> Record | None:
        """Return the last committed record of the key."""
        query = KeyQuery(frozenset({key}))
        for batch in self._candidates(needles(key)):
            if self._is_aborted(batch):
                continue
            records = self._evident(batch, self._end, query)
            if records:
                return records[-1]
        return None

    def latest_of(self, query: KeyQuery) -> list[Record]:
        """Return the last committed record of each key; decodes every batch once."""
        exact, latest = KeyQuery(query.keys), dict[str, Record]()
        for batch in self._batches:
            if batch.header.is_control or self._is_aborted(batch):
                continue
            try:
                records = self._evident(batch, self._end, exact)
            except CorruptBatch:
                if may_hold(batch, exact.needles):
                    raise
                continue
            latest.update((record.key, record) for record in records)
        return list(latest.values())

    def beginning_with(self, prefix: str) -> dict[str, Record]:
        """Return the last committed record of every key that begins with the prefix."""
        query = KeyQuery(frozenset(), (prefix,))
        latest: dict[str, Record] = {}
        for batch in reversed(list(self._candidates((prefix.encode(),)))):
            if not self._is_aborted(batch):
                records = self._evident(batch, self._end, query)
                latest.update((record.key, record) for record in records)
        return latest

    def at(self, offset: int, key: str) -> Record | None:
        """Return the committed record of the key at an offset."""
        for batch in self._batches:
            if batch.header.base_offset <= offset <= batch.header.last_offset:
                if batch.header.is_control or self._is_aborted(batch):
                    return None
                records = self._evident(batch, offset + 1, KeyQuery(frozenset({key})))
                return next((record for record in records if record.offset == offset), None)
        return None

    def committed_in(self, batch: RawBatch) -> list[Record] | None:
        """Return the committed records of a batch; None if it cannot be decoded."""
        if batch.header.is_control or self._is_aborted(batch):
            return []
        with contextlib.suppress(CorruptBatch):
            return records_of(batch, self._end)
        return None

    def _evident(self, batch: RawBatch, end: int, query: KeyQuery) -> list[Record]:
        records, rejected = self._evidence.judge(batch, end, query)
        self.rejected += rejected
        return records

    def _candidates(self, sought: Sequence[bytes]) -> Iterator[RawBatch]:
        """Yield data batches that contain one of the byte strings, last batch first."""
        if self._has_compressed:
            yield from (
                batch
                for batch in reversed(self._batches)
                if not batch.header.is_control and may_hold(batch, sought)
            )
            return
        # The bytes after the last whole batch belong to the next answer.
        limit = self._begins[-1]
        # The last position of each; searched again once the batch with that position is done.
        last = {key_bytes: self._answer.data.rfind(key_bytes, 0, limit) for key_bytes in sought}
        while (at := max(last.values())) >= 0:
            index = bisect_right(self._begins, at) - 1
            limit = self._begins[index]
            if not self._batches[index].header.is_control:
                yield self._batches[index]
            for key_bytes, position in last.items():
                if position >= limit:
                    last[key_bytes] = self._answer.data.rfind(key_bytes, 0, limit)

    def _is_aborted(self, batch: RawBatch) -> bool:
        """Return whether the batch is between an aborted transaction's first offset and its marker."""
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
        # A transaction ends with its producer's next marker; later batches belong to another transaction.
        ends = self._markers.get(producer, [])
        following = bisect_right(ends, first)
        return following == len(ends) or ends[following] > header.base_offset
