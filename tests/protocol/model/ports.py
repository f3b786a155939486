"""The protocol's ports on the in-memory cluster: every call is one step of the search."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from airflow_eos.engine.catch_up import run_rounds
from airflow_eos.engine.index_keeper import IndexKeeper
from airflow_eos.exceptions import EosError, ProducerFenced, SealedBlockLost, SecondAttempt
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.keys import LEDGER_IDENTITY_KEY, id_kind, loops
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.records.ledger_index import IndexRoot, LeafAt, Place
from airflow_eos.ledger.topic_check import LedgerCheck
from airflow_eos.ledger.witnesses import Witnesses
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.dead_letter import DueLetters, FailingRecord
from airflow_eos.model.kafka import (
    BrokerFeatures,
    CommittedOffset,
    EndTxnAnswer,
    GroupDescription,
    LogBounds,
    ProducerIdentity,
)
from airflow_eos.model.ledger import LedgerId, LedgerMessage
from airflow_eos.model.output import PartitionReceipt, SealedManifest, SealedTarget
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.model.table import DataFileMade
from airflow_eos.operations.cursor_reset import CursorMove, Reset
from airflow_eos.operations.pruner import Pruner
from airflow_eos.operations.repair import ended, hanging
from airflow_eos.operations.upkeep import write_tombstone
from airflow_eos.run.boundaries import Boundaries
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.planner import Planner
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.visibility import Visibility
from tests.protocol.model.broker import LEDGER, ModelBroker
from tests.protocol.model.explorer import Fault, Run
from tests.protocol.model.table_sink import data_file, sink_of

WRITE_FAULTS = (Fault.FAIL, Fault.LOSE, Fault.DIE)


@dataclass
class Clock:
    """One clock for all; only sleeping moves it."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> dt.datetime:
        return dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(seconds=self.seconds)


class ModelCluster:
    def __init__(self, run: Run, broker: ModelBroker) -> None:
        self._run, self._broker = run, broker

    def _read(self, name: str, call: Callable[[], Any]) -> Any:
        return self._run.step(name, call)

    def describe_topics(
        self, topics: Collection[str], *, optional: Collection[str] = (), wait: bool = True
    ) -> Any:
        del wait  # metadata is never stale here
        # No scene changes the topics.
        return self._broker.describe_topics(
            [*topics, *(name for name in optional if name in self._broker.topics)]
        )

    def topic_operations(self, topics: Collection[str]) -> Any:
        return dict.fromkeys(topics)

    def topic_settings(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        return {}

    def log_starts(self, partitions: Collection[TopicPartition]) -> Any:
        assert len(set(partitions)) == len(partitions), "a broker refuses ListOffsets that name one twice"
        return dict.fromkeys(partitions, 0)

    def log_ends(self, partitions: Collection[TopicPartition]) -> Any:
        tps = list(partitions)
        return self._read("read log ends", lambda: {tp: len(self._broker.logs[tp]) for tp in tps})

    def last_stable_offsets(self, partitions: Collection[TopicPartition]) -> Any:
        tps = list(partitions)
        return self._read(
            "read last stable offsets",
            lambda: {tp: self._broker.stable_offset_of_leader(tp) for tp in tps},
        )

    def log_bounds(self, partitions: Collection[TopicPartition], *, ends: bool = True) -> LogBounds:
        # Two answers: time passes between them.
        high = self.log_ends(partitions) if ends else {}
        return LogBounds(self.log_starts(partitions), self.last_stable_offsets(partitions), high)

    def next_data(self, ranges: Collection[Any]) -> Any:
        return {r.topic_partition: r.start for r in ranges}

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, *, markers: bool = False
    ) -> Any:
        del markers  # have no timestamp here
        tps = list(partitions)
        return self._read(
            "look up offsets for time",
            lambda: {tp: self._broker.offsets_for_time(tp, timestamp_ms) for tp in tps},
        )

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> Any:
        tps = list(partitions)
        return self._read(
            "look up highest timestamps",
            lambda: {tp: self._broker.max_timestamp(tp) for tp in tps},
        )

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None, *, stable: bool = True
    ) -> Any:
        tps = None if partitions is None else list(partitions)
        return self._read(
            "read committed offsets",
            lambda: self._broker.committed_offsets(group, tps, stable=stable),
        )

    def has_pending_offsets(self, group: str, partitions: Collection[TopicPartition]) -> bool:
        tps = list(partitions)
        return self._read("look for pending offsets", lambda: self._broker.has_pending(group, tps))

    def is_visible(self, tp: TopicPartition, offset: int, producer: ProducerIdentity) -> bool | None:
        return self._read(f"look at {tp}", lambda: self._broker.is_visible(tp, offset, producer))

    def describe_group(self, group: str) -> GroupDescription:
        return self._read(
            "describe group", lambda: GroupDescription(group, self._broker.members.get(group, 0))
        )

    def group_offsets_partition(self, group: str) -> TopicPartition:
        return TopicPartition("__consumer_offsets", 0)

    def features(self) -> BrokerFeatures:
        return BrokerFeatures(self._broker.reported_verification, 900_000, None)

    def describe_transaction(self, transactional_id: str) -> Any:
        return self._read("describe transaction", lambda: self._broker.describe_transaction(transactional_id))

    def transactional_ids(self, producer_ids: Collection[int]) -> Any:
        pids = list(producer_ids)

        def ids() -> dict[int, str]:
            by_pid = {txn.producer_id: tid for tid, txn in self._broker.transactions.items()}
            return {pid: by_pid[pid] for pid in pids if pid in by_pid}

        return self._read("list transactions", ids)

    def describe_producers(self, partitions: Collection[TopicPartition]) -> Any:
        tps = list(partitions)
        return self._read(
            "describe producers", lambda: {tp: self._broker.describe_producers(tp) for tp in tps}
        )


