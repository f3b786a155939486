"""An in-memory cluster: logs, coordinator, group offsets and ledger, by the rules a real broker showed.

Each rule used here is also checked once on a real broker, in tests/integration.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from airflow_eos.exceptions import (
    BrokersUnavailable,
    LedgerMissing,
    ProducerFenced,
    ProtocolViolation,
    UnknownTopic,
)
from airflow_eos.ledger.keys import INDEX, LEDGER_IDENTITY_KEY
from airflow_eos.ledger.records import ledger_index
from airflow_eos.ledger.records.ledger_index import (
    Around,
    IndexRoot,
    IndexUnusable,
    LeafAt,
    Place,
    read_leaf,
)
from airflow_eos.model.kafka import (
    ActiveProducer,
    CommittedOffset,
    EndTxnAnswer,
    ProducerIdentity,
    TimedOffset,
    TopicDescription,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.ledger import LedgerEntry, LedgerValue, LedgerView
from airflow_eos.model.ranges import TopicPartition

LEDGER = "ledger"
OFFSETS = TopicPartition("__consumer_offsets", 0)
DEDUPLICATED_BATCHES = 5
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
STRANGER = -2
"""Producer id of ledger records that are in none of our transactions: they are not evidence."""


class BrokerTimeout(Exception):
    """No answer came."""


@dataclass(frozen=True)
class Entry:
    """A record or a marker; ``digest`` covers everything but the timestamp."""

    kind: str  # data, commit, abort, gone
    producer_id: int = -1
    epoch: int = -1
    value: str | None = ""
    key: str = ""
    timestamp: int = 0
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = repr((self.kind, self.producer_id, self.epoch, self.value, self.key))
        object.__setattr__(self, "digest", digest(text))


class Log(list[Entry]):
    """The records of one partition; caches what is derived from them until they change."""

    def append(self, entry: Entry) -> None:
        super().append(entry)
        self.__dict__.clear()

    def __setitem__(self, offset: Any, entry: Any) -> None:
        super().__setitem__(offset, entry)
        self.__dict__.clear()

    @cached_property
    def digest(self) -> str:
        return digest(" ".join([entry.digest for entry in self]))

    @cached_property
    def not_aborted(self) -> tuple[tuple[int, Entry], ...]:
        """All data with its offset, without that of aborted transactions."""
        aborted: set[int] = set()
        pending: dict[int, list[int]] = {}
        for offset, entry in enumerate(self):
            if entry.kind == "data" and entry.producer_id >= 0:
                pending.setdefault(entry.producer_id, []).append(offset)
            elif entry.kind in ("commit", "abort"):
                ended = pending.pop(entry.producer_id, [])
                if entry.kind == "abort":
                    aborted.update(ended)
        return tuple(
            (offset, entry)
            for offset, entry in enumerate(self)
            if entry.kind == "data" and offset not in aborted
        )

    def copied(self) -> Log:
        copied = Log(self)
        copied.__dict__.update(self.__dict__)
        return copied


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class ProducerState:
    """What a partition leader knows of one producer id."""

    epoch: int
    last_sequence: int = -1
    batches: tuple[tuple[int, int, int], ...] = ()

    @cached_property
    def text(self) -> str:
        return f"{self.epoch} {self.last_sequence} {self.batches}"


@dataclass
class Transaction:
    """What the coordinator knows of one transactional id; partitions are sorted."""

    producer_id: int
    epoch: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    markers: tuple[TopicPartition, ...] = ()

    @property
    def text(self) -> str:
        partitions, markers = [*map(str, self.partitions)], [*map(str, self.markers)]
        return f"{self.epoch} {self.state.value} {partitions} {markers}"


def _texts(offsets: Mapping[Any, CommittedOffset]) -> list[str]:
    return [f"{key} {o.offset} {o.metadata}" for key, o in sorted(offsets.items())]


class ModelBroker:
    """One cluster. Every method is one atomic step of a broker."""

    def __init__(self, topics: dict[str, int], *, verifies: bool = True) -> None:
        self.topics = {
            name: TopicDescription(name, f"id-{name}", dict.fromkeys(range(partitions), 1))
            for name, partitions in {**topics, LEDGER: 2}.items()
        }
        self.logs: dict[TopicPartition, Log] = {}
        for topic in self.topics.values():
            for p in range(topic.partitions):
                self.logs[TopicPartition(topic.topic, p)] = Log()
        self.producers: dict[TopicPartition, dict[int, ProducerState]] = {tp: {} for tp in self.logs}
        self.open: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in self.logs}
        self.transactions: dict[str, Transaction] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], CommittedOffset]] = {}
        """Pending offsets by producer id, until a marker reaches their partition."""
        self.groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.members: dict[str, int] = {}
        self.verifies = verifies
        self.now: Callable[[], int] = lambda: 0
        """The brokers' clock, in ms: the timestamp of records that producers write."""
        self.away: set[TopicPartition] = set()
        """Partitions without a leader: they accept no request, and get no marker when a transaction ends."""
        self.reported_verification: bool | None = verifies
        identity = json.dumps({"v": 1, "topic_id": "id-ledger", "partitions": 2, "prefix": "eos"})
        self.logs[TopicPartition(LEDGER, 0)].append(Entry("data", value=identity, key=LEDGER_IDENTITY_KEY))

    def fingerprint(self) -> str:
        """Leaves ``open`` out: it follows from the logs."""
        logs = " ".join([log.digest for log in self.logs.values()])
        producers = "\n".join(
            [",".join([f"{pid} {s.text}" for pid, s in states.items()]) for states in self.producers.values()]
        )
        transactions = [(tid, self.transactions[tid].text) for tid in sorted(self.transactions)]
        groups = [(name, _texts(offsets)) for name, offsets in sorted(self.groups.items())]
        pending = [_texts(offsets) for _, offsets in sorted(self.pending.items())]
        away = sorted(map(str, self.away))
        return f"{logs}{producers}{pending}{transactions}{groups}{self.members}{away}"

    def saved(self) -> dict[str, Any]:
        """Return copies of all mutable state, for :meth:`restore`."""
        return {
            "topics": dict(self.topics),
            "logs": {tp: log.copied() for tp, log in self.logs.items()},
            "producers": {tp: dict(states) for tp, states in self.producers.items()},
            "open": {tp: dict(begins) for tp, begins in self.open.items()},
            "transactions": {tid: copy.copy(txn) for tid, txn in self.transactions.items()},
            "pending": {pid: dict(offsets) for pid, offsets in self.pending.items()},
            "groups": {group: dict(offsets) for group, offsets in self.groups.items()},
            "log_starts": dict(self.log_starts),
            "members": dict(self.members),
            "away": set(self.away),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Set the state to a copy of what :meth:`saved` returned."""
        self.__dict__.update(saved)
        self.__dict__.update(self.saved())

    # -- logs --

    def write_input(self, topic: str, partition: int, value: str, timestamp: int = 0) -> None:
        self.logs[TopicPartition(topic, partition)].append(Entry("data", value=value, timestamp=timestamp))

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        description = self.topics[topic]
        for tp in (TopicPartition(topic, p) for p in range(description.partitions, partitions)):
            self.logs[tp], self.producers[tp], self.open[tp] = Log(), {}, {}
        self.topics[topic] = replace(description, leaders=dict.fromkeys(range(partitions), 1))

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return min(self.open[tp].values(), default=len(self.logs[tp]))

    def stable_offset_of_leader(self, tp: TopicPartition) -> int:
        self._leader(tp)
        return self.last_stable_offset(tp)

    def committed_entries(self, tp: TopicPartition) -> list[tuple[int, Entry]]:
        """Return (offset, entry) as a read_committed reader sees them."""
        stable = self.last_stable_offset(tp)
        return [(offset, entry) for offset, entry in self.logs[tp].not_aborted if offset < stable]

    # -- transactions --

    def init_producer(self, transactional_id: str) -> ProducerIdentity:
        txn = self.transactions.get(transactional_id)
        if txn is None:
            txn = self.transactions[transactional_id] = Transaction(1000 + len(self.transactions))
        else:
            self._settle(txn)
            if txn.state is TransactionState.ONGOING:
                txn.epoch += 1
                self._prepare(txn, TransactionState.PREPARE_ABORT)
                self._settle(txn)
            txn.epoch += 1
        txn.state = TransactionState.EMPTY
        txn.partitions = ()
        return ProducerIdentity(transactional_id, txn.producer_id, txn.epoch)

    def _current(self, identity: ProducerIdentity) -> Transaction:
        txn = self.transactions[identity.transactional_id]
        if (txn.producer_id, txn.epoch) != (identity.producer_id, identity.producer_epoch):
            raise ProducerFenced(f"{identity} is not the current epoch")
        self._settle(txn)
        return txn

    def add_partitions(self, identity: ProducerIdentity, partitions: list[TopicPartition]) -> None:
        txn = self._current(identity)
        txn.state = TransactionState.ONGOING
        txn.partitions = tuple(sorted({*txn.partitions, *partitions}))

    def produce(
        self, identity: ProducerIdentity, tp: TopicPartition, sequence: int, value: str, key: str = ""
    ) -> int:
        """Append one record; return its offset, or the earlier one if the broker takes it for a duplicate."""
        self._leader(tp)
        state = self.producers[tp].get(identity.producer_id)
        if state is not None and identity.producer_epoch < state.epoch:
            raise ProducerFenced(f"{tp}: INVALID_PRODUCER_EPOCH")
        if state is not None and state.epoch == identity.producer_epoch:
            for first, last, base in state.batches:
                if (first, last) == (sequence, sequence):
                    return base
            if state.batches and sequence != state.last_sequence + 1:
                raise ProtocolViolation(f"{tp}: OUT_OF_ORDER_SEQUENCE")
        txn = self.transactions[identity.transactional_id]
        if self.verifies:
            if txn.epoch != identity.producer_epoch:
                raise ProducerFenced(f"{tp}: INVALID_PRODUCER_EPOCH")
            if txn.state is not TransactionState.ONGOING or tp not in txn.partitions:
                raise ProtocolViolation(f"{tp}: INVALID_TXN_STATE")
        if state is None or state.epoch < identity.producer_epoch:
            state = ProducerState(identity.producer_epoch)
        offset = len(self.logs[tp])
        self.logs[tp].append(
            Entry("data", identity.producer_id, identity.producer_epoch, value, key, self.now())
        )
        self.open[tp].setdefault(identity.producer_id, offset)
        batches = (*state.batches, (sequence, sequence, offset))[-DEDUPLICATED_BATCHES:]
        self.producers[tp][identity.producer_id] = ProducerState(state.epoch, sequence, batches)
        return offset

    def add_offsets(
        self, identity: ProducerIdentity, group: str, offsets: dict[TopicPartition, CommittedOffset]
    ) -> None:
        txn = self._current(identity)
        txn.state = TransactionState.ONGOING
        txn.partitions = tuple(sorted({*txn.partitions, OFFSETS}))
        self._leader(OFFSETS)
        pending = self.pending.setdefault(identity.producer_id, {})
        pending.update({(group, tp): offset for tp, offset in offsets.items()})

    def end_transaction(self, identity: ProducerIdentity, *, commit: bool) -> EndTxnAnswer | None:
        """Answer EndTxn; None means that it was committed."""
        txn = self.transactions[identity.transactional_id]
        if (txn.producer_id, txn.epoch) != (identity.producer_id, identity.producer_epoch):
            return EndTxnAnswer.FENCED
        if commit and txn.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT):
            return None
        self._settle(txn)
        if txn.state is not TransactionState.ONGOING:
            return EndTxnAnswer.NOTHING_OPEN
        self._prepare(txn, TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        return None if commit else EndTxnAnswer.ENDED

    def time_out(self, transactional_id: str) -> None:
        """Abort a transaction that has been open too long, as the coordinator does."""
        txn = self.transactions[transactional_id]
        if txn.state is TransactionState.ONGOING:
            txn.epoch += 1
            self._prepare(txn, TransactionState.PREPARE_ABORT)
            self._settle(txn)

    @staticmethod
    def _prepare(txn: Transaction, state: TransactionState) -> None:
        txn.state = state
        txn.markers = txn.partitions

    def write_marker(self, txn: Transaction) -> None:
        """Write one marker; the last one completes the transaction."""
        commits = txn.state is TransactionState.PREPARE_COMMIT
        if txn.markers:
            tp, *left = txn.markers
            txn.markers = tuple(left)
            if tp not in self.away:  # else a 4.x broker omits the marker (KAFKA-20734)
                self.marker(tp, txn.producer_id, txn.epoch, commits=commits)
        if not txn.markers:
            txn.state = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
            txn.partitions = ()

    def marker(self, tp: TopicPartition, producer_id: int, epoch: int, *, commits: bool) -> None:
        """Write the marker of a transaction into one partition."""
        self._leader(tp)
        if tp == OFFSETS:
            for (group, source), offset in self.pending.pop(producer_id, {}).items():
                if commits:
                    self.groups.setdefault(group, {})[source] = offset
            return
        state = self.producers[tp].get(producer_id)
        if state is not None and epoch < state.epoch:
            raise ProducerFenced(f"{tp}: INVALID_PRODUCER_EPOCH")
        self.logs[tp].append(Entry("commit" if commits else "abort", producer_id, epoch))
        self.open[tp].pop(producer_id, None)
        if state is None or state.epoch < epoch:
            self.producers[tp][producer_id] = ProducerState(epoch)

    def _settle(self, txn: Transaction) -> None:
        """Complete a transaction: clients retry a request until the transaction before it is complete."""
        while txn.state in PREPARED:
            self.write_marker(txn)

    def settle(self) -> None:
        """Write all missing markers."""
        for txn in self.transactions.values():
            self._settle(txn)

    def unsettled(self) -> list[str]:
        return [tid for tid, txn in sorted(self.transactions.items()) if txn.state in PREPARED]

    # -- reads --

    def describe_topics(self, names: list[str]) -> dict[str, TopicDescription]:
        missing = [n for n in names if n not in self.topics]
        if missing:
            raise UnknownTopic(f"{missing}")
        return {n: self.topics[n] for n in names}

    def offsets_for_time(self, tp: TopicPartition, timestamp: int) -> TimedOffset | None:
        candidates = (
            TimedOffset(offset, entry.timestamp)
            for offset, entry in enumerate(self.logs[tp])
            if entry.kind == "data" and entry.timestamp >= timestamp
        )
        return next(candidates, None)

    def max_timestamp(self, tp: TopicPartition) -> int:
        return max((entry.timestamp for entry in self.logs[tp] if entry.kind == "data"), default=-1)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        if partitions is None:
            partitions = list(self.groups.get(group, {}))
        if stable and self.has_pending(group, partitions):
            raise BrokerTimeout(f"UNSTABLE_OFFSET_COMMIT of {group}")
        offsets = self.groups.get(group, {})
        return {tp: offsets[tp] for tp in partitions if tp in offsets}

    def has_pending(self, group: str, partitions: list[TopicPartition]) -> bool:
        self._leader(OFFSETS)
        return any(g == group and tp in partitions for offsets in self.pending.values() for g, tp in offsets)

    def leaders_return(self) -> None:
        self.away.clear()

    def _leader(self, tp: TopicPartition) -> None:
        if tp in self.away:
            raise BrokersUnavailable(f"{tp} has no leader")

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        txn = self.transactions.get(transactional_id)
        if txn is None:
            return None
        return TransactionDescription(txn.state, txn.producer_id, txn.epoch, frozenset(txn.partitions))

    def describe_producers(self, tp: TopicPartition) -> list[ActiveProducer]:
        self._leader(tp)
        return [
            ActiveProducer(pid, s.epoch, s.last_sequence, self.open[tp].get(pid, -1))
            for pid, s in self.producers[tp].items()
        ]

    def is_visible(self, tp: TopicPartition, offset: int, producer: ProducerIdentity) -> bool | None:
        self._leader(tp)
        if offset >= self.last_stable_offset(tp):
            return None
        entry = self.logs[tp][offset]
        if (entry.producer_id, entry.epoch) != (producer.producer_id, producer.producer_epoch):
            return None
        return any(committed == offset for committed, _ in self.committed_entries(tp))

    def ledger_topic(self) -> TopicDescription:
        if LEDGER not in self.topics:
            raise LedgerMissing("no ledger")
        return self.topics[LEDGER]

    def ledger_view(self, partition: int, keys: set[str], prefixes: tuple[str | Around, ...]) -> LedgerView:
        tp = TopicPartition(LEDGER, partition)
        self._leader(tp)
        stable, high = self.last_stable_offset(tp), len(self.logs[tp])

        starts = tuple(prefix.prefix if isinstance(prefix, Around) else prefix for prefix in prefixes)

        def wanted(key: str) -> bool:
            return key in keys or key.startswith(starts)

        start = self.log_starts.get(tp, 0)
        committed = self._committed(tp, start, keys, prefixes, wanted)
        latest = self._latest_offsets(tp, wanted)
        strangers = {
            entry.key: offset
            for offset, entry in enumerate(self.logs[tp])
            if entry.producer_id == STRANGER and wanted(entry.key) and offset > latest.get(entry.key, -1)
        }
        tail = []
        for offset in range(stable, high):
            entry = self.logs[tp][offset]
            if entry.kind != "data":
                tail.append(LedgerEntry(offset, entry.producer_id, entry.kind))
            elif wanted(entry.key) and entry.producer_id != STRANGER:
                value = None if entry.value is None else LedgerValue(entry.value, partition, offset)
                tail.append(LedgerEntry(offset, entry.producer_id, "record", entry.key, value))
        return LedgerView(stable, high, committed, tuple(tail), start, strangers)

    def _committed(
        self,
        tp: TopicPartition,
        start: int,
        keys: set[str],
        prefixes: tuple[str | Around, ...],
        wanted: Callable[[str], bool],
    ) -> dict[str, LedgerValue]:
        """Look up as the real ledger does: the records after the index, then those that it names."""
        few = not any(isinstance(prefix, str) and prefix.endswith(":") for prefix in prefixes)
        root = self.index_root(tp.partition) if few else None
        begin = start if root is None else root[1].through
        latest = self._latest(tp, begin, wanted)
        if root is None:
            return {key: value for key, value in latest.items() if value is not None}
        try:
            missing = [key for key in keys if key not in latest]
            places = root[1].places(missing, prefixes, lambda at: self.index_leaf(tp.partition, at), latest)
            for key, place in places.items():
                entry = self.logs[tp][place.offset]
                if place.kind == "tombstone":
                    continue
                if entry.kind != "data" or entry.key != key:
                    raise IndexUnusable
                latest[key] = LedgerValue(entry.value, tp.partition, place.offset)
        except IndexUnusable:
            latest = self._latest(tp, start, wanted)
        return {key: value for key, value in latest.items() if value is not None}

    def _latest(
        self, tp: TopicPartition, start: int, wanted: Callable[[str], bool]
    ) -> dict[str, LedgerValue | None]:
        """Return the last committed value of each wanted key from an offset on; None: a tombstone."""
        return {
            e.key: None if e.value is None else LedgerValue(e.value, tp.partition, offset)
            for offset, e in self.committed_entries(tp)
            if offset >= start and wanted(e.key) and e.producer_id != STRANGER
        }

    def _latest_offsets(self, tp: TopicPartition, wanted: Callable[[str], bool]) -> dict[str, int]:
        return {
            e.key: offset
            for offset, e in self.committed_entries(tp)
            if wanted(e.key) and e.producer_id != STRANGER
        }

    # -- the index of a ledger partition --

    def index_root(self, partition: int) -> tuple[int, IndexRoot] | None:
        tp = TopicPartition(LEDGER, partition)
        self._leader(tp)
        roots = [(o, e) for o, e in self.committed_entries(tp) if e.key == INDEX.root]
        return (roots[-1][0], IndexRoot.from_json(roots[-1][1].value)) if roots else None

    def index_leaf(self, partition: int, at: LeafAt) -> Mapping[str, Place]:
        tp = TopicPartition(LEDGER, partition)
        self._leader(tp)
        entry = self.logs[tp][at.offset]
        if entry.kind != "data" or entry.key != INDEX.leaf(at.digest):
            raise IndexUnusable
        return read_leaf(entry.value, at)

    def decided(self, partition: int, start: int) -> tuple[int, Mapping[str, Place]]:
        tp = TopicPartition(LEDGER, partition)
        self._leader(tp)
        end = ledger_index.may_speak_for(self.last_stable_offset(tp), len(self.logs[tp]))
        return end, {
            entry.key: Place(offset, "tombstone" if entry.value is None else "record")
            for offset, entry in self.committed_entries(tp)
            if start <= offset < end and entry.key not in INDEX
        }

    def compact_ledger(self) -> None:
        """Remove records that a later one of the same key replaces; leave open transactions alone."""
        for tp in (TopicPartition(LEDGER, p) for p in range(self.topics[LEDGER].partitions)):
            last = {entry.key: offset for offset, entry in self.committed_entries(tp)}
            for offset, entry in self.committed_entries(tp):
                if last[entry.key] != offset:
                    self.logs[tp][offset] = replace(entry, kind="gone")

    def committed_keys(self) -> set[str]:
        """Return the committed keys of the ledger, also those whose marker is not written yet."""
        committed: set[str] = set()
        sealed = {
            t.producer_id for t in self.transactions.values() if t.state is TransactionState.PREPARE_COMMIT
        }
        for partition in (0, 1):
            pending: dict[int, set[str]] = {}
            for entry in self.logs[TopicPartition(LEDGER, partition)]:
                if entry.kind == "data":
                    pending.setdefault(entry.producer_id, set()).add(entry.key)
                    continue
                ended = pending.pop(entry.producer_id, set())
                if entry.kind == "commit":
                    committed |= ended
            for producer_id, keys in pending.items():
                if producer_id < 0 or producer_id in sealed:
                    committed |= keys
        return committed

    def ledger_records(self) -> list[tuple[str, str]]:
        """Return every committed (key, value), in order, superseded ones included."""
        return [
            (e.key, e.value)
            for p in (0, 1)
            for _, e in self.committed_entries(TopicPartition(LEDGER, p))
            if e.producer_id != STRANGER
        ]
