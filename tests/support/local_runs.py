"""Runs on a real broker without Spark: real protocol, real wire layer, records copied in this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from airflow_eos.engine.catch_up import run_rounds
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.ledger.keys import loops
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.dead_letter import DueLetters
from airflow_eos.model.output import SealedManifest, SealedTarget
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.run.collaborators import Collaborators
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.states import State
from airflow_eos.spark.letter_batches import LetterBatches, seal_letters
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos_testing.readers import read_topic
from tests.support.patience import wait_until
from tests.support.wire_requests import fetch_range


@dataclass(frozen=True)
class Row:
    """An input record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Out:
    """An output record; default topic: the sink; default partition: by its key."""

    value: bytes | None
    key: bytes | None = None
    topic: str | None = None
    partition: int | None = None


@dataclass
class LocalSealed:
    manifest: SealedManifest
    batches: dict[TopicPartition, list[tuple[int, bytes]]]


class LocalDataPlane:
    """Reads, transforms and sends in this process, through the wire layer.

    :cvar batch_bytes: size limit of a batch's records; a small one makes many batches of few records.
    """

    batch_bytes: int | None = None

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._config = ClientConfig.of(spec.kafka)

    def transform(self, rows: Sequence[Row]) -> Sequence[Out]:
        """Copy the rows; tests may override it."""
        return [Out(row.value, row.key) for row in rows]

    def seal(self, plan: Any, _writer: None = None) -> LocalSealed:
        rows: list[Row] = []
        counts: dict[TopicPartition, int] = {}
        with BrokerConnections(self._config) as connections:
            for r in plan.ranges:
                counts[r.topic_partition] = 0
                for batch in fetch_range(connections, r.topic, r.partition, r.start, r.end):
                    columns = (batch.offset, batch.key.to_pylist(), batch.value.to_pylist())
                    rows += [
                        Row(r.topic, r.partition, int(o), k, v) for o, k, v in zip(*columns, strict=True)
                    ]
                    counts[r.topic_partition] += len(batch)
            by_topic: dict[str, list[Out]] = {}
            for out in self.transform(rows):
                by_topic.setdefault(out.topic or str(self._spec.sink_topic), []).append(out)
            described = connections.topics(by_topic)
        batches: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for topic, outs in sorted(by_topic.items()):
            key = pa.array([out.key for out in outs], pa.binary())
            value = pa.array([out.value for out in outs], pa.binary())
            explicit = pa.array([out.partition for out in outs], pa.int32())
            target = partitions_for(
                len(outs), described[topic].partitions, topic=topic, key=key, explicit=explicit
            )
            for batch in seal(value, target, topic=topic, key=key, batch_bytes=self.batch_bytes):
                topic_partition = TopicPartition(topic, batch.partition)
                batches.setdefault(topic_partition, []).append((batch.records, batch.data))
        targets = tuple(
            SealedTarget(tp.topic, tp.partition, sum(n for n, _ in b), len(b), sum(len(d) for _, d in b))
            for tp, b in sorted(batches.items())
        )
        return LocalSealed(SealedManifest(targets, counts, versions={"data_plane": "local"}), batches)

    def seal_letters(self, due: DueLetters) -> LetterBatches:
        return seal_letters(self._config, self._spec.compression, due)

    def send(self, sealed: LocalSealed | LetterBatches, identity: Any, timeout: float) -> Sequence[Any]:
        with BrokerConnections(self._config) as connections:
            return send_partitions(
                connections,
                identity,
                sealed.batches,
                delivery_timeout=self._spec.delivery_timeout.total_seconds(),
                timeout=timeout,
            )

    def release(self, sealed: LocalSealed) -> None:
        sealed.batches.clear()


class LocalPlane(LocalDataPlane):
    """Replaces Spark's data plane; the product still decides when to create the session."""

    def __init__(self, _session: Any, spec: RunSpec, _process: Any, _cluster_id: str | None) -> None:
        super().__init__(spec)

    def cancel(self, *_: Any) -> None:
        pass