class ModelSession:
    def __init__(self, run: Run, broker: ModelBroker, identity: ProducerIdentity) -> None:
        self._run, self._broker, self._identity = run, broker, identity

    @property
    def identity(self) -> ProducerIdentity:
        return self._identity

    def begin(self) -> None:
        pass

    def add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        added = list(partitions)
        self._run.step(
            "add partitions", lambda: self._broker.add_partitions(self._identity, added), WRITE_FAULTS
        )

    def stage(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], messages: Sequence[LedgerMessage]
    ) -> Sequence[int]:
        broker, identity = self._broker, self._identity
        staged, messages = dict(offsets), tuple(messages)
        if staged:
            self._run.step("stage offsets", lambda: broker.add_offsets(identity, group, staged), WRITE_FAULTS)

        def write() -> list[int]:
            partitions = [
                TopicPartition(LEDGER, ledger_partition(m.routing) if m.partition is None else m.partition)
                for m in messages
            ]
            broker.add_partitions(identity, partitions)
            offsets = []
            for tp, message in zip(partitions, messages, strict=True):
                state = broker.producers[tp].get(identity.producer_id)
                same = state is not None and state.epoch == identity.producer_epoch
                sequence = state.last_sequence + 1 if same and state else 0
                offsets.append(broker.produce(identity, tp, sequence, message.value, message.key))
            return offsets

        written: list[int] = self._run.step(
            f"stage {', '.join(m.key.split(':')[0] for m in messages)} record", write, WRITE_FAULTS
        )
        return written

    def commit(self) -> None:
        broker, identity = self._broker, self._identity

        def end() -> None:
            answer = broker.end_transaction(identity, commit=True)
            if answer is not None:
                raise EosError(f"commit refused: {answer.value}")

        def late() -> None:
            broker.end_transaction(identity, commit=True)

        self._run.step("commit", end, (*WRITE_FAULTS, Fault.DELAY), late)

    def close(self) -> None:
        pass


class ModelTransactions:
    """Also checks law 2: a process that knows it is superseded must not take another epoch."""

    def __init__(self, run: Run, broker: ModelBroker, scene: Any, name: str) -> None:
        self._run, self._broker, self._scene, self._name = run, broker, scene, name

    def fence(self, transactional_id: str) -> ModelSession:
        def init() -> ProducerIdentity:
            if (self._name, transactional_id) in self._scene.superseded and id_kind(
                transactional_id
            ) != "boundary":
                self._scene.broken = self._scene.broken or (
                    f"{self._name} was told that {transactional_id} is no longer its own and took it again"
                )
            return self._broker.init_producer(transactional_id)

        identity = self._run.step(f"fence {transactional_id}", init, (Fault.FAIL, Fault.LOSE, Fault.DIE))
        return ModelSession(self._run, self._broker, identity)

    def abort(self, identity: ProducerIdentity, *, timeout: float = 60.0) -> EndTxnAnswer:
        def end() -> EndTxnAnswer:
            answer = self._broker.end_transaction(identity, commit=False)
            assert answer is not None
            if answer is EndTxnAnswer.FENCED:
                self._is_superseded(identity)
            return answer

        return self._run.step("abort own transaction", end, WRITE_FAULTS)

    def abort_again(
        self, identity: ProducerIdentity, partitions: Collection[TopicPartition], group: str | None = None
    ) -> EndTxnAnswer:
        added = list(partitions)

        def add() -> None:
            try:
                self._broker.add_partitions(identity, added)
                if group is not None:
                    self._broker.add_offsets(identity, group, {})
            except ProducerFenced:
                self._is_superseded(identity)
                raise

        try:
            self._run.step("add what is open", add, WRITE_FAULTS)
        except ProducerFenced:
            return EndTxnAnswer.FENCED
        return self.abort(identity)

    def _is_superseded(self, identity: ProducerIdentity) -> None:
        self._scene.superseded.add((self._name, identity.transactional_id))

    def write_markers(
        self, producer_id: int, epoch: int, partitions: Collection[TopicPartition], *, commit: bool
    ) -> None:
        for tp in partitions:
            self._run.step(
                f"write a marker to {tp}",
                lambda tp=tp: self._broker.marker(tp, producer_id, epoch, commits=commit),
                WRITE_FAULTS,
            )


