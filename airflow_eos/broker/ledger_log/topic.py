"""The ledger topic as a log: the ``Ledger`` port on a real cluster. The authority interprets its records."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from functools import partial

from kafka.partitioner.default import murmur2

from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery, Rejected
from airflow_eos.broker.ledger_log.index import PartitionIndex
from airflow_eos.broker.ledger_log.scan import Findings, RawTail, committed_values, raw_entries
from airflow_eos.broker.shared_connections import Link
from airflow_eos.exceptions import (
    BrokersUnavailable,
    ConfigurationError,
    LedgerMissing,
    OffsetsOutOfRange,
    RequestRefused,
    UnknownTopic,
)
from airflow_eos.ledger.records.identity import IdentityRecord
from airflow_eos.ledger.records.ledger_index import Around, IndexRoot, LeafAt, OwnKeys, Place, may_speak_for
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ledger import LedgerView
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.signature import LedgerKey
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.wire.backoff import Backoff
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.create_topic import create_topic
from airflow_eos.wire.describe_configs import topic_settings
from airflow_eos.wire.offsets import list_offsets, log_bounds

log = logging.getLogger(__name__)

CREATE_TIMEOUT = 60.0
_NOTHING = KeyQuery(frozenset())
_OFFSETS_PER_RUN = 3
"""The run record, the cursor and a marker."""
_REPLICAS_WITH_ONE_TO_SPARE = 3

_CENTURY_MS = 100 * 365 * 24 * 3600 * 1000

TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # Compaction removes the records that a foreign tombstone deletes. The tombstone must stay as evidence.
    "delete.retention.ms": str(_CENTURY_MS),
    # Look-ups by time must not depend on writers' clocks.
    "message.timestamp.type": "LogAppendTime",
    # Look-ups search the log for the bytes of a key.
    "compression.type": "uncompressed",
    # A replica that lacks records must not lead: their runs would count as not committed.
    "unclean.leader.election.enable": "false",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of a new ledger topic; ``min.insync.replicas`` is one below a replication factor of 3 or more."""