class Session:
    """The attributes by which a classic session is recognised."""

    sparkContext = SimpleNamespace(_jsc=object())  # noqa: N815 - Spark's name

    def createDataFrame(self) -> None:  # noqa: N802 - Spark's name
        pass


class Died(BaseException):
    """Simulates the death of a process: none of its code runs any more, except for `finally` blocks."""


def die_at(state: State, time: int = 1) -> Callable[[State], None]:
    """Return a callback that kills a run when it enters a state for the ``time``-th time, or later."""
    entries = 0

    def entered(now: State) -> None:
        nonlocal entries
        entries += now is state
        if now is state and entries >= time:
            raise Died(state)

    return entered


class Pipeline:
    """A source, a sink, a ledger and a group of their own on a shared broker."""

    def __init__(
        self,
        kafka: Any,
        *,
        partitions: int = 2,
        source_config: Mapping[str, str] | None = None,
        sink_config: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        self.kafka = kafka
        tag = uuid.uuid4().hex[:8]
        self.source, self.sink, self.ledger = f"src-{tag}", f"out-{tag}", f"ledger-{tag}"
        # Tests write records with timestamps of any age.
        kafka.create_topic(
            self.source, partitions=partitions, config={"retention.ms": "-1", **(source_config or {})}
        )
        kafka.create_topic(self.sink, partitions=partitions, config=sink_config)
        spec = RunSpec(
            kafka=kafka.client_config(),
            pipeline=f"pipe-{tag}",
            run_id="r1",
            source_topics=(self.source,),
            sink_topic=self.sink,
            group_id=f"group-{tag}",
            prefix="test",
            ledger=LedgerSettings(topic=self.ledger, partitions=2),
        )
        self.spec = replace(spec, **changes)

    def publish(self, values: Sequence[str], *, partition: int = 0, timestamp: int | None = None) -> None:
        # A new leader may refuse the first batch, which other in-flight ones would overtake. An idempotent
        # producer would keep the order, too, but librdkafka often waits half a second for a producer id.
        producer = Producer({**self.kafka.client_config(), "linger.ms": 0, "max.in.flight": 1})
        extra = {} if timestamp is None else {"timestamp": timestamp}
        for value in values:
            producer.produce(self.source, value=value, key=value, partition=partition, **extra)
        assert producer.flush(30) == 0

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions, and wait until the broker lists them: it learns of them after it has answered."""
        admin = self.kafka.admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result()
        wait_until(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == total)

    def changed(self, run_id: str = "r1", **changes: Any) -> RunSpec:
        """Return the spec of one run."""
        return replace(self.spec, run_id=run_id, **changes)

    def run(
        self,
        run_id: str = "r1",
        *,
        data: Callable[[RunSpec], Any] = LocalDataPlane,
        on_state: Callable[[State], None] | None = None,
        **changes: Any,
    ) -> RunRecord:
        spec = self.changed(run_id, **changes)

        def attempt(round_spec: RunSpec, collaborators: Collaborators) -> Any:
            protocol = RunProtocol(round_spec, collaborators, on_state)
            return protocol.execute(), protocol.producer

        with ControlPlane(spec) as control:
            collaborators = control.collaborators(data(spec))
            record = (
                run_rounds(spec, collaborators, attempt) if loops(spec) else attempt(spec, collaborators)[0]
            )
            control.remember_ledger()
            return record

    def output(self, isolation: str = "read_committed") -> list[str]:
        return sorted(r.value.decode() for r in read_topic(self.kafka.client_config(), self.sink, isolation))


class Paused:
    """An attempt in a thread that stops at a state until it is resumed: a future zombie."""

    def __init__(self, pipeline: Pipeline, state: State, run_id: str = "r1", **changes: Any) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        self.record: RunRecord | None = None
        self.error: BaseException | None = None

        def hold(entered: State) -> None:
            if entered is state and not self.reached.is_set():
                self.reached.set()
                assert self._go.wait(60)

        def body() -> None:
            try:
                self.record = pipeline.run(run_id, on_state=hold, **changes)
            except BaseException as error:
                self.error = error
                self.reached.set()

        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()
        assert self.reached.wait(60)

    def resume(self) -> None:
        """Let it go on, and wait for its end."""
        self._go.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