def ledger_partition(routing: str) -> int:
    return 1 if routing.endswith("1") else 0


class ModelLedger:
    topic = LEDGER

    def __init__(self, run: Run, broker: ModelBroker) -> None:
        self._run, self._broker = run, broker

    def describe(self, *, wait: bool = True) -> Any:
        return self._broker.ledger_topic()

    def create(self) -> None:
        raise AssertionError("the model's ledger exists")

    def cleanup_policy(self) -> str:
        return "compact"

    def route_over(self, partitions: int) -> None:
        del partitions  # the model's ledger keeps its partitions

    def partition_for(self, routing: str) -> int:
        return ledger_partition(routing)

    def view(self, partition: int, keys: Collection[str], prefixes: Collection[str] = ()) -> Any:
        wanted, beginning = set(keys), tuple(prefixes)

        def read() -> Any:
            return self._broker.ledger_view(partition, wanted, beginning)

        if LEDGER_IDENTITY_KEY in wanted:
            return self._run.look(read)
        more = " and more" if len(keys) > 1 else ""
        return self._run.step(f"ask the ledger for {min(keys, default=f'all {prefixes}')}{more}", read)

    def index_root(self, partition: int) -> tuple[int, IndexRoot] | None:
        return self._run.step("read the index", lambda: self._broker.index_root(partition))

    def index_leaf(self, partition: int, at: LeafAt) -> Mapping[str, Place]:
        return self._run.step("read a leaf", lambda: self._broker.index_leaf(partition, at))

    def decided(self, partition: int, start: int, seconds: float) -> tuple[int, Mapping[str, Place]]:
        del seconds  # nothing takes time here
        return self._run.step("read what is decided", lambda: self._broker.decided(partition, start))


@dataclass
class ModelSealed:
    manifest: SealedManifest
    batches: dict[TopicPartition, list[str]]
    files: Sequence[DataFileMade] = ()


