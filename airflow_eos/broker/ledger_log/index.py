"""Looks up keys in a ledger partition by its index, so that the cost does not grow with the number of runs.

A look-up reads the partition backwards from its end, in growing windows, until it meets the newest root and
has read everything that this root does not cover. It looks up the remaining keys in the index. A partition
without an index is read to its beginning.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery
from airflow_eos.broker.ledger_log.records import Record
from airflow_eos.broker.ledger_log.scan import Findings, committed_values, decided_records, records_at
from airflow_eos.exceptions import LedgerUnreadable, OffsetsOutOfRange
from airflow_eos.ledger.records.ledger_index import (
    LEAF_CHARACTERS,
    IndexDamaged,
    IndexKeys,
    IndexRoot,
    IndexUnusable,
    LeafAt,
    Place,
    PlaceKind,
    read_leaf,
)
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import BrokerConnections

log = logging.getLogger(__name__)

_FIRST_WINDOW = 32
_GROWTH = 3
_PAGE_BYTES = 1 << 20
_MAX_PLACES = 500
"""Maximum number of records to fetch one by one; beyond that a full scan is faster."""
_LEAVES_KEPT = 32
_MAX_ATTEMPTS = 2
_LONGEST_KEY = LEAF_CHARACTERS


@dataclass(eq=False)
class PartitionIndex:
    """Looks up keys in one partition, and caches the parts of its index that it has read.

    :param keys: keys of the index's own records.
    :param topic_id: id of the ledger topic.
    :ivar tail_bytes: bytes that the last look-up read beyond the offsets that the index covers.
    """

    tp: TopicPartition
    keys: IndexKeys
    topic_id: str
    tail_bytes: int = 0
    _root: tuple[int, IndexRoot | None] = field(default=(-1, None), init=False)
    _damaged: int = field(default=-1, init=False)
    _leaves: OrderedDict[LeafAt, Mapping[str, Place]] = field(default_factory=OrderedDict, init=False)

    def committed(
        self, connections: BrokerConnections, start: int, end: int, query: KeyQuery, evidence: Evidence
    ) -> Findings:
        """Return the latest committed values in ``[start, end)``.

        :param end: the last stable offset.
        """
        for _ in range(_MAX_ATTEMPTS):
            findings = Findings(self.tp, evidence)
            root = self._scan_tail(connections, start, end, query, findings)
            if root is None:
                break
            try:
                kept_from = max(start, findings.log_start)
                self._add_indexed(connections, root, kept_from, query, findings, evidence)
                break
            except (IndexUnusable, LedgerUnreadable, OffsetsOutOfRange) as reason:
                log.info("Cannot use the index of %s: %s", self.tp, reason)
                if isinstance(reason, IndexDamaged):
                    self._damaged = self._root[0]
                self._root = -1, None  # a newer root may have replaced it, and compaction removed the old one
        else:
            findings = committed_values(connections, self.tp, start, end, query, evidence)
        findings.latest.pop(self.keys.root, None)  # needed only to find the index
        findings.all_rejected = [record for record in findings.all_rejected if record.key != self.keys.root]
        return findings

    def root(
        self, connections: BrokerConnections, start: int, end: int, evidence: Evidence
    ) -> tuple[int, IndexRoot] | None:
        """Return the newest root below ``end`` and its offset."""
        self._root = -1, None
        root = self._scan_tail(connections, start, end, KeyQuery(frozenset()), Findings(self.tp, evidence))
        return None if root is None else (self._root[0], root)

    def leaf(self, connections: BrokerConnections, at: LeafAt, evidence: Evidence) -> Mapping[str, Place]:
        """Return the places that a leaf holds; raises IndexDamaged if the log does not have it."""
        places = self._leaves.get(at)
        if places is None:
            key = self.keys.leaf(at.digest)
            record = records_at(connections, self.tp, {at.offset: key}, evidence).get(at.offset)
            if record is None or record.value is None:
                raise IndexDamaged(f"there is no leaf at offset {at.offset}")
            places = self._leaves[at] = read_leaf(record.value, at)
            if len(self._leaves) > _LEAVES_KEPT:
                self._leaves.popitem(last=False)
        return places

    def _scan_tail(
        self, connections: BrokerConnections, start: int, end: int, query: KeyQuery, findings: Findings
    ) -> IndexRoot | None:
        """Read the offsets that the index does not cover; return its root, None if the whole log was read."""
        root, read = self._root[1], 0
        # A cached root stays valid: everything that it does not cover is behind it, even if there is a newer
        # one.
        size = _FIRST_WINDOW if root is None else end
        sought = KeyQuery(query.keys | {self.keys.root}, query.prefixes) if root is None else query
        while end > start and (root is None or end > root.through):
            start = max(start, findings.log_start)
            begin = max(start, end - size, 0 if root is None else root.through)
            read += findings.scan(connections, begin, end, sought, max_bytes=_PAGE_BYTES)
            if root is None and (record := findings.latest.get(self.keys.root)) is not None:
                root = self._parsed(record)
            end, size = begin, size * _GROWTH
        self.tail_bytes = read
        return root

    def _parsed(self, record: Record) -> IndexRoot | None:
        if self._root[0] != record.offset:
            root = None
            try:
                root = None if record.value is None else IndexRoot.from_json(record.value, record.key)
            except LedgerUnreadable as reason:
                log.info("Cannot use the index root of %s: %s", self.tp, reason)
            if root is not None and (root.topic_id != self.topic_id or root.through > record.offset):
                root = None
            self._root = record.offset, None if record.offset == self._damaged else root
        return self._root[1]

    def _add_indexed(
        self,
        connections: BrokerConnections,
        root: IndexRoot,
        start: int,
        query: KeyQuery,
        findings: Findings,
        evidence: Evidence,
    ) -> None:
        """Add the indexed records to those of the tail; raises IndexUnusable if one is missing."""
        places = root.places(
            [key for key in query.keys if key not in findings.latest],
            query.prefixes,
            lambda at: self.leaf(connections, at, evidence),
            findings.latest,
        )
        if others := sorted(key for key, place in places.items() if place.kind == "other"):
            raise IndexUnusable(f"somebody else wrote a record of {others[0]!r}")
        at = {place.offset: key for key, place in places.items() if place.kind == "record"}
        at = {offset: key for offset, key in at.items() if offset >= start}
        if len(at) > _MAX_PLACES:
            raise IndexUnusable(f"{len(at)} records are asked for")
        records = records_at(connections, self.tp, at, evidence)
        if missing := sorted(at.keys() - records.keys()):
            raise IndexDamaged(f"there is no record of {at[missing[0]]!r} at offset {missing[0]}")
        findings.take(records.values())

    def decided(
        self, connections: BrokerConnections, start: int, end: int, evidence: Evidence, seconds: float
    ) -> tuple[int, Mapping[str, Place]]:
        """Return the next offset to index, and the places of the last committed records in ``[start, end)``.

        :param end: end of the offsets that an index may cover.
        :param seconds: approximate time limit.
        """
        deadline = time.monotonic() + seconds
        places: dict[str, Place] = {}
        for behind, records in decided_records(connections, self.tp, start, end, evidence):
            for record, is_ours in records:
                if record.key in self.keys:  # of the index itself
                    continue
                if len(record.key) > _LONGEST_KEY:  # a foreign record that no index can hold
                    return record.offset, places
                kind: PlaceKind = "tombstone" if record.value is None else "record"
                places[record.key] = Place(record.offset, kind if is_ours else "other")
            start = behind
            if time.monotonic() >= deadline:
                break
        return start, places
