"""The ledger topic as a log: the ``Ledger`` port on a real cluster. What it means, the authority decides."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from airflow_eos.broker.ledger_log.index import PartitionIndex, decided
from airflow_eos.broker.ledger_log.scan import Findings, NoEvidence, Wanted, committed_values, raw_entries
from airflow_eos.broker.librdkafka import Admin, attempt
from airflow_eos.broker.shared_connections import Link, LinkUser
from airflow_eos.exceptions import BrokersUnavailable, LedgerMissing, UnknownTopic
from airflow_eos.ledger.records.index import IndexKeys, IndexRoot, LeafAt, Place, may_speak_for
from airflow_eos.ledger.records.signed import SignatureBounds, SignedFrom
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ledger import LedgerEntry, LedgerView
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.signature import LedgerKey
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.retry import Backoff

log = logging.getLogger(__name__)

CREATE_TIMEOUT = 60.0
_NOTHING = Wanted(frozenset())
_OFFSETS_PER_RUN = 3
"""Its record, its cursor, a marker."""
_REPLICAS_WITH_ONE_TO_SPARE = 3

_CENTURY_MS = 100 * 365 * 24 * 3600 * 1000

TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # A stranger's tombstone takes a record with it when the log is compacted: it must stay, to tell of it.
    "delete.retention.ms": str(_CENTURY_MS),
    # Boundaries of look-ups by time must not depend on writers' clocks.
    "message.timestamp.type": "LogAppendTime",
    # Look-ups search the log for the bytes of a key.
    "compression.type": "uncompressed",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of a new ledger topic; ``min.insync.replicas`` is one below a replication factor of 3 or more."""