class ModelData:
    """Reads, transforms record by record, and sends one record per batch, one partition after the other.

    :param respawns: a second attempt of a send task may run beside the first, its batches in another order
        (a transform that is not deterministic).
    :param loses_batch: the writers lose their last batch unnoticed.
    :param loses_blocks: the first sealed batches are lost for good when one of them is written; sealed again,
        the batches are in another order (a transform that is not deterministic).
    """

    def __init__(
        self,
        run: Run,
        broker: ModelBroker,
        spec: RunSpec,
        *,
        respawns: bool = False,
        loses_batch: bool = False,
        loses_blocks: bool = False,
    ) -> None:
        self._run, self._broker, self._spec = run, broker, spec
        self._respawns, self._loses_batch, self._loses_blocks = respawns, loses_batch, loses_blocks
        self._lost: ModelSealed | None = None

    def seal(self, plan: RunPlan, writer: object = None) -> ModelSealed:
        lost = self._lost is not None

        def read() -> ModelSealed:
            batches: dict[TopicPartition, list[str]] = {}
            counts: dict[TopicPartition, int] = {}
            for r in plan.ranges:
                log = self._broker.logs[r.topic_partition]
                visible = {o for o, _ in self._broker.committed_entries(r.topic_partition)}
                stable = self._broker.last_stable_offset(r.topic_partition)
                for offset in range(r.start, r.end):
                    if log[offset].kind == "data" and (offset in visible or offset >= stable):
                        target = TopicPartition(str(self._spec.sink_topic), r.partition)
                        batches.setdefault(target, []).append(log[offset].value)
                        counts[r.topic_partition] = counts.get(r.topic_partition, 0) + 1
            if writer is not None:
                return self._of_table(batches, counts, plan)
            if lost:
                batches = {target: values[::-1] for target, values in batches.items()}
            targets = tuple(SealedTarget(t.topic, t.partition, len(b), len(b), 1) for t, b in batches.items())
            return ModelSealed(SealedManifest(targets, counts), batches)

        return self._run.step("read, transform and seal", read)

    def _of_table(
        self, batches: Mapping[TopicPartition, list[str]], counts: dict[TopicPartition, int], plan: RunPlan
    ) -> ModelSealed:
        """With a topic for dead letters, the function raises on all records of partition 1."""
        failing = 1 if self._spec.dead_letter_topic is not None else None
        values = [value for tp, rows in batches.items() if tp.partition != failing for value in rows]
        due = tuple(
            FailingRecord(r.topic, r.partition, offset, "it raises")
            for r in plan.ranges
            if r.partition == failing and counts.get(r.topic_partition)
            for offset in range(r.start, r.end)
        )
        manifest = SealedManifest((), counts, dead_letters=len(due), letters_due=due)
        return ModelSealed(manifest, {}, [data_file(values)] if values else [])

    def seal_letters(self, due: DueLetters) -> ModelSealed:
        def read() -> ModelSealed:
            values = [self._broker.logs[r.range.topic_partition][r.offset].value for r in due.records]
            target = SealedTarget(due.topic, 0, len(values), len(values), 1)
            return ModelSealed(SealedManifest((target,)), {target.topic_partition: values})

        return self._run.step("make dead letters", read)

    def send(
        self, sealed: ModelSealed, identity: ProducerIdentity, timeout: float
    ) -> Sequence[PartitionReceipt]:
        receipts = []
        if sealed is self._lost:
            raise SealedBlockLost("sealed batches are gone with their executor")
        for tp, batches in sorted(sealed.batches.items()):
            written = batches[:-1] if self._loses_batch else batches
            first, offset = None, 0
            for sequence, value in enumerate(written):
                offset = self._produce(identity, tp, sequence, value)
                first = offset if first is None else first
                if self._loses_blocks and self._lost is None:
                    self._lost = sealed
                    raise SealedBlockLost("sealed batches are gone with their executor")
                if self._respawns and sequence == 0:
                    self._second_attempt(identity, tp, list(reversed(batches)))
            count = len(written)
            receipts.append(
                PartitionReceipt(tp.topic, tp.partition, first or 0, offset, count, 1, count, count - 1)
            )
        return receipts

    def _produce(self, identity: ProducerIdentity, tp: TopicPartition, sequence: int, value: str) -> int:
        def late() -> None:
            with contextlib.suppress(EosError):
                self._broker.produce(identity, tp, sequence, value)

        return self._run.step(
            f"write {value} to {tp}",
            lambda: self._broker.produce(identity, tp, sequence, value),
            (Fault.FAIL, Fault.LOSE, Fault.DIE, Fault.DELAY),
            late,
        )

    def _second_attempt(self, identity: ProducerIdentity, tp: TopicPartition, batches: list[str]) -> None:
        """The executor of the first attempt is lost after its first batch; Spark starts the task again."""
        if refuse_second_attempt(1):
            raise SecondAttempt(f"{tp}: attempt 1 wrote nothing")
        self._respawns = False
        for sequence, value in enumerate(batches):
            self._produce(identity, tp, sequence, value)

    def release(self, sealed: ModelSealed) -> None:
        pass


def refuse_second_attempt(attempt_number: int) -> bool:
    """Apply law 1 as the model's send task does; tests switch it off."""
    return attempt_number > 0


def indexer(run: Run, scene: Any, name: str, partition: int) -> Callable[[], Any]:
    """Return the body of a process that brings the index of a ledger partition up to date."""

    def body() -> Any:
        broker = scene.broker
        writer = ledger_writer(run, scene, name)
        keeper = IndexKeeper(ModelLedger(run, broker), writer, "eos", clock=scene.clock.monotonic)
        return keeper.extend(partition)

    return body


def pruner(run: Run, scene: Any, name: str, partition: int, before: str) -> Callable[[], Any]:
    """Return the body of a process that prunes a ledger partition."""

    def body() -> Any:
        broker, ledger = scene.broker, ModelLedger(run, scene.broker)
        pruning = Pruner(
            ModelCluster(run, broker),
            ledger,
            ledger_writer(run, scene, name),
            Authority(ledger, sleep=sleep_of(run, scene), clock=scene.clock.monotonic),
            "eos",
            dt.timedelta(0),
        )
        return pruning.prune(partition, before, pruning.old_runs(partition, before))

    return body