class KafkaLedger:
    """A compacted topic of run, cursor and boundary records.

    :param settings: name of the topic, how to create it, and the key that signs its records.
    :param own_keys: keys of the records that the ledger holds about itself; None: read it as a plain log.
    :ivar topic: name of the ledger topic.
    """

    def __init__(self, link: Link, settings: LedgerSettings, own_keys: OwnKeys | None = None) -> None:
        self._link = link
        self._settings = settings
        self.topic = settings.topic
        self.key = LedgerKey(settings.key)
        self.own_keys = own_keys or OwnKeys()
        self._partitions = 0
        self._signed_from = SignedFrom()
        self._topic_id = ""
        self._waited_in_vain = False
        self._indexes: dict[int, PartitionIndex] = {}

    @property
    def topic_id(self) -> str:
        """Id of the ledger topic, as last described."""
        return self._topic_id or self.describe().topic_id

    def describe(self, *, wait: bool = True) -> TopicDescription:
        """See :class:`~airflow_eos.ports.Ledger`; does not wait again if waiting did not help before.

        :raises AuthorizationFailed: Describe on the topic is missing.
        """
        try:
            wait = wait and not self._waited_in_vain
            described = self._link.ask(BrokerConnections.topics, [self.topic], wait=wait)[self.topic]
        except UnknownTopic as error:
            self._waited_in_vain |= wait
            advice = (
                "create it once with 'airflow eos init' ('python -m airflow_eos init' without Airflow), or "
                "let a run do it that was not cleared, where [eos] create_ledger, or "
                "LedgerSettings(create=...), allows that: a cleared run may have committed in a ledger that "
                "is lost"
            )
            if self._topic_id:
                advice = "it was deleted since this process first described it. Restore it, do not create it"
            raise LedgerMissing(
                f"the ledger topic {self.topic!r} does not exist, so nobody can tell what is committed; "
                + advice
            ) from error
        if self._topic_id != described.topic_id:
            self._topic_id, self._indexes, self._partitions = described.topic_id, {}, 0
        return described

    def cleanup_policy(self) -> str:
        """See :class:`~airflow_eos.ports.Ledger`."""
        return self._link.ask(topic_settings, [self.topic]).get(self.topic, {}).get("cleanup.policy", "")

    def route_over(self, partitions: int) -> None:
        """See :class:`~airflow_eos.ports.Ledger`: partitions that were added since hold no record."""
        self._partitions = partitions

    def partition_for(self, routing: str) -> int:
        """Return the partition that the Java producer would choose for a key; partition 0 for ""."""
        if not routing:
            return 0
        partitions = self._partitions or self._first_partition_count()
        return int((murmur2(routing.encode()) & 0x7FFFFFFF) % partitions)

    def _first_partition_count(self) -> int:
        """Return the partition count in the identity record; the topic's if there is no such record yet."""
        partitions, key = self.describe().partitions, self.own_keys.identity
        value = self.view(0, [key]).committed.get(key) if key else None
        if value is not None:
            partitions = self._partitions = IdentityRecord.from_json(value, key).partitions
        return partitions

    def view(
        self, partition: int, keys: Collection[str], prefixes: Collection[str | Around] = ()
    ) -> LedgerView:
        """Read the partition up to the high watermark at the start of the call.

        Below the last stable offset (LSO) the broker decides which records are committed. Entries above it
        are returned raw; the authority decides about them by the control markers. Every transaction that
        ended before the call is below a high watermark that is requested after it. Which of both bounds is
        requested first does not matter: it only moves entries between the tail and the decided records.

        :param partition: a partition of the ledger.
        :param keys: keys to read; a tombstone removes its key from ``committed`` and has the value None in
            ``tail``.
        :param prefixes: every key that begins with one of these is read too.
        :raises CorruptBatch: a batch cannot be decoded.
        :raises FetchStalled: the leader did not answer in time.
        """
        query = KeyQuery(frozenset(keys), tuple(prefixes))
        view = self._view(partition, query)
        # Records written before the ledger had a key are unsigned; a ledger record says up to which offsets.
        if view.unsigned:
            before, self._signed_from = self._signed_from, self.signed_from()
            if before != self._signed_from:
                view = self._view(partition, query)
        return view

    def latest(
        self, partition: int, prefixes: Collection[str], count: int, *, within: int | None = None
    ) -> LedgerView:
        """Like :meth:`view` of all keys with these prefixes, but only about the ``count`` newest records.

        Reads backwards from the end of the partition until it has that many.

        :param within: maximum number of offsets to read from the end of the partition; None for no limit.
        """
        tp = TopicPartition(self.topic, partition)
        query = KeyQuery(frozenset(), tuple(prefixes))
        evidence = self._evidence(partition, query)
        with self._link.connections() as connections:
            bounds = log_bounds(connections, [tp])
            start, stable, high = bounds.starts[tp], bounds.stable[tp], bounds.ends[tp]
            tail = RawTail()
            if stable < high:
                tail = raw_entries(connections, tp, stable, high, query, evidence)
            first = start if within is None else max(start, stable - within)
            findings, end, size = Findings(tp, evidence), stable, _OFFSETS_PER_RUN * count
            while end > first and len(findings.latest) < count:
                findings.scan(connections, max(first, end - size), end, query)
                end, size = max(first, end - size), size * 2
        return _view_of(stable, high, start, findings, tail)

    def signed_from(self) -> SignedFrom:
        """Read from which offsets on records are signed."""
        key = self.own_keys.signed
        value = self._view(0, KeyQuery(frozenset({key}))).committed.get(key) if key else None
        return SignedFrom() if value is None else SignedFrom.from_json(value, key)

    def _view(self, partition: int, query: KeyQuery) -> LedgerView:
        tp = TopicPartition(self.topic, partition)
        evidence = self._evidence(partition, query)
        index = self._index(partition) if query.few else None
        with self._link.connections() as connections:
            bounds = log_bounds(connections, [tp], starts=False)
            stable, high = bounds.stable[tp], bounds.ends[tp]
            look_up = (
                partial(committed_values, connections, tp)
                if index is None
                else partial(index.committed, connections)
            )
            try:
                # Compaction never moves the start of a log, so that of a ledger is 0.
                findings = look_up(0, stable, query, evidence)
            except OffsetsOutOfRange:
                findings = look_up(list_offsets(connections, [tp], "earliest")[tp], stable, query, evidence)
            # Each Fetch answer has the log start: it is requested only if nothing was fetched.
            start = findings.log_start
            if start < 0:
                start = list_offsets(connections, [tp], "earliest")[tp]
            tail = RawTail()
            if stable < high:
                tail = raw_entries(connections, tp, stable, high, query, evidence)
                if index is not None:
                    index.tail_bytes += tail.size
        return _view_of(stable, high, start, findings, tail)

    def _evidence(self, partition: int, query: KeyQuery) -> Evidence:
        # The record that says from where on records are signed must itself be signed, at any offset.
        if not self.key:
            return Evidence()
        says_what_is_signed = self.own_keys.signed in query.keys
        unsigned_below = 0 if says_what_is_signed else self._signed_from.of(partition)
        return Evidence(self.key, self.topic_id, unsigned_below)

    # -- the index --

    def tails(self) -> Mapping[int, int]:
        """Return per partition the bytes that the last look-up read beyond its index."""
        return {partition: index.tail_bytes for partition, index in sorted(self._indexes.items())}

    def index_root(self, partition: int) -> tuple[int, IndexRoot] | None:
        """See :class:`~airflow_eos.ports.IndexedLedger`."""
        index, tp = self._index(partition), TopicPartition(self.topic, partition)
        if index is None:
            return None
        with self._link.connections() as connections:
            bounds = log_bounds(connections, [tp])
            return index.root(
                connections, bounds.starts[tp], bounds.stable[tp], self._evidence(partition, _NOTHING)
            )

    def index_leaf(self, partition: int, at: LeafAt) -> Mapping[str, Place]:
        """Return the places that a leaf holds.

        :raises IndexUnusable: the log does not have the leaf.
        """
        index = self._index(partition)
        assert index is not None, "a caller that knows a leaf has read the root"
        return self._link.ask(index.leaf, at, self._evidence(partition, _NOTHING))

    def decided(self, partition: int, start: int, seconds: float) -> tuple[int, Mapping[str, Place]]:
        """See :class:`~airflow_eos.ports.IndexedLedger`."""
        index, tp = self._index(partition), TopicPartition(self.topic, partition)
        assert index is not None, "this ledger is read without an index"
        with self._link.connections() as connections:
            bounds = log_bounds(connections, [tp])
            start = max(start, bounds.starts[tp])
            end = may_speak_for(bounds.stable[tp], max(bounds.ends[tp], bounds.stable[tp]))
            return index.decided(connections, start, end, self._evidence(partition, _NOTHING), seconds)

    def _index(self, partition: int) -> PartitionIndex | None:
        if self.own_keys.index is None:
            return None
        if not self._topic_id:
            self.describe()
        return self._indexes.setdefault(
            partition,
            PartitionIndex(TopicPartition(self.topic, partition), self.own_keys.index, self._topic_id),
        )

    def create(self) -> None:
        """Create the ledger topic if it does not exist, and wait until every partition has a leader.

        :raises AuthorizationFailed: Create on the cluster or the topic is missing.
        :raises ConfigurationError: the brokers refuse the topic, with their reason.
        :raises BrokersUnavailable: a partition has no leader after :data:`CREATE_TIMEOUT` seconds.
        """
        config = dict(TOPIC_CONFIG)
        replicas = self._settings.replication_factor or -1
        if replicas >= _REPLICAS_WITH_ONE_TO_SPARE:
            config["min.insync.replicas"] = str(replicas - 1)
        partitions = self._settings.partitions
        try:
            is_new = self._link.ask(
                create_topic, self.topic, partitions=partitions, replication_factor=replicas, settings=config
            )
        except RequestRefused as refusal:
            raise ConfigurationError(
                f"{refusal.message} Create the ledger once with other numbers, by 'airflow eos init "
                "--partitions --replication-factor', or give LedgerSettings(partitions=..., "
                f"replication_factor=...) others than {partitions} and {self._settings.replication_factor} "
                "(None: default.replication.factor of the brokers)"
            ) from refusal
        if is_new:
            log.info("Created the ledger topic %s with %d partitions", self.topic, partitions)
        self._waited_in_vain = False
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        backoff = Backoff(CREATE_TIMEOUT)
        missing: list[TopicPartition] = []
        while not backoff.expired:
            leaders = self._link.ask(BrokerConnections.topics, [self.topic])[self.topic].leaders
            missing = [TopicPartition(self.topic, n) for n, node in sorted(leaders.items()) if node == -1]
            if not missing:
                return
            time.sleep(backoff.next_pause())
        raise BrokersUnavailable(
            f"{missing[0]} ({len(missing)} partitions of the ledger) has no leader after "
            f"{CREATE_TIMEOUT:.0f} s; check that enough brokers run"
        )


def _view_of(stable: int, high: int, start: int, findings: Findings, tail: RawTail) -> LedgerView:
    last: dict[str, Rejected] = {}
    for record in sorted((*findings.rejected, *tail.rejected), key=lambda record: record.offset):
        last[record.key] = record
    return LedgerView(
        last_stable_offset=stable,
        high_watermark=max(high, stable),
        committed=findings.committed,
        tail=tail.entries,
        log_start=start,
        no_evidence={key: record.offset for key, record in last.items()},
        unsigned=frozenset(key for key, record in last.items() if record.is_unsigned),
    )
