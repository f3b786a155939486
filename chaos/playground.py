"""The campaign's environment: three brokers, a proxy, one cursor pipeline, a feeder and a watching reader."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_eos import arrow_process
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.engine.lag import unread
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TransactionState
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos_testing import EmbeddedKafka, read_topic
from airflow_eos_testing.agreement import (
    WatchingReader,
    ledger_complaints,
    ledger_records,
    offsets_complaints,
    unfinished_transactions,
)
from airflow_eos_testing.faults import KafkaProxy
from airflow_eos_testing.log_dump import dump_log, log_complaints
from airflow_eos_testing.oracle import InputLog, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos_testing import Broker

SOURCE, SINK, LEDGER = "chaos-in", "chaos-out", "chaos-ledger"
GROUP = PIPELINE = PREFIX = "chaos"
PARTITIONS = 6
_WHOLE_SECONDS = 120.0
_INPUT_SECONDS = 120.0
_ENOUGH = 10 * PARTITIONS
"""Number of records whose keys spread over more than one sink partition."""
_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
# A dead broker is detected after this time: a third of the default leaves time for three times the faults.
_BROKER_CONFIG = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}


def copy(df: Any) -> Any:
    """The process function: row-wise, keeps key and value."""
    return df.select("key", "value")


@arrow_process
def copy_arrow(batch: Any) -> Any:
    """The process function on Arrow, which needs no DataFrame in a local session."""
    return batch.select(["key", "value"])


def process_of(spec: RunSpec) -> Callable[..., Any]:
    """Return a run's process function, the same in all of its tries: rows and Arrow take turns."""
    number = int(spec.run_id.rpartition("-")[2])
    return copy_arrow if number % 2 else copy