class KafkaLedger(LinkUser):
    """A compacted topic of run, cursor and boundary records; a context manager.

    :param config: client configuration in librdkafka's names.
    :param settings: name of the topic, how to create it, and what signs its records.
    :param signed_key: key of the record in partition 0 that says from where on they are signed; empty: none
        may say so.
    :param index_keys: of the records that index a partition; None: look-ups read it whole.
    :param link: raw connections to share; own ones by default.
    """

    def __init__(
        self,
        config: ClientConfig | Mapping[str, Any],
        settings: LedgerSettings,
        *,
        signed_key: str = "",
        index_keys: IndexKeys | None = None,
        link: Link | None = None,
    ) -> None:
        super().__init__(config, link)
        self._settings = settings
        self.key = LedgerKey(settings.key)
        self._signed_key = signed_key
        self._partitions: int | None = None
        self._signed_from = SignedFrom()
        self._index_keys = index_keys
        self._topic_id = ""
        self._indexes: dict[int, PartitionIndex] = {}

    @property
    def topic(self) -> str:
        """Name of the ledger topic."""
        return self._settings.topic

    @property
    def topic_id(self) -> str:
        """Id of the ledger topic, as described last."""
        return self._topic_id or self.describe().topic_id

    def describe(self, *, wait: bool = True) -> TopicDescription:
        """Return the ledger topic, asked for now.

        :param wait: ask for some seconds before a topic is taken for missing.
        :raises LedgerMissing: naming the command that creates it.
        :raises AuthorizationFailed: without Describe on the topic.
        """
        try:
            with self._link.connections() as connections:
                found = connections.topics([self.topic], wait=wait)[self.topic]
        except UnknownTopic as error:
            raise LedgerMissing(
                f"the ledger topic {self.topic!r} does not exist, so nobody can tell what is committed; "
                "create it once with 'python -m airflow_eos init', or let the first run do it: "
                "LedgerSettings(create=True)"
            ) from error
        self._partitions = len(found.leaders)
        if self._topic_id != found.topic_id:
            self._topic_id, self._indexes = found.topic_id, {}
        return TopicDescription(topic=self.topic, topic_id=found.topic_id, partitions=self._partitions)

    def partition_for(self, routing: str) -> int:
        """Return the partition of a routing string, as the Java producer places a key; "" is partition 0."""
        if not routing:
            return 0
        if self._partitions is None:
            self.describe()
        assert self._partitions is not None
        key = pa.array([routing.encode()], pa.binary())
        return int(partitions_for(1, self._partitions, topic=self.topic, key=key)[0])

    def view(self, partition: int, keys: Collection[str], prefixes: Collection[str] = ()) -> LedgerView:
        """Read the partition up to the high watermark taken when the call starts.

        Below the last stable offset the broker decides what is committed; above it the entries are returned
        as they are, for the authority to decide by the control markers. The high watermark is taken first:
        what was finished before the call is then below it, and an LSO taken later only moves decided records
        down.

        :param partition: a partition of the ledger.
        :param keys: keys that are wanted; a tombstone removes its key from ``committed`` and has the value
            None in ``tail``.
        :param prefixes: every key that begins with one of these is wanted too.
        :raises CorruptBatch: when a batch cannot be read.
        :raises FetchStalled: when the leader did not answer in time.
        """
        wanted = Wanted(frozenset(keys), tuple(prefixes))
        found = self._view(partition, wanted)
        # What was written before the ledger had a key is not signed. It is known how far that goes.
        if found.unsigned and self._learn_what_is_signed():
            found = self._view(partition, wanted)
        return found

    def latest(
        self, partition: int, prefixes: Collection[str], count: int, *, within: int | None = None
    ) -> LedgerView:
        """As :meth:`view` of all keys with these prefixes, but only of about the ``count`` newest records.

        Reads from the end of the partition until it has so many.

        :param within: offsets at the end of the partition that are read at most; None: all.
        """
        tp = TopicPartition(self.topic, partition)
        wanted = Wanted(frozenset(), tuple(prefixes))
        no_evidence = self._no_evidence(partition, wanted)
        with self._link.connections() as connections:
            high = list_offsets(connections, [tp], "latest", isolation="read_uncommitted")[tp]
            stable = list_offsets(connections, [tp], "latest", isolation="read_committed")[tp]
            start = list_offsets(connections, [tp], "earliest")[tp]
            tail: Sequence[LedgerEntry] = ()
            if stable < high:
                tail, _ = raw_entries(connections, tp, stable, high, wanted, no_evidence)
            first = start if within is None else max(start, stable - within)
            findings, end, size = Findings(no_evidence), stable, _OFFSETS_PER_RUN * count
            while end > first and len(findings.latest) < count:
                findings.scan(connections, tp, max(first, end - size), end, wanted)
                end, size = max(first, end - size), size * 2
        committed = findings.committed(partition)
        return LedgerView(stable, max(high, stable), committed, tail, start, no_evidence)

    def _learn_what_is_signed(self) -> bool:
        """Read from which offsets on records are signed; return whether that is news."""
        key = self._signed_key
        value = self._view(0, Wanted(frozenset({key}))).committed.get(key) if key else None
        before = self._signed_from
        self._signed_from = SignedFrom() if value is None else SignedFrom.from_json(value, key)
        return before != self._signed_from

    def signed_by_version_1(self, partition: int, keys: Collection[str]) -> Mapping[str, str]:
        """Return the committed values of keys whose last signed record has a signature of version 1."""
        wanted = Wanted(frozenset(keys))
        current = self._view(partition, wanted, NoEvidence(self.key, self.topic_id)).committed
        bounds = SignatureBounds(version_1_below=2**63 - 1)
        either = self._view(partition, wanted, NoEvidence(self.key, self.topic_id, bounds)).committed
        return {key: value for key, value in either.items() if key not in current}

    def _view(self, partition: int, wanted: Wanted, no_evidence: NoEvidence | None = None) -> LedgerView:
        tp = TopicPartition(self.topic, partition)
        if no_evidence is None:
            no_evidence = self._no_evidence(partition, wanted)
        index = self._index(partition) if wanted.few else None
        with self._link.connections() as connections:
            high = list_offsets(connections, [tp], "latest", isolation="read_uncommitted")[tp]
            stable = list_offsets(connections, [tp], "latest", isolation="read_committed")[tp]
            start = list_offsets(connections, [tp], "earliest")[tp]
            if index is None:
                committed = committed_values(connections, tp, start, stable, wanted, no_evidence)
            else:
                committed = index.committed(connections, start, stable, wanted, no_evidence)
            tail: Sequence[LedgerEntry] = ()
            if stable < high:
                tail, size = raw_entries(connections, tp, stable, high, wanted, no_evidence)
                if index is not None:
                    index.tail_bytes += size
        return LedgerView(
            last_stable_offset=stable,
            high_watermark=max(high, stable),
            committed=committed,
            tail=tail,
            log_start=start,
            no_evidence=no_evidence,
            unsigned=frozenset(
                key for key, offset in no_evidence.items() if no_evidence.unsigned.get(key) == offset
            ),
        )

    def _no_evidence(self, partition: int, wanted: Wanted) -> NoEvidence:
        # The record that says what is signed is signed itself, wherever it stands.
        if not self.key:
            return NoEvidence()
        says_what_is_signed = self._signed_key in wanted.keys
        bounds = SignatureBounds() if says_what_is_signed else self._signed_from.bounds(partition)
        return NoEvidence(self.key, self.topic_id, bounds)

    # -- the index --

    def tails(self) -> Mapping[int, int]:
        """Return in bytes what the last look-up in each partition read behind its index."""
        return {partition: index.tail_bytes for partition, index in sorted(self._indexes.items())}

    def index_root(self, partition: int) -> tuple[int, IndexRoot] | None:
        """Return the newest committed root of a partition and its offset, None where none can be used."""
        index, tp = self._index(partition), TopicPartition(self.topic, partition)
        if index is None:
            return None
        with self._link.connections() as connections:
            stable = list_offsets(connections, [tp], "latest", isolation="read_committed")[tp]
            start = list_offsets(connections, [tp], "earliest")[tp]
            return index.root(connections, start, stable, self._no_evidence(partition, _NOTHING))

    def index_leaf(self, partition: int, at: LeafAt) -> Mapping[str, Place]:
        """Return what a leaf holds.

        :raises IndexUnusable: it is not there.
        """
        index = self._index(partition)
        assert index is not None, "whoever knows a leaf has read the root"
        with self._link.connections() as connections:
            return index.leaf(connections, at, self._no_evidence(partition, _NOTHING))

    def decided(self, partition: int, start: int, seconds: float) -> tuple[int, Mapping[str, Place]]:
        """Return where the last decided records from ``start`` on stand, and the offset behind them.

        :param seconds: about as long as this may take; what is left is not returned.
        """
        assert self._index_keys is not None, "this ledger is read without an index"
        tp = TopicPartition(self.topic, partition)
        with self._link.connections() as connections:
            high = list_offsets(connections, [tp], "latest", isolation="read_uncommitted")[tp]
            stable = list_offsets(connections, [tp], "latest", isolation="read_committed")[tp]
            begin = max(start, list_offsets(connections, [tp], "earliest")[tp])
            return decided(
                connections,
                tp,
                begin,
                may_speak_for(stable, max(high, stable)),
                self._index_keys,
                self._no_evidence(partition, _NOTHING),
                seconds,
            )

    def _index(self, partition: int) -> PartitionIndex | None:
        if self._index_keys is None:
            return None
        if not self._topic_id:
            self.describe()
        return self._indexes.setdefault(
            partition,
            PartitionIndex(TopicPartition(self.topic, partition), self._index_keys, self._topic_id),
        )

    def create(self) -> None:
        """Create the ledger topic, unless it is there, and wait until every partition has a leader.

        :raises AuthorizationFailed: without Create on the cluster or the topic.
        :raises BrokersUnavailable: when a partition still has no leader after a minute.
        """
        admin = Admin(self._config)
        config = dict(TOPIC_CONFIG)
        replicas = self._settings.replication_factor or -1
        if replicas >= _REPLICAS_WITH_ONE_TO_SPARE:
            config["min.insync.replicas"] = str(replicas - 1)
        topic = NewTopic(
            self.topic, num_partitions=self._settings.partitions, replication_factor=replicas, config=config
        )

        def call(left: float) -> bool:
            _, error = attempt(admin.client.create_topics([topic], request_timeout=left)[self.topic].result)
            if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise KafkaException(error)
            return error is None

        if admin.ask(f"creating the ledger topic {self.topic!r}", call, timeout=CREATE_TIMEOUT):
            log.info("Created the ledger topic %s with %d partitions", self.topic, self._settings.partitions)
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        backoff = Backoff(CREATE_TIMEOUT)
        missing: list[TopicPartition] = []
        while not backoff.expired:
            with self._link.connections() as connections:
                leaders = connections.leaders([self.topic])
            missing = sorted(tp for tp, node in leaders.items() if node == -1)
            if not missing:
                return
            time.sleep(backoff.next_pause())
        raise BrokersUnavailable(
            f"{missing[0]} ({len(missing)} partitions of the ledger) has no leader after "
            f"{CREATE_TIMEOUT:.0f} s; check that enough brokers run"
        )