def dismisser(run: Run, scene: Any, name: str, partition: int, key: str) -> Callable[[], Any]:
    """Return the body of a process that dismisses a key of a ledger partition."""

    def body() -> Any:
        tp, ledger = TopicPartition(LEDGER, partition), ModelLedger(run, scene.broker)
        write_tombstone(ledger, ledger_writer(run, scene, name), "eos", tp, key)

    return body


def repairer(run: Run, scene: Any, name: str, topics: Collection[str]) -> Callable[[], Any]:
    """Return the body of a process that ends what leaders have open, as `repair --yes` does."""

    def body() -> Any:
        control: Any = SimpleNamespace(
            deployment=SimpleNamespace(prefix="eos"),
            cluster=ModelCluster(run, scene.broker),
            ledger=ModelLedger(run, scene.broker),
            transactions=ModelTransactions(run, scene.broker, scene, name),
        )
        return [ended(control, transaction) for transaction in hanging(control, topics, 2).transactions]

    return body


def resetter(run: Run, scene: Any, name: str, spec: RunSpec, reset: Reset) -> Callable[[], Any]:
    """Return the body of a process that moves a cursor as `reset-offsets` does."""

    def body() -> Any:
        sleep, clock = sleep_of(run, scene), scene.clock.monotonic
        cluster, ledger = ModelCluster(run, scene.broker), ModelLedger(run, scene.broker)
        transactions = ModelTransactions(run, scene.broker, scene, name)
        control: Any = SimpleNamespace(
            deployment=SimpleNamespace(prefix=spec.prefix),
            cluster=cluster,
            ledger=ledger,
            authority=Authority(ledger, sleep=sleep, clock=clock),
            writer=LedgerWriter(cluster, transactions, sleep=sleep, clock=clock),
            visibility=Visibility(cluster, transactions, sleep=sleep, clock=clock),
        )
        ledger_id = LedgerId("id-ledger", 2, "eos")
        return CursorMove(control, reset, ledger_id, scene.clock.now).carry_out()

    return body


def ledger_writer(run: Run, scene: Any, name: str) -> LedgerWriter:
    """Return the writer that a process uses for the ledger."""
    return LedgerWriter(
        ModelCluster(run, scene.broker),
        ModelTransactions(run, scene.broker, scene, name),
        sleep=sleep_of(run, scene),
        clock=scene.clock.monotonic,
    )


def sleep_of(run: Run, scene: Any) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        def wait() -> None:
            scene.clock.seconds += 10

        run.step("sleep", wait)

    return sleep


def attempt(
    run: Run, scene: Any, name: str, spec: RunSpec, data: Callable[..., ModelData] = ModelData
) -> Callable[[], Any]:
    """Return the body of one process: one attempt at a run, composed as the engine composes it."""
    broker, clock = scene.broker, scene.clock
    sleep = sleep_of(run, scene)

    def body() -> Any:
        cluster, ledger = ModelCluster(run, broker), ModelLedger(run, broker)
        authority = Authority(ledger, sleep=sleep, clock=clock.monotonic)
        transactions = ModelTransactions(run, broker, scene, name)
        pins = Pins(ledger_writer(run, scene, name), authority, sleep=sleep)
        ledger_id = LedgerCheck(
            ledger,
            authority,
            pins,
            spec.ledger,
            spec.prefix,
            witnesses=Witnesses(cluster, spec.prefix, spec.ledger.topic, spec),
            may_create=spec.may_create_ledger,
        ).verified()
        boundaries = Boundaries(cluster, pins, ledger_id.prefix, clock.now)
        planner = Planner(spec, cluster, authority, boundaries, ledger_id, clock.now)
        world = Collaborators(
            cluster=cluster,
            transactions=transactions,
            ledger=ledger,
            authority=authority,
            planner=planner,
            data=data(run, broker, spec),
            ledger_id=ledger_id,
            now=clock.now,
            clock=clock.monotonic,
            sleep=sleep,
            table=sink_of(run, scene),
        )

        def execute_round(round_spec: RunSpec, around: Collaborators) -> Any:
            protocol = RunProtocol(round_spec, around)
            return protocol.execute(), protocol.producer

        return run_rounds(spec, world, execute_round) if loops(spec) else execute_round(spec, world)[0]

    return body