class Playground:
    """Everything except the drivers; a context manager.

    :param chance: the campaign's seeded generator.
    :param rate: records per second that the feeder publishes.
    :param version: Kafka version of the brokers.
    """

    def __init__(self, chance: random.Random, rate: float, version: str) -> None:
        self._chance = chance
        self._rate = rate
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._stop_feeding = threading.Event()
        self._feeding_failed: BaseException | None = None
        self.inputs = InputLog(PARTITIONS)
        self.kafka = EmbeddedKafka(brokers=3, version=version, broker_config=_BROKER_CONFIG)

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.kafka)
            self.proxy = self._stack.enter_context(KafkaProxy(self.kafka.bootstrap_servers))
            for topic in (SOURCE, SINK):
                self.kafka.create_topic(topic, PARTITIONS)
            self.spec = self._spec()
            self.reader = self._stack.enter_context(WatchingReader(self.kafka.client_config(), SINK))
            self._feeder = threading.Thread(target=self._feed, daemon=True)
            self._feeder.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_feeding.set()
        self._stack.close()

    def _spec(self) -> RunSpec:
        return RunSpec(
            kafka=self.kafka.client_config(),
            pipeline=PIPELINE,
            run_id="none",
            source_topics=(SOURCE,),
            sink_topic=SINK,
            group_id=GROUP,
            prefix=PREFIX,
            ledger=LedgerSettings(LEDGER, partitions=3),
        )

    def next_run(self) -> RunSpec:
        """Return the spec of the next run of the cursor."""
        return replace(self.spec, run_id=f"run-{next(self._numbers):04d}")

    def behind_proxy(self, spec: RunSpec) -> RunSpec:
        """Return the spec with all connections through the proxy."""
        return replace(spec, kafka=self.proxy.client_config(self.kafka.client_config()))

    # -- input --------------------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        """Publish ``count`` records now."""
        self.inputs.publish(self.kafka.client_config(), SOURCE, count)

    def wait_for_input(self) -> None:
        """Wait until the next run has records to send: an empty run reaches no state of a send."""
        deadline = time.monotonic() + _INPUT_SECONDS
        while unread(self.spec.kafka, GROUP, [SOURCE], ledger=self.spec.ledger).offsets < _ENOUGH:
            if time.monotonic() > deadline:
                raise RuntimeError("the feeder publishes nothing")
            time.sleep(0.1)

    def stop_feeding(self) -> None:
        """Stop the feeder; when this returns, every record it has sent is acknowledged."""
        self._stop_feeding.set()
        self._feeder.join(180)
        if self._feeding_failed is not None or self._feeder.is_alive():
            raise RuntimeError("the feeder failed: the input is unknown") from self._feeding_failed

    def _feed(self) -> None:
        try:
            self.inputs.feed(self.kafka.client_config(), SOURCE, self._rate, self._stop_feeding)
        except BaseException as error:  # noqa: BLE001 - raised by stop_feeding
            self._feeding_failed = error

    # -- brokers ------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> Broker:
        """Return the broker that leads a partition."""
        deadline = time.monotonic() + 60
        while True:
            partitions = (
                self.kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
            )
            brokers = [broker for broker in self.kafka.brokers if broker.node_id == partitions]
            if brokers and brokers[0].is_alive:
                return brokers[0]
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}-{partition} has no leader")
            time.sleep(0.2)

    def coordinator(self) -> Broker:
        """Return the broker that coordinates the pipeline's transactions."""
        topic = "__transaction_state"
        partitions = len(self.kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions)
        return self.leader(topic, java_hash(self.transactional_id) % partitions)

    def wait_whole(self) -> None:
        """Wait until every broker serves and all replicas are in sync: only then may another one die."""
        for broker in self.kafka.brokers:
            broker.wait_until_ready(timeout=_WHOLE_SECONDS)
        self.kafka.wait_in_sync(timeout=_WHOLE_SECONDS)

    def sink_leader(self) -> Broker:
        """Return a broker that leads a sink partition, preferably not the coordinator."""
        order = self._chance.sample(range(PARTITIONS), PARTITIONS)
        brokers = [self.leader(SINK, partition) for partition in order]
        coordinator = self.coordinator()
        return next((broker for broker in brokers if broker is not coordinator), brokers[0])

    # -- the brokers' view --------------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str:
        """The id that all runs of the pipeline share."""
        return keys.transactional_id(self.spec)

    def current_identity(self) -> ProducerIdentity:
        """Return the producer identity that the coordinator currently considers valid."""
        from airflow_eos.model.kafka import ProducerIdentity

        with ControlPlane(self.spec) as control:
            description = control.cluster.describe_transaction(self.transactional_id)
        assert description is not None, f"the coordinator does not know {self.transactional_id}"
        return ProducerIdentity(self.transactional_id, description.producer_id, description.producer_epoch)

    def is_committed(self) -> bool:
        """Return whether the coordinator has decided to commit the pipeline's latest transaction."""
        with ControlPlane(self.spec) as control:
            description = control.cluster.describe_transaction(self.transactional_id)
        return description is not None and description.state in _COMMITTED

    def sink_partitions(self) -> list[TopicPartition]:
        """Return every partition of the sink."""
        return [TopicPartition(SINK, partition) for partition in range(PARTITIONS)]

    # -- the end ------------------------------------------------------------------------------------------

    def verdict(self) -> tuple[Verdict, int]:
        """Return the verdict on everything and the number of committed runs; the source must be drained."""
        self.wait_whole()
        kafka = self.kafka.client_config()
        complaints = list(unfinished_transactions(kafka, keys.ids_prefix(PREFIX)))
        outputs = read_topic(kafka, SINK)
        records = ledger_records(kafka, LEDGER, PIPELINE)
        disagreements = chain(
            complaints,
            ledger_complaints(records, len(outputs)),
            offsets_complaints(kafka, GROUP, records, SOURCE),
            self.reader.complaints(outputs),
            self._log_complaints(records),
        )
        source = read_topic(kafka, SOURCE)
        return judge(self.inputs, outputs, disagreements=disagreements, source=source), len(records)

    def _log_complaints(self, records: Sequence[RunRecord]) -> Iterable[str]:
        """Check that all brokers' log files are equal and hold what the ledger claims."""
        copies = [dump_log(self.kafka, SINK, broker) for broker in self.kafka.brokers]
        for broker, copy_of_log in zip(self.kafka.brokers[1:], copies[1:], strict=True):
            if copy_of_log != copies[0]:
                yield f"broker {broker.node_id}'s copy of {SINK} differs from broker 1's"
        yield from log_complaints(copies[0], records, SINK)


def java_hash(text: str) -> int:
    """Return the hash by which Kafka chooses a coordinator: Java's ``String.hashCode``, without its sign."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
